"""Timing of the index blocks, as functions of their numbers."""

from fractions import Fraction

from golden.timing import Timing

TABLE_ROUNDING = 4  # cycles of the rounding of an entry of a table of products
TERMS = 8  # that one level of an adder tree takes


def codebook_store() -> Timing:
    """A word per cycle is written, and one is read."""
    return Timing(
        latency=1,
        start="scan_en",
        end="scan_data",
        unit="word",
        delays=(
            ("from load_info to the first word of load", 1),
            ("from the last word of load to loaded", 1),
            ("from swap to the other buffer", 1),
        ),
    )


def histogram_parallel() -> Timing:
    """From the beat with last to the first word of bins; counting overlaps giving."""
    return Timing(latency=3, unit="beat")


def histogram_ram() -> Timing:
    """From the beat with last to the first word of bins; counting overlaps giving."""
    return Timing(latency=3, unit="beat", delays=(("from packet to its first beat", 1),))


def nearest(scaling: int, multiply_stages: int) -> Timing:
    """The thresholds enter the multipliers in ``scaling`` cycles before a token's first beat."""
    first = scaling + multiply_stages + 3
    return Timing(
        latency=2, start="x", unit="beat", delays=(("from a scale to its first beat of x", first),)
    )


def reducer() -> Timing:
    """Products, sum, rounding: from the beat with last to the sum."""
    return Timing(latency=3, unit="beat")


def table_row(width: int, row: int, outliers: int) -> int:
    """Cycles of a row of ``row`` entries, ``width`` looked up per cycle, with its outliers."""
    return max(row // width, outliers)


def table(width: int, row: int) -> Timing:
    """Of a row without outliers, up to one of outliers alone."""
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
