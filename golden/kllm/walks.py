"""The walks of the matmul engine: rows, entries, outliers, descriptors, jobs that they visit.

A walk has three loops: for groups, for tokens, for rows or words or beats. Words are integers.
``golden.kllm.machine.Machine`` is the whole engine.
"""

import dataclasses
from collections.abc import Sequence

from golden.fp16.format import FP16
from golden.kllm.isa import ROW_ELEMENTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowWork:
    """Words of rows: ``words`` words of each token, in ``rows`` rows from src + t * stride on."""

    src: int
    stride: int
    groups: int
    tokens: int
    rows: int
    words: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatmulWork:
    """A MATMUL that runs: jobs for groups, for tokens."""

    slot: int
    tokens: int
    groups: int
    length: int
    rows: int  # of a token
    beats: int  # of a token
    direct: int
    integer: int
    void: int = 0  # zeros only, to take weights that have no use


@dataclasses.dataclass(frozen=True, kw_only=True)
class Front:
    """The rows that a running command still writes, ``next`` to ``end`` - 1. valid: as it says."""

    valid: int
    next: int
    end: int


def is_held(front: Front, row: int) -> bool:
    """Whether a request for ``row`` waits."""
    return bool(front.valid) and front.next <= row < front.end


def gathered_rows(words: Sequence[int]) -> list[list[int]]:
    """Rows of ROW_ELEMENTS words; a row that is not complete stays inside."""
    complete = len(words) // ROW_ELEMENTS
    return [list(words[ROW_ELEMENTS * n : ROW_ELEMENTS * (n + 1)]) for n in range(complete)]


def row_requests(work: RowWork) -> list[int]:
    """Rows of the vector memory, in the order in which they are read."""
    return [
        work.src + t * work.stride + row & 0xFFFF
        for _ in range(work.groups)
        for t in range(work.tokens)
        for row in range(work.rows)
    ]


def row_words(work: RowWork, memory: Sequence[Sequence[int]]) -> list[tuple[int, bool]]:
    """(word, last of its token) of each word of the walk."""
    found = []
    for first in row_requests(work)[:: work.rows]:
        for n in range(work.words):
            row = memory[first + n // ROW_ELEMENTS & 0xFFFF]
            found.append((row[n % ROW_ELEMENTS], n == work.words - 1))
    return found


def walk_slots(first: int, tokens: int) -> list[int]:
    """Slots first .. first + tokens - 1."""
    return [first + t & 0xFF for t in range(tokens)]


def outlier_places(counts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(slot, position) of each outlier of the (outliers, slot) ``counts``."""
    return [(slot, n) for outliers, slot in counts for n in range(outliers)]


def entry_requests(work: MatmulWork) -> list[tuple[int, int]]:
    """(slot, row) of each row of entries that is read; none if direct or void."""
    if work.direct or work.void:
        return []
    return [
        (slot, row)
        for _ in range(work.groups)
        for slot in walk_slots(work.slot, work.tokens)
        for row in range(work.rows)
    ]


def entry_beats(work: MatmulWork, slots, elements: int) -> list[tuple[list[int], int, bool]]:
    """(values, outlier mask, last of its job) of each beat of ``elements`` elements.

    slots[slot][row] is (values, mask) of ROW_ELEMENTS entries. Elements beyond the length keep
    their values. Their mask bits are 0. Direct work has zeros, each of them an outlier. Void work
    has zeros too. Integers and void work have no outliers.
    """
    found = []
    for slot in walk_slots(work.slot, work.tokens) * work.groups:
        for beat in range(work.beats):
            row, part = divmod(beat * elements, ROW_ELEMENTS)
            values, mask = [0] * elements, (1 << elements) - 1
            if not work.direct and not work.void:
                values = list(slots[slot][row][0][part : part + elements])
                mask = slots[slot][row][1] >> part & mask
            if work.integer or work.void:
                mask = 0
            inside = min(elements, work.length - beat * elements)
            found.append((values, mask & (1 << inside) - 1, beat == work.beats - 1))
    return found


def job_words(work: MatmulWork, descriptors) -> list[dict]:
    """Fields of each job: length, outliers, scale, slot.

    descriptors[slot] has ``outliers`` and ``scale``. A direct job has scale 1.0, and each of its
    words is an outlier. A void job has scale 1.0 and no outliers.
    """
    one = FP16.bias << FP16.frac_bits
    found = []
    for slot in walk_slots(work.slot, work.tokens) * work.groups:
        outliers, scale = 0 if work.void else work.length, one
        if not work.direct and not work.void:
            outliers, scale = descriptors[slot]["outliers"], descriptors[slot]["scale"]
        found.append({"length": work.length, "outliers": outliers, "scale": scale, "slot": slot})
    return found
