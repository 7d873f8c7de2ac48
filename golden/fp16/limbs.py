"""Exact integers beyond 63 bits, as two limbs of int64 tensors, any device."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from golden.fp16.ops import LIMB_BITS


class Limbs(NamedTuple):
    """``high * 2**LIMB_BITS + low``, with 0 <= low < 2**LIMB_BITS."""

    high: Tensor
    low: Tensor

    def shifted(self, places: int) -> "Limbs":
        """``self * 2**places``, 0 <= places <= LIMB_BITS; the high limb must have room."""
        return from_shifted([(self.low, places)], Limbs(self.high << places, self.low * 0))

    def plus(self, other: "Limbs") -> "Limbs":
        return from_shifted([(other.low, 0)], Limbs(self.high + other.high, self.low))

    def integers(self) -> list[int]:
        """The elements as Python's integers, in C order."""
        pairs = zip(self.high.flatten().tolist(), self.low.flatten().tolist(), strict=True)
        return [(high << LIMB_BITS) + low for high, low in pairs]


def from_shifted(terms: Iterable[tuple[Tensor, int]], start: Limbs | None = None) -> Limbs:
    """Sum of ``value * 2**shift`` of int64 values, and of ``start``; shifts in 0..LIMB_BITS."""
    total = start
    for value, shift in terms:
        rest = LIMB_BITS - shift
        term = Limbs(value >> rest, (value & ((1 << rest) - 1)) << shift)
        if total is None:
            total = term
            continue
        low = total.low + term.low
        carry = low >> LIMB_BITS
        total = Limbs(total.high + term.high + carry, low - (carry << LIMB_BITS))
    assert total is not None
    return Limbs(*torch.broadcast_tensors(*total))
