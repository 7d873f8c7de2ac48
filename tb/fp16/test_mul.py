"""FpMul in Verilator against golden.fp16.ops.mul, in one format and in mixed formats."""

from golden.fp16 import vectors
from golden.fp16.format import FP16, FP32
from hdl.fp16.mul import FpMul, FpMulConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check


def test_mul(seed):
    cases = at_all_depths(FpMulConfig(), vectors.mul_vectors(seed), seed)
    for a, b, o in ((FP32, FP16, FP16), (FP32, FP32, FP32), (FP16, FP16, FP32)):
        columns = vectors.mul_vectors(seed, a, b, o, count=2000)
        cases += at_depths(FpMulConfig(a=a, b=b, o=o), columns, [(3, 0)])
    check(FpMul, cases, seed)
