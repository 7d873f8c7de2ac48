"""Simpler codes of K and V that Oaken is measured against: words in, words back, and their bits.

Min and step are FP16 words as in golden.oaken.quantize, but the quotients are taken in float64:
these are yardsticks of accuracy, not hardware. bits: stored per element, Min and step counted.
"""

import dataclasses

import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits

__all__ = ["Restored", "fp16", "kivi", "uniform", "uniform_grid"]

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
    return Restored(x=bits_from_float(back), bits=bits + 32 / x.shape[-1])


def kivi(x: Tensor, kv: int, bits: int = 4) -> Restored:
    """After KIVI: K per channel over 32 tokens, V per token over 32 channels.

    What does not fill a group of tokens stays in FP16, and counts 16 bits. ``kv``: 0 for K.
    """
    value = float_from_bits(x)
    tokens, elements = x.shape
    if kv == 0:
        whole = tokens // GROUP * GROUP
        groups = value[:whole].reshape(-1, GROUP, elements)
        back = torch.cat([uniform_grid(groups, bits, 1).reshape(whole, elements), value[whole:]])
        share = whole / tokens
        return Restored(
            x=bits_from_float(back), bits=share * (bits + 32 / GROUP) + (1 - share) * 16
        )
    group = GROUP if elements % GROUP == 0 else elements
    back = uniform_grid(value.reshape(tokens, -1, group), bits, -1).reshape(tokens, elements)
    return Restored(x=bits_from_float(back), bits=bits + 32 / group)
