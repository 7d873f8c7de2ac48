"""Weights of a lane of tables: bit planes of four elements, folded by symmetry. Pure Python."""

from collections.abc import Sequence

GROUP = 4  # elements of a table


def weight_value(code: int, bits: int) -> int:
    """``2 * code - (2**bits - 1)``: each bit of a code counts +1 or -1 at its place.

    code: 0..2**bits - 1. The values are the odd integers from ``1 - 2**bits`` to ``2**bits - 1``.
    """
    return 2 * code - (2**bits - 1)


def plane_words(codes: Sequence[int], bits: int) -> list[int]:
    """The words of four elements, one per bit plane, the lowest first.

    codes: of GROUP elements. A word has GROUP bits: the highest says that the sum is negated, the
    others are the index of its entry. A table holds the sums in which the last element counts
    positive. The other half has the same magnitudes. So the words hold this symmetry, once per
    model, and no column computes it.
    """
    words = []
    for place in range(bits):
        *others, last = (code >> place & 1 for code in codes)
        negated = 1 - last
        index = sum((bit ^ negated) << n for n, bit in enumerate(others))
        words.append(negated << GROUP - 1 | index)
    return words
