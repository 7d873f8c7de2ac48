"""FpReciprocal in Verilator against golden.fp16.functions.reciprocal.

All binary16 words, and mixed formats.

Shown to fail:

- an infinity taken for a number;
- no flag of infinity for a zero (seen in binary32 only, as in binary16 the quotient overflows by
  itself).
"""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.divide import FpReciprocal
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_reciprocal(seed):
    columns = vectors.function_vectors(seed, "reciprocal")
    cases = at_all_depths(COMPLETE[FpReciprocal][0], columns, seed)
    cases += at_depths(COMPLETE[FpReciprocal][0], columns, [(16, 0)])
    for config in MIXED[FpReciprocal]:
        columns = vectors.function_vectors(seed, "reciprocal", config.a, config.o)
        cases += at_depths(config, columns, [(6, 0)])
    check(FpReciprocal, cases, seed)
