"""What QET is compared with at equal memory: rounding to nearest, and product quantization.

The variants of the paper (section 4.1) are shapes of ``golden.qet.matrix``:

| name | levels | bits of an element of an entry |
|---|---|---|
| product quantization | 0 | those of the matrix |
| Vanilla | 3 | those of the matrix |
| Vanilla_RQO | 3, then 0 for the residual | those of the matrix |
| Vanilla_CQO | 3 | 10 |
| QET | 3, then 0 for the residual | 10 |
"""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from golden.config import Config, ConfigError
from golden.qet.config import Budget, QetShape, Stage

__all__ = ["SPANS", "VARIANTS", "Rounded", "Variant", "round_to_nearest"]

SPANS = ("matrix", "row", "group")
_SPAN_GROUP = 64  # elements of a row that share a range
_TWO = (Fraction(7, 10), Fraction(3, 10))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant(Config):
    """A method that is a shape: levels of each stage, and bits of an element of an entry."""

    levels: tuple[int, ...]
    entry_bits: int
    shares: tuple[Fraction, ...] = (Fraction(1),)

    def shape(self, rows: int, columns: int, bits: int, ratio: Fraction) -> QetShape:
        """With the largest codebooks at ``ratio``. ConfigError: none fits."""
        stages = tuple(Stage(levels=levels) for levels in self.levels)
        asked = QetShape(
            rows=rows,
            columns=columns,
            element_bits=bits,
            stages=stages,
            entry_bits=self.entry_bits,
        )
        return Budget(ratio=ratio, shares=self.shares).solve(asked)


VARIANTS: Mapping[str, Variant] = {
    "PQ": Variant(levels=(0,), entry_bits=0),
    "Vanilla": Variant(levels=(3,), entry_bits=0),
    "RQO": Variant(levels=(3, 0), entry_bits=0, shares=_TWO),
    "CQO": Variant(levels=(3,), entry_bits=10),
    "QET": Variant(levels=(3, 0), entry_bits=10, shares=_TWO),
}


@dataclasses.dataclass(frozen=True)
class Rounded:
    """matrix: float64; bits: of an element; stored_bits: with the ranges."""

    matrix: Tensor
    bits: int
    stored_bits: int


def round_to_nearest(matrix: Tensor, ratio: Fraction, span: str, element_bits: int) -> Rounded:
    """``low + step * round((x - low) / step)`` with the most bits per element that fit.

    A range takes two elements: the smallest and the largest one of the whole matrix, of a row, or
    of 64 neighbours of a row. ConfigError: not even one bit per element fits.
    """
    rows, columns = matrix.shape
    exact = matrix.double()
    if span == "matrix":
        parts = exact.flatten()[None, None]
    elif span == "row":
        parts = exact[:, None]
    else:
        width = -(-columns // _SPAN_GROUP) * _SPAN_GROUP
        last = exact[:, -1:].expand(-1, width - columns)
        parts = torch.cat((exact, last), 1).unflatten(1, (-1, _SPAN_GROUP))
    ranges = parts.shape[0] * parts.shape[1] * 2 * element_bits
    elements = rows * columns
    bits = int((Fraction(elements * element_bits) / ratio - ranges) / elements)
    if bits < 1:
        raise ConfigError(f"ratio must leave one bit per element beside the ranges, not {ratio}")
    bits = min(bits, element_bits)
    low, high = parts.amin(2, keepdim=True), parts.amax(2, keepdim=True)
    step = ((high - low) / (2**bits - 1)).clamp(min=1e-300)
    found = (low + step * ((parts - low) / step).round()).flatten(1)
    return Rounded(found.reshape(rows, -1)[:, :columns], bits, elements * bits + ranges)
