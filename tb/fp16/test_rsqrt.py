"""FpRsqrt in Verilator against golden.fp16.functions.rsqrt: all binary16 words, mixed formats.

Shown to fail:

- the sticky bit left out;
- 2n for 3n or no carry in the step of t;
- the sign of 1 / sqrt(-0) lost;
- an infinity taken for a number.
"""

from golden.fp16 import vectors
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check

_BF16 = FloatFormat(exp_bits=8, frac_bits=7)
_FP8 = FloatFormat(exp_bits=4, frac_bits=3)


def test_rsqrt(seed):
    columns = vectors.function_vectors(seed, "rsqrt")
    cases = at_all_depths(FpRsqrtConfig(), columns, seed)
    cases += at_depths(FpRsqrtConfig(), columns, [(16, 0)])
    for a, o in ((FP32, FP32), (FP32, FP16), (FP16, FP32), (_BF16, FP16), (FP16, _FP8)):
        columns = vectors.function_vectors(seed, "rsqrt", a, o)
        cases += at_depths(FpRsqrtConfig(a=a, o=o), columns, [(6, 0)])
    check(FpRsqrt, cases, seed)
