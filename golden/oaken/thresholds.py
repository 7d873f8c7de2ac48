"""Offline thresholds, per layer and for K and V apart, for ``python -m golden.llm.oaken.profile``.

Per window of calibration text the boundaries are order statistics of all elements of all tokens:

    outer share a: the a/2 largest and the a/2 smallest values lie beyond it
    inner share b: the b/2 nearest to zero on each side lie within it

They are averaged over the windows and rounded to FP16. Then they move by as many words as it takes
to put them in order (docs/decisions/0061).
"""

import dataclasses
import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden.files import replacing
from golden.fp16.ops import bits_from_float
from golden.oaken.format import MAX_FINITE
from golden.oaken.groups import Ratios, check_intervals, thresholds_of

_FORMAT, _VERSION = "senbazuru oaken thresholds", 1
_SIGN = 0x8000
KV_NAMES = ("k", "v")


class ProfileError(ValueError):
    """A file of thresholds that cannot be used; one line says why."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """Boundaries: intervals (layers, 2, B, 2) FP16 words; K, V; outermost first; lower, upper.

    made: how, as plain strings and numbers; ``pre_rope``: K was taken before RoPE.
    """

    ratios: Ratios
    pre_rope: bool
    intervals: Tensor
    made: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.intervals.shape
        if len(shape) != 4 or shape[1:] != (2, self.ratios.intervals, 2):
            raise ProfileError(f"intervals (layers, 2, {self.ratios.intervals}, 2), not {shape}")
        for each in self.intervals.reshape(-1, *shape[2:]):
            check_intervals(each)

    @property
    def layers(self) -> int:
        return len(self.intervals)

    def thresholds(self, layer: int, kv: int) -> Tensor:
        """(4,) words in Threshold order; ThresholdsError with more than three groups."""
        return thresholds_of(self.intervals[layer, kv])

    def dump(self) -> str:
        """JSON, one line per layer and vector; words in hexadecimal."""
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "ratios": str(self.ratios),
            "k": "before RoPE" if self.pre_rope else "after RoPE",
            "words": "per layer, K then V: lower and upper bound, outermost first, FP16",
            "made": self.made,
        }
        text = json.dumps(header, indent=1)[:-2] + ',\n "intervals": [\n'
        rows = [
            json.dumps([[[f"{word:04x}" for word in pair] for pair in kv] for kv in layer])
            for layer in self.intervals.tolist()
        ]
        return text + ",\n".join(f"  {row}" for row in rows) + "\n ]\n}\n"

    def save(self, path: Path) -> None:
        with replacing(Path(path)) as part:
            part.write_text(self.dump())

    @classmethod
    def load(cls, path: Path) -> "Profile":
        """ProfileError in one line: no such file, another format, or words out of order."""
        try:
            found = json.loads(Path(path).read_text())
        except OSError as error:
            raise ProfileError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise ProfileError(f"{path} is not JSON") from None
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise ProfileError(f"{path} holds no Oaken thresholds")
        if found.get("version") != _VERSION:
            raise ProfileError(f"{path} has version {found.get('version')}, not {_VERSION}")
        try:
            words = [
                [[[int(word, 16) for word in pair] for pair in kv] for kv in layer]
                for layer in found["intervals"]
            ]
            return cls(
                ratios=Ratios.parse(found["ratios"]),
                pre_rope={"before RoPE": True, "after RoPE": False}[found["k"]],
                intervals=torch.tensor(words, dtype=torch.int64),
                made=dict(found["made"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProfileError(f"{path} is damaged: {error}") from None


def boundaries(x: Tensor, ratios: Ratios) -> Tensor:
    """(B, 2) float64 bounds (lower, upper) of one window's values, any shape, outermost first.

    Outer intervals leave out n * share / 2 values at each end, cumulated from the outermost. Inner
    ones hold as many on each side of zero, cumulated from the innermost. Ties are not broken.
    """
    values = x.detach().double().flatten().sort().values
    n = len(values)
    negative = int((values < 0).sum())
    positive = int((values > 0).sum())
    bounds = []
    for i in range(len(ratios.outer)):
        k = min(round(n * sum(ratios.outer[: i + 1]) / 2), n - 1)
        bounds.append((values[k], values[n - 1 - k]))
    for i in range(len(ratios.inner)):
        share: Fraction = sum(ratios.inner[i:], Fraction(0))
        k = round(n * share / 2)
        zero = torch.zeros((), dtype=torch.float64, device=values.device)
        below, above = min(k, negative), min(k, positive)
        low = values[negative - below] if below else zero
        high = values[n - positive + above - 1] if above else zero
        bounds.append((low, high))
    if not bounds:
        return torch.zeros((0, 2), dtype=torch.float64)
    return torch.stack([torch.stack(pair) for pair in bounds]).cpu()


def ordered(bounds: Tensor, ratios: Ratios) -> Tensor:
    """(B, 2) FP16 words of real bounds, in order: each rounded, then moved as little as possible.

    Lower bounds are at most 0, upper ones at least 0, and each lies strictly beyond the next. The
    empty outer or inner interval of fewer groups is added; of two inner groups the inner one's
    interval encloses zero strictly. Real numbers may be of any size.
    """
    rows = bounds.double().clone()
    rows[:, 0].clamp_(max=0)
    rows[:, 1].clamp_(min=0)
    magnitude = bits_from_float(rows.abs().clamp(max=65504)).tolist()
    if not ratios.outer:
        magnitude.insert(0, [MAX_FINITE, MAX_FINITE])
    if not ratios.inner:
        magnitude.append([0, 0])
    for side in (0, 1):
        column = [row[side] for row in magnitude]
        if len(ratios.inner) > 1:  # its last boundary is one that a group is shifted by
            column[-1] = max(column[-1], 1)
        for i in range(len(column) - 2, -1, -1):
            column[i] = max(column[i], column[i + 1] + 1)
        for i in range(len(column)):  # from the top, should that have gone beyond it
            column[i] = min(column[i], MAX_FINITE - i)
        for row, word in zip(magnitude, column, strict=True):
            row[side] = word
    return torch.tensor([[low | (_SIGN if low else 0), high] for low, high in magnitude])


def window_bounds(layers: list[tuple[Tensor, Tensor]], ratios: Ratios) -> Tensor:
    """(layers, 2, B, 2) float64 bounds of one window's (K, V); ProfileError: not finite."""
    if not all(bool(x.isfinite().all()) for pair in layers for x in pair):
        raise ProfileError("K or V of a calibration window is not finite")
    return torch.stack([torch.stack([boundaries(x, ratios) for x in pair]) for pair in layers])


def intervals_of(bounds: list[Tensor], ratios: Ratios) -> Tensor:
    """(layers, 2, B, 2) FP16 words: bounds averaged over windows, in order; ProfileError: none."""
    if not bounds:
        raise ProfileError("no calibration window")
    mean = sum(bounds[1:], bounds[0]) / len(bounds)
    words = [[ordered(each, ratios) for each in layer] for layer in mean]
    return torch.stack([torch.stack(layer) for layer in words])


def profile_kv(
    captured: Iterable[list[tuple[Tensor, Tensor]]],
    ratios: Ratios,
    pre_rope: bool = False,
    made: dict[str, Any] | None = None,
) -> Profile:
    """Profiles the (K, V) of every layer, window by window; ProfileError: none, or not finite."""
    bounds = [window_bounds(layers, ratios) for layers in captured]
    return Profile(
        ratios=ratios,
        pre_rope=pre_rope,
        intervals=intervals_of(bounds, ratios),
        made={"windows": len(bounds), **(made or {})},
    )
