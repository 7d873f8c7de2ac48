"""TOP_K of the accelerator: the best elements of a vector that comes in pieces, and a draw of one.

Words are FP16 bit patterns, int64. They are compared as numbers, so -0 equals +0. NaN is left out.
Of equal elements the one with the lower id is better, in whatever order the pieces come. A ``rank``
has both: the better element has the higher one, and no element has 0.

    bits 25..40   key: 2**15 plus the magnitude, or minus it: in the order of the numbers
    bits 0..24    2**25 - 1 - id

``draw`` chooses one of a list of ranks, the best first. The probability of an entry is its weight
over the sum of all weights, within 2**-32:

    d = best - entry       exact, on the grid 2**-24; an infinity counts as 2**16
    p = d * b              rounded down to 2**-16; b: the inverse temperature, see below
    w = 2**-p              of an interpolated table, times 2**31; 0 from p = 32 on

b is log2(e) / T as FP16, so that 2**-(d * b) is exp(-d / T). The table (``POWERS``) has 64 entries
and their steps. It differs from 2**-f by less than 2**-14, and w is rounded down. So an entry that
is more than 2**31 times less likely than the best one is never drawn. h = ``threefry(seed, 0,
position, 0)`` is the only random number: a draw depends on no other place, and needs no state. The
entry is the first one for which the weights up to its own exceed floor(h * sum / 2**32).
"""

from typing import Any

import torch
from torch import Tensor

from golden.fp16.format import FP16
from golden.kllm.engines import Sampling
from golden.kllm.format import (
    GRID_VALUE,
    ID_BITS,
    KEY_ZERO,
    PARITY,
    POWER_BITS,
    POWERS,
    ROTATIONS,
    STEP_BITS,
    WEIGHT_BITS,
    WEIGHT_POWERS,
)

_MAGNITUDE = FP16.sign_bit - 1
_WORD = (1 << 32) - 1
_IDS = (1 << ID_BITS) - 1
_HIDDEN = FP16.frac_bits


def keys(words: Tensor) -> Tensor:
    """Integers in the order of the numbers, 0 of both zeros; of NaN nothing that means anything."""
    magnitude = words & _MAGNITUDE
    return torch.where(words >= FP16.sign_bit, -magnitude, magnitude)


def ids(ranks: Tensor) -> Tensor:
    """The ids of elements."""
    return _IDS - (ranks & _IDS)


def fold(words: Tensor, first: int, k: int, held: Tensor) -> tuple[Tensor, bool]:
    """(ranks, whether an element is NaN): the k best of ``held`` and of (length,) words.

    first : id of word 0
    """
    is_nan = (words & _MAGNITUDE) > FP16.infinity
    ranks = (keys(words) + KEY_ZERO) << ID_BITS | _IDS - (first + torch.arange(len(words)))
    every = torch.cat((held, ranks[~is_nan]))
    return every.topk(min(k, len(every))).values, bool(is_nan.any())


def word_of(rank: int) -> int:
    """The FP16 word of a rank; +0 of both zeros and of no element."""
    key = (rank >> ID_BITS) - KEY_ZERO
    return key if key >= 0 else (FP16.sign_bit - key) % (1 << FP16.bits)


def threefry(key_0: Any, key_1: Any, counter_0: Any, counter_1: Any) -> tuple[Any, Any]:
    """Two words of 32 bits of Threefry-2x32 with 20 rounds; of integers, or of tensors of them.

    J. Salmon and others, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    key = (key_0, key_1, PARITY ^ key_0 ^ key_1)
    first, second = counter_0 + key[0] & _WORD, counter_1 + key[1] & _WORD
    for number in range(20):
        rotation = ROTATIONS[number % len(ROTATIONS)]
        first = first + second & _WORD
        second = (second << rotation | second >> 32 - rotation) & _WORD ^ first
        if number % 4 == 3:
            turn = number // 4 + 1
            first = first + key[turn % 3] & _WORD
            second = second + key[(turn + 1) % 3] + turn & _WORD
    return first, second


def values(ranks: Tensor) -> Tensor:
    """The numbers of ranks, in units of 2**-24."""
    key = (ranks >> ID_BITS) - KEY_ZERO
    magnitude = key.abs()
    exponent = (magnitude >> _HIDDEN).clamp(min=1)
    fraction = magnitude & (1 << _HIDDEN) - 1
    hidden = (magnitude >> _HIDDEN > 0).long() << _HIDDEN
    return ((fraction | hidden) << exponent - 1) * key.sign()


def weights(ranks: Tensor, inverse_temperature: int) -> Tensor:
    """The weights of (..., k) ranks, the best first; 0 of a rank of 0."""
    magnitude = inverse_temperature & _MAGNITUDE
    exponent = magnitude >> _HIDDEN
    mantissa = magnitude & (1 << _HIDDEN) - 1 | (exponent > 0) << _HIDDEN
    value = values(ranks)
    power = (value[..., :1] - value) * mantissa >> GRID_VALUE + 25 - POWER_BITS - max(exponent, 1)
    whole, part = power >> POWER_BITS, power & (1 << POWER_BITS) - 1
    table = torch.tensor(POWERS)
    entry, rest = part >> STEP_BITS, part & (1 << STEP_BITS) - 1
    made = table[entry] - ((table[entry] - table[entry + 1]) * rest >> STEP_BITS)
    made = made << WEIGHT_BITS - POWER_BITS >> whole.clamp(max=WEIGHT_POWERS)
    return torch.where((whole < WEIGHT_POWERS) & (ranks > 0), made, 0)


def chosen(weight: Tensor, number: Tensor) -> Tensor:
    """Returns the index of (..., k) weights that each of (...) words of 32 bits chooses."""
    sums = weight.cumsum(-1)
    total = sums[..., -1]
    # In two halves: the product has up to 70 bits.
    at = number * (total >> 16) + (number * (total & 0xFFFF) >> 16) >> 16
    return (sums <= at[..., None]).sum(-1)


def draw(ranks: Tensor, sampling: Sampling, position: int) -> int:
    """The id that a place takes of its k best elements, the best first; one at least."""
    number, _ = threefry(sampling.seed, 0, position, 0)
    index = chosen(weights(ranks, sampling.inverse_temperature), torch.tensor(number))
    return int(ids(ranks[index]))
