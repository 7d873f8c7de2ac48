"""Simpler codes of K and V that Oaken is measured against: values or words, and their bits.

Min and step are FP16 words as in golden.oaken.quantize, but the quotients are taken in float64:
these are yardsticks of accuracy, not hardware. bits: stored per element, Min and step counted.
"""

import dataclasses

import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits

__all__ = [
    "Restored",
    "fp16",
    "kivi",
    "kivi_keys",
    "kivi_values",
    "uniform",
    "uniform_grid",
]

_SCALES = 32  # bits of two FP16 words
GROUP = 32  # KIVI: tokens of a K group, channels of a V group


@dataclasses.dataclass(frozen=True)
class Restored:
    """x: (T, D) FP16 words; bits: stored per element."""

    x: Tensor
    bits: float


def fp16(x: Tensor) -> Restored:
    return Restored(x=x, bits=16.0)


def uniform_grid(value: Tensor, bits: int, dim: int) -> Tensor:
    """Min + q * step along one axis, both rounded to FP16; in the type of the values."""

    def rounded(x: Tensor) -> Tensor:
        return float_from_bits(bits_from_float(x)).to(value.dtype)

    low, high = value.amin(dim, keepdim=True), value.amax(dim, keepdim=True)
    low = rounded(low)
    step = rounded((high - low) / ((1 << bits) - 1))
    q = torch.where(step > 0, torch.round((value - low) / torch.where(step > 0, step, 1)), 0)
    return low + q.clamp(0, (1 << bits) - 1) * step


def uniform(x: Tensor, bits: int) -> Restored:
    """Every token on its own grid between its smallest and largest element; no groups."""
    back = uniform_grid(float_from_bits(x), bits, -1)
    return Restored(x=bits_from_float(back), bits=bits + _SCALES / x.shape[-1])


def kivi_keys(x: Tensor, bits: int, group: int) -> tuple[Tensor, float]:
    """(x', bits) of (B, T, D): every channel on its grid over ``group`` tokens.

    Tokens that do not fill a group stay in FP16.
    """
    tokens = x.shape[1]
    whole = tokens // group * group
    groups = x[:, :whole].unflatten(1, (-1, group)) if whole else x.new_zeros(0)
    back = uniform_grid(groups, bits, 2).flatten(1, 2) if whole else x[:, :0]
    share = whole / tokens
    rest = x[:, whole:].half().to(x.dtype)
    return torch.cat([back, rest], 1), share * (bits + _SCALES / group) + (1 - share) * 16


def kivi_values(x: Tensor, bits: int, group: int) -> tuple[Tensor, float]:
    """(x', bits) of (B, T, D): every token on its grid over ``group`` channels; the last ragged."""
    parts = [uniform_grid(part, bits, -1) for part in x.split(group, -1)]
    return torch.cat(parts, -1), bits + _SCALES * len(parts) / x.shape[-1]


def kivi(x: Tensor, kv: int, bits: int = 4) -> Restored:
    """After KIVI: K per channel over 32 tokens, V per token over 32 channels.

    Tokens that do not fill a group stay in FP16, and count 16 bits. ``kv``: 0 for K.
    """
    value = float_from_bits(x)[None]
    if kv == 0:
        back, stored = kivi_keys(value, bits, GROUP)
    else:
        elements = x.shape[1]
        back, stored = kivi_values(value, bits, GROUP if elements % GROUP == 0 else elements)
    return Restored(x=bits_from_float(back[0]), bits=stored)
