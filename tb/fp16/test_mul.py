"""FpMul in Verilator against golden.fp16.ops.mul, in one format and in mixed formats."""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.mul import FpMul
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_mul(seed):
    cases = at_all_depths(COMPLETE[FpMul][0], vectors.mul_vectors(seed), seed)
    for config in MIXED[FpMul]:
        columns = vectors.mul_vectors(seed, config.a, config.b, config.o, count=2000)
        cases += at_depths(config, columns, [(3, 0)])
    check(FpMul, cases, seed)
