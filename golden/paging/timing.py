"""Timing of the paged memory's blocks, as functions of their numbers."""

from golden.paging.config import RecordShape
from golden.timing import Timing


def page_table_cycles(
    op: str, slots: int, *, extended: int = 0, freed: int = 0, walked: int | None = None
) -> int:
    """Cycles from a command that succeeds to its answer; a refused one takes no longer.

    ``extended``: slots that an ABORT gives back. ``freed``: pages that a TRIM_STREAM gives back;
    where one page is left, it takes 2 cycles less than this. ``walked``: None in a table without
    forks. Else the pages that a FREE_STREAM lets go or a FORK_STREAM shares.
    """
    fixed = {"READ": 5, "TRIM_CHECK": 3, "BEGIN": 3, "EXTEND": 3, "FREE_STREAM": 3}
    by_size = {"COMMIT": 2 + slots, "ABORT": 2 + extended, "TRIM_STREAM": 5 + 2 * freed}
    by_walk = {}
    if walked is not None:
        by_walk = {"NEXT": 3, "FREE_STREAM": 3 + walked, "FORK_STREAM": 3 + max(walked, 1)}
    return (fixed | by_size | by_walk).get(op, 2)


def mmu(kv: RecordShape, beats: tuple[int, ...]) -> Timing:
    """The timing of the MMU without the latency of the memory.

    A queue of more than 32 words is a RAM, a cycle slower.

    The READ waits for the look-ups of all records that the vector has once. One of a fixed kind, or
    else the sequence's start, gives the number of tokens.
    """
    first = (*kv.per_vector, *kv.per_head)[0]
    is_counted = any(kind.is_fixed for kind in kv.per_vector)
    has_fixed = any(kind.is_fixed for kind in kv.per_head)
    looks = len(kv.per_vector) + (not is_counted and (has_fixed or not kv.per_vector))
    latency = 15 + 6 * (looks - 1)
    if not is_counted and not has_fixed:
        latency += 3
    if first in kv.per_head:
        latency += 7  # its own look-up
    if beats[kv.kinds.index(first)] > 32:
        latency += 1
    return Timing(latency=latency, start="a READ", end=f"its first word of {first.name}")
