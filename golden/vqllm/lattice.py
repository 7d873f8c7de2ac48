"""E8P, a codebook like QuiP#'s: 65,536 points of a lattice, of which 256 are stored.

A point is ``e * signs + 1/4`` or ``e * signs - 1/4`` in every element, e one of 256 vectors of 8
odd halves. An even number of signs is negative. So all points lie in E8 + 1/4.

| bits of a code | meaning |
|---|---|
| 15..8 | index of e |
| 7 | 1: add 1/4, 0: subtract it |
| 6..0 | bit i: element i changes its sign; element 7 does if an odd number of them do |

Stage z quantizes what the stages before it leave, in units of ``4**-z``. Nothing is trained.
Source: Tseng et al., QuiP#, 2024, section 4.2. Layout, padding and ties: docs/vqllm-lattice.md.
"""

import functools
import itertools

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, fixed_point, from_fixed
from golden.index.format import GRID_PRODUCT_ROUNDED
from golden.vqllm.config import (
    LATTICE_ENTRIES,
    LATTICE_EXPONENT,
    LATTICE_SHIFT_BIT,
    LATTICE_SIGN_BITS,
    LATTICE_STAGES,
    lattice_step,
)

SIZE = 8  # elements of a vector
_NORM = 10  # largest squared norm of the entries that are all taken
_GRID = 12  # an encoder sees its vector on the grid 2**-12
_LIMIT = 32.0  # and within -32..32, so that float32 holds every distance exactly
_CHUNK = 1 << 12  # vectors that an encoder takes at a time


def _shell(norm: int, largest: int) -> list[tuple[int, ...]]:
    """Vectors of odd numbers, in halves, up to ``largest``, of that squared norm; in order."""
    odd = range(1, largest + 1, 2)
    every = itertools.product(odd, repeat=SIZE)
    return [each for each in every if sum(k * k for k in each) == 4 * norm]


@functools.cache
def entries() -> Tensor:
    """The 256 entries in halves, (256, 8) int64.

    First come the 227 of squared norm 2, 4, 6, 8 and 10, then 29 of the 56 of norm 12 without 5/2.
    Those of one norm are in lexicographic order. Element 7 is negative where the sum of the
    magnitudes is odd, so that the sum of an entry is even.
    """
    found = [each for norm in range(2, _NORM + 1, 2) for each in _shell(norm, 5)]
    found += _shell(_NORM + 2, 3)[: LATTICE_ENTRIES - len(found)]
    halves = torch.tensor(found)
    odd = halves.sum(1) // 2 % 2 == 1
    halves[odd, -1] *= -1
    return halves


def codebook(stages: int) -> Tensor:
    """FP16 words of what is stored: (stages, 256, 8), entry of stage z times ``2**(-2 - 2 z)``."""
    halves = entries().double()
    scaled = [halves * 2.0 ** (-1 - LATTICE_EXPONENT - 2 * z) for z in range(stages)]
    return bits_from_float(torch.stack(scaled))


def _negative(codes: Tensor) -> Tensor:
    """Says which elements of the entry change their sign: (..., 8) of 0 and 1."""
    bits = codes[..., None] >> torch.arange(LATTICE_SIGN_BITS, device=codes.device) & 1
    return torch.cat((bits, bits.sum(-1, keepdim=True) & 1), -1)


def summed(stored: Tensor, codes: Tensor) -> Tensor:
    """``rne16(sum over stages of +-entry +- shift)``: (..., 8) words, the sum exact.

    stored: (..., stages, 8) words that the codes (..., stages) name. Words of ``codebook`` need no
    rounding: the sums are multiples of 2**-6 below 1.
    """
    sign = 1 - 2 * _negative(codes)
    stage = torch.arange(codes.shape[-1], device=codes.device)
    unit = lattice_step(0) - GRID_PRODUCT_ROUNDED
    shift = (codes >> LATTICE_SHIFT_BIT & 1) * 2 - 1 << unit - 2 * stage
    total = (fixed_point(stored) * sign + shift[..., None]).sum(-2)
    return from_fixed(total, GRID_PRODUCT_ROUNDED, FP16)


def points(codes: Tensor) -> Tensor:
    """The point of each code of one stage, in quarters: (...) to (..., 8) int64."""
    halves = entries().to(codes.device)[codes >> LATTICE_SHIFT_BIT + 1]
    shift = (codes >> LATTICE_SHIFT_BIT & 1) * 2 - 1
    return 2 * halves * (1 - 2 * _negative(codes)) + shift[..., None]


def decode(codes: Tensor) -> Tensor:
    """The sum of the points of all stages: codes (..., stages) to (..., 8) float64."""
    unit = 4.0 ** -torch.arange(1, codes.shape[-1] + 1, device=codes.device).double()
    return (points(codes) * unit[:, None]).sum(-2)


def encode(vectors: Tensor, stages: int = LATTICE_STAGES) -> Tensor:
    """Codes of real vectors (..., 8): (..., stages) int64. Equal distances give the lower code.

    Each stage takes the point nearest to what is left, of all 65,536 points. What is left is
    rounded to a multiple of 2**-12 first, and cut to -32..32. So distances are exact integers, and
    codes are the same on every device.
    ConfigError: vectors are not of 8 elements, or stages are out of range.
    """
    if vectors.shape[-1] != SIZE:
        raise ConfigError(f"vectors must have {SIZE} elements, not {vectors.shape[-1]}")
    if not 1 <= stages <= LATTICE_STAGES:
        raise ConfigError(f"stages must be 1..{LATTICE_STAGES}, not {stages}")
    left = (vectors.double() * 2.0**_GRID).round()
    codes = []
    for _ in range(stages):
        left = left.clamp(-_LIMIT * 2.0**_GRID, _LIMIT * 2.0**_GRID)
        flat = left.float().reshape(-1, SIZE)
        found = [_nearest(part) for part in flat.split(_CHUNK)]
        codes.append(torch.cat(found).reshape(left.shape[:-1]))
        left = 4 * (left - points(codes[-1]) * 2.0 ** (_GRID - 2))
    return torch.stack(codes, -1)


@functools.cache
def _places() -> Tensor:
    """Index of an entry by its magnitudes, digits of base 3 for 1/2, 3/2 and 5/2: (6561,) int64."""
    digits = (entries().abs() - 1) // 2
    table = torch.zeros(3**SIZE, dtype=torch.int64)
    table[digits @ _weights(3)] = torch.arange(LATTICE_ENTRIES)
    return table


def _weights(base: int) -> Tensor:
    """The weights of the digits of a number, the highest one first."""
    return base ** torch.arange(SIZE - 1, -1, -1)


# (elements above 1/2, elements of 5/2) of the entries that are all taken.
_KINDS = ((0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (4, 0), (2, 1))


def _nearest(left: Tensor) -> Tensor:
    """(n, 8) integers in float32, of unit 2**-12, to codes (n,).

    Of one shift and one entry the best signs are those of the vector. If their number is of the
    wrong parity, the element with the least product changes its sign. Entries up to norm 10 are all
    arrangements of their magnitudes, so the largest ones go where the vector is largest. Of equal
    elements the later one has the larger magnitude, which gives the lower index.
    """
    device = left.device
    padding = entries()[int((entries() ** 2).sum(1).le(4 * _NORM).sum()) :].to(device)
    first = LATTICE_ENTRIES - len(padding)
    large = torch.tensor([kind[0] for kind in _KINDS], device=device)
    largest = torch.tensor([kind[1] for kind in _KINDS], device=device)
    kind_norm = (8 + 8 * large + 16 * largest).float() / 4
    unit = 2.0 ** (_GRID + 1)  # of a distance
    sides = []
    for direction in (-1, 1):
        moved = left - direction * 2.0 ** (_GRID - 2)
        size = moved.abs()
        odd = (moved < 0).sum(1, keepdim=True) & 1
        ordered, order = size.sort(dim=1, stable=True)
        top = torch.nn.functional.pad(ordered.flip(1).cumsum(1), (1, 0))
        place = torch.nn.functional.pad(_weights(3).to(device)[order].flip(1).cumsum(1), (1, 0))
        product = top[:, -1:] + 2 * (top[:, large] + top[:, largest])
        wrong = (odd != (large - largest) & 1) * ordered[:, :1]
        distance = kind_norm * unit - 2 * product + 4 * wrong
        index = _places().to(device)[place[:, large] + place[:, largest]]

        magnitude = padding.abs().float()
        least = size[:, :1] * magnitude[:, 0]
        for i in range(1, SIZE):
            least = torch.minimum(least, size[:, i : i + 1] * magnitude[:, i])
        wrong = (odd != (padding < 0).any(1)) * least
        others = (_NORM + 2) * unit - 2 * (size @ magnitude.T) + 4 * wrong
        number = first + torch.arange(len(padding), device=device)

        distance = torch.cat((distance, others), 1) - direction * left.sum(1, keepdim=True)
        index = torch.cat((index, number.expand(len(left), -1)), 1)
        sides.append((distance.long() * LATTICE_ENTRIES + index) * 2 + (direction > 0))
    best = torch.cat(sides, 1).amin(1)
    up, entry = best & 1, best >> 1 & LATTICE_ENTRIES - 1

    # Signs: what it costs to change one of them. The entry itself has element 7 negative if odd.
    stored = entries().to(device)[entry]
    moved = left - (2 * up[:, None] - 1) * 2.0 ** (_GRID - 2)
    wrong = ((moved < 0).sum(1) & 1) != (stored < 0).any(1)
    weight = 1 << torch.arange(SIZE, device=device)
    signs = ((moved < 0) * weight).sum(1)
    cost = moved.abs() * stored.abs()
    cheapest = cost == cost.amin(1, keepdim=True)
    kept = (1 << LATTICE_SIGN_BITS) - 1
    changed = (signs[:, None] ^ weight) & kept
    lowest = torch.where(cheapest, changed, kept + 1).amin(1)
    signs = torch.where(wrong, lowest, signs & kept)
    return entry << LATTICE_SHIFT_BIT + 1 | up << LATTICE_SHIFT_BIT | signs
