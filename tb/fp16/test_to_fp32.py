"""FpConvert to binary32 in Verilator against golden.fp16.ops.fp16_to_fp32: all words."""

from golden.fp16.format import FP16, FP32
from golden.fp16.vectors import columns as vectors
from hdl.fp16.convert import FpConvert
from tb.fp16.support.bank import at_all_depths, check
from tb.fp16.support.formats import COMPLETE


def test_to_fp32(seed):
    columns = vectors.convert_vectors(seed, FP16, FP32)
    check(FpConvert, at_all_depths(COMPLETE[FpConvert][1], columns, seed), seed)
