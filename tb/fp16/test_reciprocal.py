"""FpReciprocal in Verilator against golden.fp16.functions.reciprocal.

All binary16 words, and mixed formats.

Shown to fail:

- an infinity taken for a number;
- no flag of infinity for a zero (seen in binary32 only, as in binary16 the quotient overflows by
  itself).
"""

from golden.fp16 import vectors
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.fp16.divide import FpReciprocal, FpReciprocalConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check

_BF16 = FloatFormat(exp_bits=8, frac_bits=7)
_FP8 = FloatFormat(exp_bits=4, frac_bits=3)


def test_reciprocal(seed):
    columns = vectors.function_vectors(seed, "reciprocal")
    cases = at_all_depths(FpReciprocalConfig(), columns, seed)
    cases += at_depths(FpReciprocalConfig(), columns, [(16, 0)])
    for a, o in ((FP32, FP32), (FP32, FP16), (FP16, FP32), (_BF16, FP16), (FP16, _FP8)):
        columns = vectors.function_vectors(seed, "reciprocal", a, o)
        cases += at_depths(FpReciprocalConfig(a=a, o=o), columns, [(6, 0)])
    check(FpReciprocal, cases, seed)
