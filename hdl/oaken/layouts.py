"""Payloads that several of Oaken's blocks share. Fixed widths: out-of-range values must arrive."""

from amaranth.lib import data

__all__ = [
    "FP16_BITS",
    "OUTLIER_LAYOUT",
    "SCALE_LAYOUT",
    "THRESHOLD_LAYOUT",
]

FP16_BITS = 16

# Four FP16 words in the order of golden.oaken.format.Threshold.
THRESHOLD_LAYOUT = data.ArrayLayout(FP16_BITS, 4)
# Six FP16 words in the order of golden.oaken.format.ScaleWord.
SCALE_LAYOUT = data.ArrayLayout(FP16_BITS, 6)

# What the zero-insert shifter finds for one element of a block.
OUTLIER_LAYOUT = data.StructLayout({"present": 1, "group": 1, "fifth": 1})
