"""The lane that dequantizes each vector, and the xor steps from each element to its multiplier.

Source: VQ-LLM, section VI-B, Algorithm 1 and Figure 12. A mini-group (a mini-warp of the paper) is
the lanes that own the pieces of a vector. Pure Python.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from golden.config import ConfigError
from golden.vqllm.config import ExchangeShape

_Word = TypeVar("_Word")
_WARP = 32


@dataclasses.dataclass(frozen=True)
class Layout:
    """The lane that multiplies each element: ``owner[vector][element]``, 0..lanes - 1."""

    lanes: int
    owner: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The exchange that Algorithm 1 finds.

    pieces : the elements of each piece of a vector
    groups : mini-groups: the lanes that own pieces 0, 1, ...
    offsets : of the steps: lane t exchanges with lane t ^ offset
    vector : of each round the vector that each lane dequantizes
    """

    pieces: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    vector: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        return len(self.offsets)

    def run(self, held: Sequence[Sequence[_Word]]) -> list[list[_Word]]:
        """Pieces after all steps, ``held[lane][piece]`` before: each step swaps in place.

        Afterwards lane ``group[i]`` has in place k piece i of the vector of lane ``group[k]``.
        """
        words = [list(lane) for lane in held]
        place = {lane: i for group in self.groups for i, lane in enumerate(group)}
        for offset in self.offsets:
            for lane in range(len(words)):
                other = lane ^ offset
                if lane < other:  # both ends of an exchange move in one step
                    mine, theirs = place[other], place[lane]
                    words[lane][mine], words[other][theirs] = (
                        words[other][theirs],
                        words[lane][mine],
                    )
        return words


def column_layout(shape: ExchangeShape, rows: int, columns: int) -> Layout:
    """Vectors of a matrix, row by row; lane l owns columns l * need + 0, 1, ... of each pass.

    A pass is ``lanes * need`` columns. ConfigError: columns are not whole vectors.
    """
    if columns % shape.size:
        raise ConfigError(f"columns must be a multiple of size = {shape.size}, not {columns}")
    owner = [column // shape.need % shape.lanes for column in range(columns)]
    row = [tuple(owner[k : k + shape.size]) for k in range(0, columns, shape.size)]
    return Layout(shape.lanes, tuple(row * rows))


def mma_layout(size: int, columns: int = 16) -> Layout:
    """16 rows of vectors as the fragments of a matrix A of mma.m16n8k16 hold them (Figure 12).

    Thread t has of row t // 4, and of that row + 8, columns 2 * (t % 4) and the one after it. Of
    each further 8 columns it has the same. ConfigError: columns are not whole vectors.
    """
    if columns % size:
        raise ConfigError(f"columns must be a multiple of size = {size}, not {columns}")

    def thread(row: int, column: int) -> int:
        return row % 8 * 4 + column % 8 // 2

    return Layout(
        _WARP,
        tuple(
            tuple(thread(row, first + k) for k in range(size))
            for row in range(16)
            for first in range(0, columns, size)
        ),
    )


def thread_mapping(layout: Layout) -> dict[tuple[int, ...], list[int]]:
    """Lines 1 to 9 of Algorithm 1: the owners of a vector's pieces -> the vectors that have them.

    ConfigError: an owner beyond the lanes, or owners of a vector with different shares.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for vector, owners in enumerate(layout.owner):
        for lane in owners:
            if not 0 <= lane < layout.lanes:
                raise ConfigError(f"owner must be 0..{layout.lanes - 1}, not {lane}")
        shares = sorted({owners.count(lane) for lane in owners})
        if len(shares) > 1:
            text = f"vector {vector}: each owner must have {shares[-1]} elements, not {shares[0]}"
            raise ConfigError(text)
        found.setdefault(tuple(dict.fromkeys(owners)), []).append(vector)
    return found


def exchange_of(layout: Layout) -> Exchange:
    """Algorithm 1: mini-groups, the vector of each lane, and the steps.

    ConfigError, in one line, where xor steps do not lead from whole vectors to this layout.
    """
    mapping = thread_mapping(layout)
    pieces = _pieces(layout)
    groups, count = list(mapping), len(pieces)
    if count & (count - 1):
        raise ConfigError(f"pieces of a vector must be a power of two, not {count}")
    lanes = sorted(lane for group in groups for lane in group)
    if lanes != list(range(layout.lanes)):
        lane = next(n for n in range(layout.lanes) if lanes.count(n) != 1)
        raise ConfigError(f"lane {lane} must be in one mini-group, not {lanes.count(lane)}")
    offsets = tuple(sorted(lane ^ groups[0][0] for lane in groups[0]))[1:]
    for group in groups:
        for lane in group:
            if {lane ^ other for other in group} != {0, *offsets}:
                text = f"lane {lane}: its mini-group must be at xor {_listed(offsets)}"
                raise ConfigError(f"{text}, not lanes {_listed(group)}")
    rounds, ragged = divmod(len(mapping[groups[0]]), count)
    for group, vectors in mapping.items():
        if ragged or len(vectors) != rounds * count:
            text = f"lanes {_listed(group)} must have {max(1, rounds) * count} vectors"
            raise ConfigError(f"{text}, not {len(vectors)}")
    vector = [[0] * layout.lanes for _ in range(rounds)]
    for group, vectors in mapping.items():
        for n, each in enumerate(vectors):  # lines 10 and 11
            vector[n // count][group[n % count]] = each
    return Exchange(pieces, tuple(groups), offsets, tuple(map(tuple, vector)))


def _pieces(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The elements that each owner of a vector has, owner by owner; of all vectors the same."""
    found: list[tuple[tuple[int, ...], ...]] = []
    for vector, owners in enumerate(layout.owner):
        found.append(
            tuple(
                tuple(k for k, each in enumerate(owners) if each == lane)
                for lane in dict.fromkeys(owners)
            )
        )
        if found[-1] != found[0]:
            raise ConfigError(f"vector {vector}: its pieces must be those of vector 0")
    return found[0]


def _listed(lanes: Sequence[int]) -> str:
    return ", ".join(map(str, lanes))


def _neighbours(pieces: int, lanes: int) -> Exchange:
    """Mini-groups of neighbouring lanes, for one piece of each vector at a time."""
    shape = ExchangeShape(size=pieces, need=1, lanes=lanes)
    return exchange_of(column_layout(shape, pieces, lanes))


def lane_order(columns: int, shape: ExchangeShape) -> list[int]:
    """The element of x that each product meets, word by word; -1: none, beyond the last column.

    A word of ``lanes * need`` elements meets a beat of ``exchanged``. The words of a beat of
    vectors follow each other, and a beat that is not full has as many.
    """
    size, need, pieces = shape.size, shape.need, shape.pieces
    beat = shape.lanes * size
    found = []
    for first in range(0, columns, beat):
        for vector in range(pieces):
            for lane in range(shape.lanes):
                group, i = divmod(lane, pieces)
                at = first + (group * pieces + vector) * size + i * need
                found += [k if k < columns else -1 for k in range(at, at + need)]
    return found


def in_lanes(x: Sequence[int], shape: ExchangeShape) -> list[int]:
    """Words x of all columns in ``lane_order``, 0 where there is none."""
    return [x[k] if k >= 0 else 0 for k in lane_order(len(x), shape)]


def exchanged(vectors: Sequence[Sequence[_Word]], need: int) -> list[list[list[_Word]]]:
    """The beats of ``vq_exchange`` for one beat of vectors: (pieces, lanes, need).

    Beat k has vector k of every mini-group: lane i of a mini-group has its piece i.
    """
    pieces, lanes = len(vectors[0]) // need, len(vectors)
    held = [[list(vector[n * need : (n + 1) * need]) for n in range(pieces)] for vector in vectors]
    words = _neighbours(pieces, lanes).run(held)
    return [[words[lane][k] for lane in range(lanes)] for k in range(pieces)]
