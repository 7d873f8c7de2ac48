"""FpFma in Verilator against golden.fp16.ops.fma, in one format and in mixed formats."""

from golden.fp16 import vectors
from golden.fp16.format import FP16, FP32
from hdl.fp16.fma import FpFma, FpFmaConfig
from tb.fp16.bank import at_depths, check


_MIXED = (
    (FP16, FP32, FP32, FP32),
    (FP16, FP16, FP32, FP32),
    (FP16, FP16, FP32, FP16),
    (FP32, FP32, FP16, FP32),
)


def test_fma(seed):
    cases = at_depths(FpFmaConfig(), vectors.fma_vectors(seed), [(0, 0), (4, 8)])
    few = vectors.fma_vectors(seed + 1, count=500, corners=2000)
    cases += at_depths(FpFmaConfig(), few, [(1, 3), (2, 0), (7, 1)])
    check(FpFma, cases, seed)


def test_fma_of_mixed_formats(seed):
    cases = []
    for a, b, c, o in _MIXED:
        columns = vectors.fma_vectors(seed, a, b, c, o, count=1500, corners=10000)
        cases += at_depths(FpFmaConfig(a=a, b=b, c=c, o=o), columns, [(3, 0)])
    check(FpFma, cases, seed)
