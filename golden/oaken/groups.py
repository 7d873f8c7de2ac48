"""Two to five groups, to compare accuracy: what comes back, not how it is stored.

``Ratios`` are the shares of the groups by falling magnitude: outer groups, the middle group, inner
groups, as in the paper's Table 3. Boundaries are nested intervals, the outermost first: a value
beyond interval 0 is in group 0, one within the last in the last group. There are always one
interval on either side of the middle group: (-65504, 65504) without outer groups, (0, 0) without
inner ones.

``restore`` follows golden.oaken.quantize in every rounding and equals it bit for bit where there
are one outer and one inner group. Groups beyond these are coded as the outer one is: distance from
their boundary towards zero, sign and magnitude, one step per side. ``restore_artifact`` is the
paper's Eq. 4 read literally: one scale for both sides, and the decoder is told the side.
"""

import dataclasses
import itertools
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.oaken.format import MAX_FINITE, SCALE_BYTES
from golden.oaken.quantize import (
    Encoded,
    ThresholdsError,
    check_thresholds,
    codes,
    decode,
    decompose,
    scales,
)

_LOWEST, _HIGHEST = FP16.sign_bit | MAX_FINITE, MAX_FINITE


@dataclasses.dataclass(frozen=True)
class Ratios:
    """Shares of the groups, adding up to 1: outer ones from the outermost, inner ones inwards."""

    outer: tuple[Fraction, ...] = (Fraction(4, 100),)
    inner: tuple[Fraction, ...] = (Fraction(6, 100),)

    def __post_init__(self) -> None:
        if not 2 <= self.groups <= 5 or len(self.outer) > 2 or len(self.inner) > 2:
            raise ConfigError(f"ratios must name 2 to 5 groups, at most 2 a side, not {self}")
        if min(*self.outer, *self.inner, self.middle) <= 0:
            raise ConfigError(f"every group needs a share, not {self}")

    @classmethod
    def parse(cls, text: str) -> "Ratios":
        """Percentages from the outermost group to the innermost: "4/90/6", "10/90", "90/10".

        The largest is the middle group. ConfigError.
        """
        try:
            shares = [Fraction(part.strip()) / 100 for part in text.split("/")]
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f"ratios must be percentages like 4/90/6, not {text!r}") from None
        if sum(shares) != 1:
            raise ConfigError(f"ratios must add up to 100, not {text!r}")
        middle = shares.index(max(shares))
        return cls(outer=tuple(shares[:middle]), inner=tuple(shares[middle + 1 :]))

    def __str__(self) -> str:
        shares = (*self.outer, self.middle, *self.inner)
        return "/".join(f"{float(100 * share):g}" for share in shares)

    @property
    def middle(self) -> Fraction:
        return 1 - self.outliers

    @property
    def outliers(self) -> Fraction:
        """f: all outer and inner groups."""
        return sum(self.outer, Fraction(0)) + sum(self.inner, Fraction(0))

    @property
    def groups(self) -> int:
        return len(self.outer) + 1 + len(self.inner)

    @property
    def intervals(self) -> int:
        """Boundaries, the two that empty groups need included."""
        return max(1, len(self.outer)) + max(1, len(self.inner))

    @property
    def middle_index(self) -> int:
        """The number of the middle group in ``group_index``."""
        return max(1, len(self.outer))

    def entry_bits(self, outlier_bits: int = 5) -> int:
        """Bits of a sparse entry: six of index, the group, the code beyond four bits; whole bytes.

        4 to 5 groups need 9 bits with five-bit outliers and take 16.
        """
        group_bits = (self.groups - 2).bit_length()
        return 8 * -(-(6 + group_bits + outlier_bits - 4) // 8)

    def paper_bits(self, outlier_bits: int = 5) -> float:
        """The paper's effective bits: neither counts nor scales."""
        return float(4 + self.entry_bits(outlier_bits) * self.outliers)

    def stored_bits(
        self, f: float | Fraction, elements: int, block: int = 64, outlier_bits: int = 5
    ) -> float:
        """Bits stored per element at f outliers: entries, counts, two words per group (>= 6).

        Equals golden.oaken.format.effective_bits up to three groups.
        """
        words = 8 * SCALE_BYTES // 3 * max(3, self.groups)
        counts = Fraction(8, block) + Fraction(words, elements)
        return float(4 + self.entry_bits(outlier_bits) * f + counts)


def check_intervals(intervals: Any) -> Tensor:
    """(B, 2) words (lower, upper) of nested boundaries, the outermost first; ThresholdsError.

    Each pair of neighbours must be valid thresholds; all but the last enclose zero strictly.
    """
    words = torch.as_tensor(intervals).to(torch.int64)
    if words.ndim != 2 or words.shape[1] != 2 or not 2 <= len(words) <= 4:
        raise ThresholdsError(f"2 to 4 pairs of words needed, not {tuple(words.shape)}")
    for outer, inner in itertools.pairwise(words):
        check_thresholds([outer[0], inner[0], inner[1], outer[1]])
    return words


def thresholds_of(intervals: Any) -> Tensor:
    """The four threshold words of two intervals."""
    words = check_intervals(intervals)
    if len(words) != 2:
        raise ThresholdsError(f"three groups at most have four thresholds, not {len(words) + 1}")
    return torch.stack([words[0, 0], words[1, 0], words[1, 1], words[0, 1]])


def group_index(x: Tensor, intervals: Any) -> Tensor:
    """Group of every word, 0 the outermost: Eq. 1 for any number of intervals."""
    value = float_from_bits(x)
    bounds = float_from_bits(check_intervals(intervals).to(x.device))
    outside = (value[..., None] < bounds[:, 0]) | (value[..., None] > bounds[:, 1])
    return len(bounds) - outside.sum(-1)


def _pass(x: Tensor, thresholds: list[Any], outlier_bits: int) -> Tensor:
    """Encoded and decoded by four thresholds."""
    y, group, _ = decompose(x, thresholds)
    scale = scales(y, group, outlier_bits)
    code, fifth = codes(y, group, scale, outlier_bits)
    return decode(Encoded(scale, code, group, fifth), thresholds)


def restore(x: Tensor, intervals: Any, middle_index: int = 1, outlier_bits: int = 5) -> Tensor:
    """x' of finite (T, D) FP16 words, group by group; middle_index as in ``Ratios``.

    A group never sees another's values. In its pass the values of other groups are 0, and zeros
    change neither its largest nor its smallest value. ThresholdsError: also where an inner group
    would be shifted by a boundary of 0.
    """
    words = check_intervals(intervals)
    index = group_index(x, words)
    restored = torch.zeros_like(x)
    for group in range(len(words) + 1):
        if group == len(words):
            low, high = words[-1].tolist()
            thresholds = [_LOWEST, low, high, _HIGHEST]
        elif group == middle_index:
            (outer_low, outer_high), (low, high) = words[group - 1 : group + 1].tolist()
            thresholds = [outer_low, low, high, outer_high]
        else:
            low, high = words[group].tolist()
            thresholds = [low, 0, 0, high]
        mine = index == group
        back = _pass(torch.where(mine, x, 0), thresholds, outlier_bits)
        restored = torch.where(mine, back, restored)
    return restored


def restore_artifact(
    x: Tensor,
    intervals: Any,
    middle_index: int = 1,
    outlier_bits: int = 5,
    whole: bool = False,
) -> Tensor:
    """x' of finite (T, D) FP16 words with one scale for both sides of a group, in float64.

    Q and its inverse by Eq. 2 and 3 on the shifted values of a group with zeros elsewhere. The
    shift is undone on the side of x. No record stores that side, so this is for comparison only.
    ``whole``: Min and Max of all but the last group over all tokens, not per token. Rounded once,
    to FP16.
    """
    words = check_intervals(intervals)
    index = group_index(x, words)
    bounds = float_from_bits(words.to(x.device))
    value = float_from_bits(x)
    restored = torch.zeros_like(value)
    for group in range(len(words) + 1):
        mine = index == group
        last = group == len(words)
        bits = 4 if group == middle_index else outlier_bits
        if last:
            shift = torch.zeros_like(value)
        else:
            shift = torch.where(value > 0, bounds[group, 1], bounds[group, 0])
        shifted = torch.where(mine, value - shift, 0)
        if whole and not last:
            low, high = shifted.amin(), shifted.amax()
        else:
            low, high = shifted.amin(-1, keepdim=True), shifted.amax(-1, keepdim=True)
        step = (high - low) / ((1 << bits) - 1)
        safe = torch.where(step > 0, step, 1)
        back = torch.round((shifted - low) / safe) * step + low + shift
        restored = torch.where(mine, back, restored)
    return bits_from_float(restored.clamp(-65504, 65504))
