"""FpDivide in Verilator against golden.fp16.functions.divide, in one and in mixed formats.

Shown to fail:

- the sticky bit left out;
- one row less;
- the dividend kept over an infinite divisor;
- 0 / 0 and x / 0 not told;
- the sign of b left out.
"""

from golden.fp16 import vectors
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.fp16.divide import FpDivide, FpDivideConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check

_FP8 = FloatFormat(exp_bits=4, frac_bits=3)
_MIXED = (
    (FP32, FP32, FP32),
    (FP32, FP16, FP16),
    (FP16, FP32, FP16),
    (FP16, FP16, FP32),
    (FP32, FP32, _FP8),
)


def test_divide(seed):
    columns = vectors.divide_vectors(seed)
    cases = at_all_depths(FpDivideConfig(), columns, seed)
    cases += at_depths(FpDivideConfig(), columns, [(18, 0)])
    for a, b, o in _MIXED:
        columns = vectors.divide_vectors(seed, a, b, o, count=2000)
        cases += at_depths(FpDivideConfig(a=a, b=b, o=o), columns, [(6, 0)])
    check(FpDivide, cases, seed)
