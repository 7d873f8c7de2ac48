"""Bytes between a host and a block on a board. Pure Python, without input or output of its own.

A frame is a byte that says what it is, and payload bytes, the lowest first:

    to the board    k < 112          a word of source k, or a value of plain input k
                    RESET            resets the block; no payload
                    READ             asks for the plain outputs; no payload
    to the host     k < 112          a word of sink k
                    ACCEPTED + k     the block has taken the word of source k; no payload
                    READ             the plain outputs, in order, as one word

Sources come first, then plain inputs, each in the order of the block's JSON. A host sends a word to
a source when the one before is accepted, so nothing is lost. One word is 8 bits or a multiple.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

BAUD = 1_000_000
READ, RESET, ACCEPTED = 0x7E, 0x7F, 0x80
MOST = 112  # sources and plain inputs, and sinks


@dataclasses.dataclass(frozen=True)
class End:
    """A stream or a plain port of the block, as the board sees it.

    payload, valid, ready : names of its ports, or None; a plain port has a payload alone
    """

    name: str
    width: int
    payload: str | None
    valid: str | None = None
    ready: str | None = None
    is_stream: bool = True

    @property
    def bytes(self) -> int:
        return (self.width + 7) // 8 if self.payload else 0


@dataclasses.dataclass(frozen=True)
class Ends:
    """All ports of a block but clock and reset."""

    inputs: tuple[End, ...]  # sources, then plain inputs
    sinks: tuple[End, ...]
    outputs: tuple[End, ...]  # plain

    @property
    def output_bits(self) -> int:
        return sum(end.width for end in self.outputs)


def ends_of(description: Mapping[str, Any]) -> Ends:
    """The ends of a block from its JSON. ValueError: no input or no sink, or too many."""
    widths = {port["name"]: port["width"] for port in description["ports"]}
    sources: list[End] = []
    sinks: list[End] = []
    named: set[str | None] = set()
    for each in description["streams"]:
        ports = {end: each.get(end) for end in ("payload", "valid", "ready")}
        named |= set(ports.values())
        width = widths[ports["payload"]] if ports["payload"] else 0
        end = End(each["name"], width, **ports)
        (sources if each["direction"] == "input" else sinks).append(end)
    plain = [
        port
        for port in description["ports"]
        if port["name"] not in named and port["role"] not in ("clock", "reset")
    ]
    values: dict[str, list[End]] = {"input": [], "output": []}
    for port in plain:
        name = port["name"]
        values[port["direction"]].append(End(name, port["width"], name, is_stream=False))
    made = Ends((*sources, *values["input"]), tuple(sinks), tuple(values["output"]))
    if not 1 <= min(counts := (len(made.sinks), len(made.inputs))) <= max(counts) <= MOST:
        raise ValueError(
            f"{description['name']}: a board takes 1..{MOST} sinks and 1..{MOST} inputs, not "
            f"{len(made.sinks)} and {len(made.inputs)}"
        )
    return made


class Link:
    """The host's side of the frames."""

    def __init__(self, ends: Ends):
        self.ends = ends
        self._inputs = {end.name: number for number, end in enumerate(ends.inputs)}
        self._held = bytearray()

    def frame(self, name: str, word: int) -> bytes:
        """A word of a source, or the value of a plain input."""
        number = self._inputs[name]
        return bytes([number]) + word.to_bytes(self.ends.inputs[number].bytes, "little")

    def feed(self, data: bytes) -> Iterator[tuple[str, str, int]]:
        """Gives, of each whole frame, (``word``, sink, word), (``accepted``, source, 0), or
        (``outputs``, "", all of them).
        """
        self._held += data
        while self._held:
            kind = self._held[0]
            if kind >= ACCEPTED:
                size, found = 0, ("accepted", self.ends.inputs[kind - ACCEPTED].name)
            elif kind == READ:
                size, found = (self.ends.output_bits + 7) // 8, ("outputs", "")
            else:
                size, found = self.ends.sinks[kind].bytes, ("word", self.ends.sinks[kind].name)
            if len(self._held) <= size:
                return
            word = int.from_bytes(self._held[1 : 1 + size], "little")
            del self._held[: 1 + size]
            yield (*found, word)
