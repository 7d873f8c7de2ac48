"""ARGMAX of the accelerator: the largest element of a vector that comes in pieces.

Words are FP16 bit patterns, int64. They are compared as numbers, so -0 equals +0. NaN is never the
largest. Of equal elements the one with the lowest id is taken, in whatever order the pieces come.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from golden.fp16.format import FP16

_MAGNITUDE = FP16.sign_bit - 1


class Best(NamedTuple):
    """The largest element so far; ``key`` orders elements as numbers."""

    key: int
    id: int


def keys(words: Tensor) -> Tensor:
    """Integers in the order of the numbers, 0 of both zeros; of NaN nothing that means anything."""
    magnitude = words & _MAGNITUDE
    return torch.where(words >= FP16.sign_bit, -magnitude, magnitude)


def fold(words: Tensor, first: int, held: Best | None = None) -> tuple[Best | None, bool]:
    """(best, whether an element is NaN) of ``held`` and (length,) words with ids from ``first`` on.

    None: no element was a number.
    """
    is_nan = (words & _MAGNITUDE) > FP16.infinity
    numbers = (~is_nan).nonzero()[:, 0]
    if len(numbers):
        key = keys(words[numbers])
        # The first of equal keys, whatever torch.argmax takes.
        place = int(numbers[(key == key.max()).nonzero()[0, 0]])
        found = Best(int(key.max()), first + place)
        if held is None or (found.key, -found.id) > (held.key, -held.id):
            held = found
    return held, bool(is_nan.any())
