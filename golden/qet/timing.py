"""Timing of the blocks of QET, as functions of their numbers."""

import math
from fractions import Fraction

from golden.index.timing import tree_levels
from golden.qet.config import QetShape, Stage
from golden.qet.format import ImageShape
from golden.timing import Timing

_GEMV_PIPELINE = 25  # from a job to its first request, and from a word to its result
X_BITS = 27  # of an element on the grid of its matrix, and a sign


def swap(levels: int) -> Timing:
    """A register after each level, as each level compares once; without levels, one register."""
    return Timing(latency=max(levels, 1), unit="beat")


def nearest_depth(group: int) -> int:
    """The cycles from the read of an entry to the comparison of its distance.

    The entry, its product, the difference, the square, and the levels of the sum.
    """
    return 4 + tree_levels(group)


def encode_stage(stage: Stage, group: int, is_final: bool) -> int:
    """Cycles from row to row in a stage with all entries: a row, entries, comparison, codes.

    A stage that is not final reads the nearest entries again for their differences. It rounds the
    differences of a group in turn while the next row is compared.
    """
    cycles = 1 + stage.entries + nearest_depth(group) + 1
    return cycles if is_final else max(cycles + 4, group + 3)


def encoder(stages: tuple[Stage, ...], group: int) -> Timing:
    """Each stage swaps, encodes and unswaps a row; it takes the next row in the meantime."""
    latency, longest, depth = 0, 0, nearest_depth(group)
    for number, stage in enumerate(stages):
        is_final = number == len(stages) - 1
        latency += swap(stage.levels).latency + stage.entries + depth + 1
        latency += 0 if is_final else group + 6  # the differences, their rounding, and unswap
        longest = max(longest, encode_stage(stage, group, is_final))
    return Timing(latency=latency, interval=Fraction(longest), start="x", end="o", unit="row")


def gemv_bound(rows: int, tiles: int, books: Fraction, codes: Fraction, entries: int) -> int:
    """Cycles of a matrix: its first load, then each tile while the next one is loaded.

    books, codes: words of memory of a tile's codebooks and of its rows. entries: of all stages,
    one per cycle of a load.
    """
    load = max(books, Fraction(entries))
    middle = max(Fraction(rows), Fraction(entries), books + codes)
    return math.ceil(load + (tiles - 1) * middle + max(Fraction(rows), codes))


def image_bound(matrix: QetShape, image: ImageShape) -> int:
    """``gemv_bound`` of a matrix as its image has it, in whole words of memory."""
    entries = sum(stage.entries for stage in matrix.stages)
    books, rows = image.book_words(entries), image.row_words(matrix.rows)
    return gemv_bound(matrix.rows, matrix.tiles, Fraction(books), Fraction(rows), entries)


def gemv_fill(latency: int, ahead: int, words: int) -> int:
    """Cycles of a job that its bound leaves out: the pipelines, and the first word of memory.

    Rows are read ahead before the first codebooks are there: ``ahead`` words, or all ``words``.
    """
    return _GEMV_PIPELINE + latency + min(ahead, words)


def gemv_cycles(bound: int, latency: int, ahead: int, words: int) -> int:
    """The most cycles of a job that is alone: ``bound`` of its image, and the fill.

    A job of few rows takes less: its first codebooks come with the rows that are read ahead.
    """
    return bound + gemv_fill(latency, ahead, words)
