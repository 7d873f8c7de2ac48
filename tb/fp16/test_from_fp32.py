"""FpConvert to binary16 in Verilator against golden.fp16.ops.fp32_to_fp16."""

from golden.fp16 import vectors
from hdl.fp16.convert import FpConvert, FpConvertConfig
from tb.fp16.bank import at_depths, check


def test_from_fp32(seed):
    check(FpConvert, at_depths(FpConvertConfig(), vectors.convert_vectors(seed)), seed)
