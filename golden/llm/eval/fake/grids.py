"""Simpler codes of K and V that Oaken is measured against: values and their bits.

Min and step are FP16 words as in golden.oaken.quantize, but the quotients are taken in float64:
these are yardsticks of accuracy, not hardware. bits: stored per element, Min and step counted.
"""

import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits

_SCALES = 32  # bits of two FP16 words


def uniform_grid(value: Tensor, bits: int, dim: int) -> Tensor:
    """Min + q * step along one axis, both rounded to FP16; in the type of the values."""

    def rounded(x: Tensor) -> Tensor:
        return float_from_bits(bits_from_float(x)).to(value.dtype)

    low, high = value.amin(dim, keepdim=True), value.amax(dim, keepdim=True)
    low = rounded(low)
    step = rounded((high - low) / ((1 << bits) - 1))
    q = torch.where(step > 0, torch.round((value - low) / torch.where(step > 0, step, 1)), 0)
    return low + q.clamp(0, (1 << bits) - 1) * step


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
