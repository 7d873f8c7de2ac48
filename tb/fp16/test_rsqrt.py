"""FpRsqrt in Verilator against golden.fp16.functions.rsqrt: all binary16 words, mixed formats.

Shown to fail:

- the sticky bit left out;
- 2n for 3n or no carry in the step of t;
- the sign of 1 / sqrt(-0) lost;
- an infinity taken for a number.
"""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.rsqrt import FpRsqrt
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_rsqrt(seed):
    columns = vectors.function_vectors(seed, "rsqrt")
    cases = at_all_depths(COMPLETE[FpRsqrt][0], columns, seed)
    cases += at_depths(COMPLETE[FpRsqrt][0], columns, [(16, 0)])
    for config in MIXED[FpRsqrt]:
        columns = vectors.function_vectors(seed, "rsqrt", config.a, config.o)
        cases += at_depths(config, columns, [(6, 0)])
    check(FpRsqrt, cases, seed)
