"""FpCompare in Verilator against golden.fp16.ops."""

from golden.fp16 import vectors
from hdl.fp16.compare import FpCompare, FpCompareConfig
from tb.fp16.support.bank import at_all_depths, check


def test_compare(seed):
    columns = vectors.compare_vectors(seed)
    check(FpCompare, at_all_depths(FpCompareConfig(), columns, seed), seed)
