"""The selecting lane: rows of products, one word of each selected per column.

    row[e][j] = P[a_e][j]            the row of element e, shared by all columns
    D[c] = sum over inliers e of row[e][w_ec]

A histogram groups the same terms by bin and weighs the bins afterwards. Both sums are exact, so the
selecting lane gives the bits of golden.kllm.blocks.dense_sums.

Integers are taken in digits of ``bits_a`` bits, the lowest first. The table then holds ``n *
C_V[j]`` in row n, and the sum of digit d counts ``2**(bits_a * d)`` times. Words are integers on
golden.kllm.format.product_grid or integer_grid.
"""

from collections.abc import Sequence

import torch

from golden.kllm.products import word_values

Rows = list[list[int]]  # [element][weight index]: integers on the grid of the table


def word_table(
    words: Sequence[int], bits_a: int, bits_b: int, product: str = "rounded"
) -> Rows:
    """Table [row][weight index] after a packet's words of products, or of centroids C_V.

    words: in -1..1; 2**(bits_a + bits_b) products in the order of
    golden.kllm.format.product_index, or 2**bits_b centroids. Row n of centroids is n times them.
    product: the format of the words (golden.kllm.products).
    """
    codes = 2**bits_b
    values = word_values(torch.tensor(words, dtype=torch.int64), product).tolist()
    if len(values) == codes:
        return [[n * value for value in values] for n in range(2**bits_a)]
    if len(values) != codes << bits_a:
        raise ValueError(f"words must be {codes} or {codes << bits_a}, not {len(values)}")
    return [values[at : at + codes] for at in range(0, len(values), codes)]


def look_up_rows(
    table: Rows, value: Sequence[int], inlier: Sequence[int], digits: int = 1
) -> list[Rows]:
    """The rows of each digit of one beat, the lowest digit first.

    table: of ``word_table``. value, inlier: of each element. An element that does not count has a
    row of zeros. digits: 1, or golden.kllm.format.integer_digits.
    """
    bits_a = (len(table) - 1).bit_length()
    zeros = [0] * len(table[0])
    return [
        [
            table[v >> bits_a * digit & len(table) - 1] if counts else zeros
            for v, counts in zip(value, inlier, strict=True)
        ]
        for digit in range(digits)
    ]


def column_sum(beats: Sequence[tuple[Rows, Sequence[int], int]], bits_a: int) -> int:
    """``sum over beats and elements of row[e][index_e] * 2**(bits_a * digit)``, exact.

    beats: (row, index, digit) of each beat of a packet, as a column meets them. A row may have the
    lower half of an antisymmetric one: word ``last - j`` is then the negated word j.
    """
    return sum(
        _word(row[e], j) << bits_a * digit
        for row, index, digit in beats
        for e, j in enumerate(index)
    )


def _word(row: Sequence[int], j: int) -> int:
    """Word j of a row; a row of an antisymmetric codebook has the lower half, as 2**n words."""
    return row[j] if j < len(row) else -row[2 * len(row) - 1 - j]
