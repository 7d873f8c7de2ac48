"""RAMs as functions from a sequence of cycles to what their read port shows."""

from collections.abc import Iterable

UNKNOWN = None  # a word never written, or read while it was being written


def memory_1r1w(
    depth: int,
    lanes: int,
    lane_bits: int,
    cycles: Iterable[tuple[int, int, int, int, int]],
) -> list[int | None]:
    """``read_data`` after every cycle of (read_en, read_addr, write_en, write_addr, write_data).

    The word is UNKNOWN before the first read and when a lane of the word was never written. It is
    also UNKNOWN when the same cycle writes the word that it reads.
    """
    words: list[list[int | None]] = [[UNKNOWN] * lanes for _ in range(depth)]
    shown: int | None = UNKNOWN
    trace = []
    for read_en, read_addr, write_en, write_addr, write_data in cycles:
        if read_en:
            if write_en and write_addr == read_addr:
                shown = UNKNOWN
            else:
                shown = _whole(words[read_addr], lane_bits)
        for lane in range(lanes):
            if write_en >> lane & 1:
                mask = (1 << lane_bits) - 1
                words[write_addr][lane] = write_data >> (lane * lane_bits) & mask
        trace.append(shown)
    return trace


def memory_1rw(
    depth: int,
    lanes: int,
    lane_bits: int,
    cycles: Iterable[tuple[int, int, int, int, int]],
) -> list[int | None]:
    """``read_data`` after every cycle of (en, write, addr, write_lanes, write_data)."""
    return memory_1r1w(
        depth,
        lanes,
        lane_bits,
        (
            (en and not write, addr, write_lanes if en and write else 0, addr, write_data)
            for en, write, addr, write_lanes, write_data in cycles
        ),
    )


def memory_shared(
    writes: Iterable[tuple[int, int, int]], reads: Iterable[tuple[int, int]]
) -> list[int | None]:
    """Word of each read (cycle, address) after the writes (cycle, address, word) of earlier cycles.

    UNKNOWN where no earlier cycle wrote the address.
    """
    history: dict[int, list[tuple[int, int]]] = {}
    for cycle, address, word in sorted(writes):
        history.setdefault(address, []).append((cycle, word))
    answers = []
    for cycle, address in reads:
        earlier = [word for when, word in history.get(address, []) if when < cycle]
        answers.append(earlier[-1] if earlier else UNKNOWN)
    return answers


def _whole(lanes: list[int | None], lane_bits: int) -> int | None:
    word = 0
    for lane, value in enumerate(lanes):
        if value is None:
            return UNKNOWN
        word |= value << (lane * lane_bits)
    return word
