"""Timing of the index blocks, as functions of their numbers."""

from fractions import Fraction

from golden.timing import Timing

TABLE_ROUNDING = 4  # cycles of the rounding of an entry of a table of products
TERMS = 8  # that one level of an adder tree takes


def table_row(width: int, row: int, outliers: int) -> int:
    """Cycles of a row of ``row`` entries, ``width`` looked up per cycle, with its outliers."""
    return max(row // width, outliers)


def table(width: int, row: int) -> Timing:
    """The timing of a row, from one without outliers to one of outliers alone."""
    return Timing(
        latency=table_row(width, row, 0),
        latency_max=table_row(width, row, row),
        interval=Fraction(table_row(width, row, 0)),
        words=(("i", 1), ("o", 1)),
        unit="row",
    )


def _levels(terms: int, most: int) -> int:
    levels, left = 1, -(-terms // TERMS)
    while left > most:
        levels, left = levels + 1, -(-left // TERMS)
    return levels


def adder_levels(terms: int) -> int:
    """Levels of a tree of TERMS terms each until at most TERMS are left; at least one."""
    return _levels(terms, TERMS)


def tree_levels(terms: int) -> int:
    """Levels of a tree of TERMS terms each down to one sum; at least one."""
    return _levels(terms, 1)


def table_lane(terms: int) -> int:
    """Cycles of an entry of a table of products: products, sum, rounding."""
    return 2 + tree_levels(terms) + TABLE_ROUNDING


def multipliers_max(bits_a: int) -> int:
    """Thresholds that are scaled in a cycle at most: a third of them, rounded up."""
    return (2**bits_a + 1) // 3
