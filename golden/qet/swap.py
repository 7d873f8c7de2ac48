"""Compare-swap of neighbours: the order that QET gives a matrix before its columns are grouped.

A level puts the smaller one of two neighbouring columns of a part into a part S and the larger one
into a part L. The map says 1 where the two were exchanged: the smaller one was on the right. Equal
elements stay. The parts after l levels are S...S, S...SL, up to L...L. Source: QET, section 3.2.

The order is that of the numbers, with -0 below +0: one strict order on words. So a map bit, and the
word that a swap gives, never depend on how the words are compared.
"""

import torch
from torch import Tensor

from golden.fp16.ops import total_order_key
from golden.qet.config import FORMATS, swap_bits


def keys(words: Tensor, bits: int) -> Tensor:
    """Integers in the order of the floating-point ``words`` of ``bits`` bits: int64."""
    return total_order_key(words, FORMATS[bits])


def swap(words: Tensor, levels: int, bits: int) -> tuple[Tensor, list[Tensor]]:
    """(n, d) words to parts (n, 2**levels, d / 2**levels) and the map of each level.

    The map of level k, from 0 on, is (n, 2**k, d / 2**(k + 1)) bool. d must be a multiple of
    2**levels.
    """
    parts, maps = words[:, None], []
    for _ in range(levels):
        left, right = parts.unflatten(2, (-1, 2)).unbind(-1)
        exchanged = keys(left, bits) > keys(right, bits)
        small = torch.where(exchanged, right, left)
        large = torch.where(exchanged, left, right)
        parts = torch.stack((small, large), 2).flatten(1, 2)
        maps.append(exchanged)
    return parts, maps


def unswap(parts: Tensor, maps: list[Tensor]) -> Tensor:
    """The inverse of ``swap``, of any values: parts (n, 2**levels, columns) to (n, d)."""
    for exchanged in reversed(maps):
        small, large = parts.unflatten(1, (-1, 2)).unbind(2)
        left = torch.where(exchanged, large, small)
        right = torch.where(exchanged, small, large)
        parts = torch.stack((left, right), -1).flatten(2)
    return parts[:, 0]


def order_of(levels: int, column: int) -> tuple[int, int]:
    """(part, column of the part) where a value lands that no level exchanges."""
    part = 0
    for _ in range(levels):
        part, column = 2 * part + column % 2, column // 2
    return part, column


def words_of_maps(maps: list[Tensor], rows: int, columns: int) -> Tensor:
    """The maps by network: (rows, networks, levels * 2**(levels - 1)) bool.

    A network is 2**levels neighbouring columns. Its bit ``k * 2**(levels - 1) + p * 2**(levels -
    1 - k) + j`` is that of level k, part p, and pair j of the network's own columns of the part.
    """
    levels = len(maps)
    networks = columns >> levels
    if not levels:
        return torch.zeros(rows, networks, 0, dtype=torch.bool)
    found = [
        exchanged.unflatten(2, (networks, -1)).transpose(1, 2).flatten(2) for exchanged in maps
    ]
    return torch.cat(found, 2)


def maps_of_words(words: Tensor, levels: int) -> list[Tensor]:
    """The inverse of ``words_of_maps``: (rows, networks, bits) to the map of each level."""
    if words.shape[2] != swap_bits(levels):
        raise ValueError(f"maps must have {swap_bits(levels)} bits, not {words.shape[2]}")
    maps = []
    for level, each in enumerate(words.split(1 << max(levels - 1, 0), 2) if levels else ()):
        maps.append(each.unflatten(2, (1 << level, -1)).transpose(1, 2).flatten(2))
    return maps
