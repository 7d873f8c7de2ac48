"""FpCompare in Verilator against golden.fp16.ops."""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.compare import FpCompare
from tb.fp16.support.bank import at_all_depths, check
from tb.fp16.support.formats import COMPLETE


def test_compare(seed):
    columns = vectors.compare_vectors(seed)
    check(FpCompare, at_all_depths(COMPLETE[FpCompare][0], columns, seed), seed)
