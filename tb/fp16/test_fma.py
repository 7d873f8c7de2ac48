"""FpFma in Verilator against golden.fp16.ops.fma, in one format and in mixed formats.

Shown to fail: with the 1 added to a negative difference that has sticky bits
(a=7917 b=8019 c=3d7e7e01, of which FP16 gives 0000).
"""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.fma import FpFma
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_fma(seed):
    columns = vectors.fma_vectors(seed)
    cases = at_all_depths(COMPLETE[FpFma][0], columns, seed)
    few = vectors.fma_vectors(seed + 1, count=200, corners=1000)
    cases += at_depths(COMPLETE[FpFma][0], few, [(7, 1)])
    check(FpFma, cases, seed)


def test_fma_of_mixed_formats(seed):
    cases = []
    for config in MIXED[FpFma]:
        formats = (config.a, config.b, config.c, config.o)
        columns = vectors.fma_vectors(seed, *formats, count=1500, corners=10000)
        cases += at_depths(config, columns, [(3, 0)])
    check(FpFma, cases, seed)
