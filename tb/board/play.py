"""Golden words of a kit's episodes through a board's UART, and their answers compared.

The words are those of ``hdl.kit.rooms``, which no Verilog has made. A stream's next word goes when
the block has taken the one before. Words of all streams go in turn.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hdl.kit.episodes import Episode, Vectors
from synth.fpga.link import READ, RESET, Ends, Link, ends_of

SILENCE = 60_000  # cycles without a byte in which nothing more may come
_PATIENCE = 4_000_000  # cycles in which some byte must come


class Line(Protocol):
    """It moves bytes."""

    cycle: int

    def send(self, data: bytes) -> bytes: ...

    def receive(self, count: int, cycles: int) -> bytes: ...


@dataclasses.dataclass
class Played:
    """Words that went in, words that were compared, and those that differ."""

    sent: int = 0
    compared: int = 0
    differ: int = 0
    first: str = ""  # that differs

    def note(self, what: str, got: int | None, want: int, mask: int = -1) -> None:
        self.compared += 1
        if got is None or (got ^ want) & mask:
            self.differ += 1
            found = "nothing" if got is None else f"{got:#x}"
            self.first = self.first or f"{what}: got {found}, golden {want:#x}"


def check_playable(description: Mapping[str, Any], vectors: Vectors | None) -> None:
    """ValueError: the board has no memory for such a block, or there are no words for it."""
    name = description["name"]
    if vectors is None:
        raise ValueError(f"{name}: hdl.kit.rooms has no words for it")
    if vectors.memories:
        buses = ", ".join(memory.bus for memory in vectors.memories)
        raise ValueError(f"{name}: a board has no memory for {buses}")


def play(description: Mapping[str, Any], vectors: Vectors, line: Line) -> Played:
    """All episodes. ValueError: as ``check_playable``."""
    check_playable(description, vectors)
    ends, played = ends_of(description), Played()
    for episode in vectors.episodes:
        if episode.reset:
            line.send(bytes([RESET]))
        _play_episode(ends, episode, line, played)
    return played


def _play_episode(ends: Ends, episode: Episode, line: Line, played: Played) -> None:
    link = Link(ends)
    streams = [end.name for end in ends.inputs if end.is_stream]
    queues = {name: collections.deque(episode.words.get(name, ())) for name in streams}
    left = {end.name: len(episode.words.get(end.name, ())) for end in ends.sinks}
    got: dict[str, list[int]] = {end.name: [] for end in ends.sinks}
    free = set(streams)
    for name, value in episode.ports.items():
        line.send(link.frame(name, value))

    def take(data: bytes) -> None:
        for kind, name, word in link.feed(data):
            if kind == "accepted":
                free.add(name)
            elif kind == "word":
                got[name].append(word)
                left[name] -= 1

    while True:
        due = [name for name in streams if name in free and queues[name]]
        for name in due:
            free.discard(name)
            played.sent += 1
            take(line.send(link.frame(name, queues[name].popleft())))
        if due:
            continue
        waits = len(free) < len(streams) or any(queues.values())
        if not waits and not any(count > 0 for count in left.values()):
            break
        data = line.receive(1, _PATIENCE)
        if not data:
            break  # what is missing differs
        take(data)
    while data := line.receive(1, SILENCE):
        take(data)
    for end in ends.sinks:
        _compare(end.name, got[end.name], episode, played)
    if episode.outputs:
        _compare_outputs(ends, episode, line, link, played)


def _compare(name: str, got: Sequence[int], episode: Episode, played: Played) -> None:
    wanted = list(episode.words.get(name, ()))
    masks = list(episode.masks.get(name, [-1] * len(wanted)))
    for n in range(max(len(wanted), len(got))):
        what = f"{episode.name}: {name} {n}"
        if n >= len(wanted):
            played.note(f"{what}: a word too many", got[n], ~got[n])
        else:
            played.note(what, got[n] if n < len(got) else None, wanted[n], masks[n])


def _compare_outputs(
    ends: Ends, episode: Episode, line: Line, link: Link, played: Played
) -> None:
    data = line.send(bytes([READ]))
    data += line.receive(1 + (ends.output_bits + 7) // 8 - len(data), _PATIENCE)
    found = [word for kind, _, word in link.feed(data) if kind == "outputs"]
    at = 0
    for end in ends.outputs:
        if end.name in episode.outputs:
            got = found[0] >> at & (1 << end.width) - 1 if found else None
            played.note(f"{episode.name}: {end.name}", got, episode.outputs[end.name])
        at += end.width
