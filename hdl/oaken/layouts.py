"""Payloads that several of Oaken's blocks share. Fixed widths: out-of-range values must arrive."""

from amaranth.lib import data

from golden.fp16.format import FP16
from golden.oaken.format import ScaleWord, Threshold
from hdl.kinds import named
from hdl.paging.layouts import REQUEST_LAYOUT
from hdl.ports import Payload

FP16_BITS = 16

THRESHOLD_LAYOUT = data.ArrayLayout(FP16_BITS, 4)
SCALE_LAYOUT = data.ArrayLayout(FP16_BITS, 6)

# Shape and text of fields that several payloads have.
THRESHOLDS = (
    THRESHOLD_LAYOUT,
    "four FP16 words in the order of golden.oaken.format.Threshold",
    named(FP16, Threshold),
)
# A request to the cache, THRESHOLDS among them.
KV_REQUEST_LAYOUT = Payload(**REQUEST_LAYOUT.parts, thresholds=THRESHOLDS)
SCALE = (
    SCALE_LAYOUT,
    "six FP16 words in the order of golden.oaken.format.ScaleWord",
    named(FP16, ScaleWord),
)

# What the zero-insert shifter finds for one element of a block.
OUTLIER_LAYOUT = Payload(
    present=(1, "the element is an outlier"),
    group=(1, "1: outer, 0: inner"),
    fifth=(1, "outer: the lower side; inner: bit 4 of the code"),
)
