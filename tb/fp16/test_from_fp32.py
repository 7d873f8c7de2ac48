"""FpConvert to binary16 in Verilator against golden.fp16.ops.fp32_to_fp16.

Shown to fail:

- a NaN of which one bit of the fraction alone is set, taken for an infinity.
"""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.convert import FpConvert
from tb.fp16.support.bank import at_all_depths, check
from tb.fp16.support.formats import COMPLETE


def test_from_fp32(seed):
    columns = vectors.convert_vectors(seed)
    check(FpConvert, at_all_depths(COMPLETE[FpConvert][0], columns, seed, (4,)), seed)
