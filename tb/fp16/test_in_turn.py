"""Operators that take one word at a time in Verilator against golden.fp16.functions.

Shown to fail:

- rows too many in the last cycle;
- n of the square root not moved;
- a word taken while one waits for ``o.ready``.
"""

import pytest

from golden.fp16.vectors import columns as vectors
from hdl.fp16.divide import FpDivide, FpDivideInTurn, FpReciprocal, FpReciprocalInTurn
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtInTurn
from tb.fp16.support.bank import at_depths, check, some
from tb.fp16.support.formats import COMPLETE, MIXED

# Rows in one cycle, rows that do not divide into the cycles, a row a cycle, and cycles to spare.
DEPTHS = [(3, 0), (6, 8), (10, 0), (15, 3), (32, 0)]


def test_divide(seed):
    columns = some(vectors.divide_vectors(seed), seed)
    cases = at_depths(COMPLETE[FpDivide][0], columns, DEPTHS)
    for config in MIXED[FpDivide]:
        columns = vectors.divide_vectors(seed, config.a, config.b, config.o, count=1000)
        cases += at_depths(config, columns, [(15, 0)])
    check(FpDivideInTurn, cases, seed)


@pytest.mark.parametrize(
    ("operator", "in_turn", "function"),
    [(FpReciprocal, FpReciprocalInTurn, "reciprocal"), (FpRsqrt, FpRsqrtInTurn, "rsqrt")],
)
def test_of_one_operand(operator, in_turn, function, seed):
    columns = some(vectors.function_vectors(seed, function), seed)
    cases = at_depths(COMPLETE[operator][0], columns, DEPTHS)
    for config in MIXED[operator]:
        columns = vectors.function_vectors(seed, function, config.a, config.o)
        cases += at_depths(config, some(columns, seed), [(10, 0)])
    check(in_turn, cases, seed)
