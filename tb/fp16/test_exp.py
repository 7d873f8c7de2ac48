"""FpExp in Verilator against golden.fp16.functions.exp: all words.

Shown to fail:

- the square left out;
- k one step off;
- no flag for a zero or for an infinity from 32 on;
- one bit less of the factor;
- no complement of a negative word.
"""

from golden.fp16.vectors import columns as vectors
from hdl.fp16.exp import FpExp
from tb.fp16.support.bank import at_all_depths, at_depths, check
from tb.fp16.support.formats import COMPLETE, MIXED


def test_exp(seed):
    columns = vectors.function_vectors(seed, "exp")
    cases = at_all_depths(COMPLETE[FpExp][0], columns, seed)
    cases += at_depths(COMPLETE[FpExp][0], columns, [(9, 1)])
    for config in MIXED[FpExp]:
        columns = vectors.function_vectors(seed, "exp", o=config.o)
        cases += at_depths(config, columns, [(4, 0)])
    check(FpExp, cases, seed)
