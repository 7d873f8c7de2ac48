"""FpCompare in Verilator against golden.fp16.ops."""

from golden.fp16 import vectors
from hdl.fp16.compare import FpCompare, FpCompareConfig
from tb.fp16.bank import at_depths, check


def test_compare(seed):
    check(FpCompare, at_depths(FpCompareConfig(), vectors.compare_vectors(seed)), seed)
