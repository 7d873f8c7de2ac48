"""FpSqrt in Verilator against golden.fp16.functions.sqrt: all binary16 words, mixed formats.

Shown to fail: the sticky bit left out, -0 taken for negative, the parity inverted, -0 given as
+0, one row less.
"""

from golden.fp16 import vectors
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.fp16.sqrt import FpSqrt, FpSqrtConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check

_BF16 = FloatFormat(exp_bits=8, frac_bits=7)
_FP8 = FloatFormat(exp_bits=4, frac_bits=3)


def test_sqrt(seed):
    columns = vectors.function_vectors(seed, "sqrt")
    cases = at_all_depths(FpSqrtConfig(), columns, seed)
    cases += at_depths(FpSqrtConfig(), columns, [(16, 0)])
    for a, o in ((FP32, FP32), (FP32, FP16), (FP16, FP32), (_BF16, FP16), (FP16, _FP8)):
        columns = vectors.function_vectors(seed, "sqrt", a, o)
        cases += at_depths(FpSqrtConfig(a=a, o=o), columns, [(6, 0)])
    check(FpSqrt, cases, seed)
