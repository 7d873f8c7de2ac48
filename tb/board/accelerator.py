"""A KLLM accelerator at the pins of a board: its registers and memories by the bytes of a UART.

The host is the memory. A read address of a port comes as a word of a sink. The words of the burst
go back as words of a source. So a board needs no memory of its own, and all that the accelerator
reads and gives passes its pins.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from golden.axi.format import REGISTERS, RESP_OKAY
from golden.kllm.isa import COMMAND_WORDS
from golden.kllm.programs import Program
from synth.fpga.link import RESET, Link, ends_of
from tb.board.play import Line, Played

_READ = ("ar", "r")
_PATIENCE = 4_000_000  # cycles in which some byte must come


def fields_of(description: Mapping[str, Any], stream: str) -> dict[str, tuple[int, int]]:
    """Field of a stream's payload -> its lowest bit and its width."""
    ports = {port["name"]: port for port in description["ports"]}
    fields = ports[f"{stream}__payload"]["fields"]
    return {each["name"]: (each["offset"], each["width"]) for each in fields}


@dataclasses.dataclass
class ReadMemory:
    """The memory of an AXI4 port that only reads. ``content``: its bytes from address 0 on."""

    content: bytes
    ar: Mapping[str, tuple[int, int]]
    r: Mapping[str, tuple[int, int]]

    def burst(self, word: int) -> list[int]:
        """The payloads that answer a read address."""
        address, beats = (self._of(word, name) for name in ("addr", "len"))
        size = self.r["data"][1] // 8
        made = []
        for beat in range(beats + 1):
            first = address // size * size + beat * size
            data = int.from_bytes(self.content[first : first + size].ljust(size, b"\0"), "little")
            is_last = beat == beats
            parts = {"id": self._of(word, "id"), "data": data, "resp": RESP_OKAY, "last": is_last}
            made.append(sum(int(value) << self.r[name][0] for name, value in parts.items()))
        return made

    def _of(self, word: int, name: str) -> int:
        offset, width = self.ar[name]
        return word >> offset & (1 << width) - 1


class Accelerator:
    """Registers of the accelerator over ``line``; its memories are answered meanwhile."""

    def __init__(self, description: Mapping[str, Any], line: Line, memories: Mapping[str, bytes]):
        self.line, self.link = line, Link(ends_of(description))
        self.memories = {
            name: ReadMemory(content, *(fields_of(description, f"{name}__{n}") for n in _READ))
            for name, content in memories.items()
        }
        self.words = {
            name: fields_of(description, f"host__{name}") for name in ("aw", "w", "ar", "r", "b")
        }
        self.queues: dict[str, collections.deque[int]] = collections.defaultdict(collections.deque)
        self.busy: set[str] = set()
        self.got: dict[str, collections.deque[int]] = collections.defaultdict(collections.deque)
        line.send(bytes([RESET]))

    def write(self, register: str, word: int) -> int:
        """The answer of a write."""
        strobes = self.words["w"]["strb"]
        self._put("host__aw", REGISTERS[register].offset)
        self._put("host__w", word | ((1 << strobes[1]) - 1) << strobes[0])
        return self._take("host__b")

    def read(self, register: str) -> tuple[int, int]:
        """(word, answer) of a read."""
        self._put("host__ar", REGISTERS[register].offset)
        word, (offset, width) = self._take("host__r"), self.words["r"]["data"]
        return word >> offset & (1 << width) - 1, word >> self.words["r"]["resp"][0]

    def command(self, words: Sequence[int]) -> tuple[int, list[int]]:
        """The status of a command, and the words that a READ has given."""
        for word in words:
            if self.write("COMMAND", word) != RESP_OKAY:
                raise RuntimeError("the queue of commands refuses a word")
        readback: list[int] = []
        while True:
            levels, _ = self.read("LEVELS")
            if levels >> 31:
                readback.append(self.read("READBACK")[0])
            elif levels >> 16 & 0x7FFF:
                return self.read("STATUS")[0], readback

    def _put(self, source: str, word: int) -> None:
        self.queues[source].append(word)
        self._send()

    def _send(self) -> None:
        """Words of sources whose last word was taken."""
        for name, queue in self.queues.items():
            while queue and name not in self.busy:
                self.busy.add(name)
                self._feed(self.line.send(self.link.frame(name, queue.popleft())))

    def _feed(self, data: bytes) -> None:
        for kind, name, word in self.link.feed(data):
            if kind == "accepted":
                self.busy.discard(name)
            elif kind == "word":
                port, _, channel = name.rpartition("__")
                if port in self.memories and channel == "ar":
                    self.queues[f"{port}__r"].extend(self.memories[port].burst(word))
                else:
                    self.got[name].append(word)

    def _take(self, sink: str) -> int:
        while not self.got[sink]:
            data = self.line.receive(1, _PATIENCE)
            if not data:
                raise RuntimeError(f"{sink}: nothing for {_PATIENCE:,} cycles")
            self._feed(data)
            self._send()
        return self.got[sink].popleft()


def play_program(description: Mapping[str, Any], program: Program, line: Line) -> Played:
    """All commands of a program, one after the other; statuses and words of READ compared."""
    played = Played()
    memories = {"data": program.data.tobytes()}
    memories |= {f"weights_{n}": each.tobytes() for n, each in enumerate(program.weights)}
    device = Accelerator(description, line, memories)
    readback = list(program.readback)
    for number, result in enumerate(program.results):
        words = program.words[number * COMMAND_WORDS : (number + 1) * COMMAND_WORDS]
        status, got = device.command([int(word) for word in words])
        played.sent += len(words)
        played.note(f"status of command {number}", status, result.word)
        for word in got:
            played.note(f"READ of command {number}", word, int(readback.pop(0)))
    for word in readback:
        played.note("READ", None, int(word))
    return played
