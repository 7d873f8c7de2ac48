"""FpDivide in Verilator against golden.fp16.functions.divide, in one and in mixed formats.

Shown to fail:

- the sticky bit left out;
- one row less;
- the dividend kept over an infinite divisor;
- 0 / 0 and x / 0 not told;
- the sign of b left out;
- a binary32 dividend with six leading zeros taken for one with seven.
"""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.divide import FpDivide
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_divide(seed):
    columns = vectors.divide_vectors(seed)
    cases = at_all_depths(COMPLETE[FpDivide][0], columns, seed)
    cases += at_depths(COMPLETE[FpDivide][0], columns, [(18, 0)])
    for config in MIXED[FpDivide]:
        columns = vectors.divide_vectors(seed, config.a, config.b, config.o, count=2000)
        cases += at_depths(config, columns, [(6, 0)])
    check(FpDivide, cases, seed)
