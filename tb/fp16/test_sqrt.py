"""FpSqrt in Verilator against golden.fp16.functions.sqrt: all binary16 words, mixed formats.

Shown to fail: the sticky bit left out, -0 taken for negative, the parity inverted, -0 given as
+0, one row less.
"""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.sqrt import FpSqrt
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_sqrt(seed):
    columns = vectors.function_vectors(seed, "sqrt")
    cases = at_all_depths(COMPLETE[FpSqrt][0], columns, seed)
    cases += at_depths(COMPLETE[FpSqrt][0], columns, [(16, 0)])
    for config in MIXED[FpSqrt]:
        columns = vectors.function_vectors(seed, "sqrt", config.a, config.o)
        cases += at_depths(config, columns, [(6, 0)])
    check(FpSqrt, cases, seed)
