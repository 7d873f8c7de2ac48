"""AXI blocks as functions of words: time does not exist here. Pure Python integers."""

from collections import deque
from collections.abc import Callable

from golden.axi.format import (
    ID_WORD,
    PAGE_BYTES,
    REGISTERS,
    RESP_OKAY,
    RESP_SLVERR,
    levels_word,
)

__all__ = ["RegisterModel", "bursts", "read_words"]


def bursts(address: int, words: int, word_bytes: int, burst_beats: int) -> list[tuple[int, int]]:
    """(byte address, beats) of the bursts that read ``words`` words from ``address`` on.

    Each is as long as ``burst_beats``, the words left and the next multiple of 4 KiB allow.
    """
    found = []
    address -= address % word_bytes
    while words:
        beats = min(words, burst_beats, (PAGE_BYTES - address % PAGE_BYTES) // word_bytes)
        found.append((address, beats))
        address += beats * word_bytes
        words -= beats
    return found


def read_words(
    fetch: Callable[[int], tuple[int, int]],
    address: int,
    words: int,
    data_bits: int,
    address_bits: int,
) -> list[tuple[int, int, int]]:
    """(data, error, last) of every word of one command of the read port.

    fetch: byte address -> (word, AXI response); SLVERR and DECERR are errors. Addresses wrap at
    ``2**address_bits``.
    """
    word_bytes = data_bits // 8
    address -= address % word_bytes
    found = []
    for n in range(words):
        word, response = fetch((address + n * word_bytes) % (1 << address_bits))
        found.append((word, response >> 1 & 1, int(n == words - 1)))
    return found


class RegisterModel:
    """The register file between bus accesses: what each answers, and what the queues hold."""

    def __init__(self, version: int, command_depth: int):
        self.version, self.command_depth = version, command_depth
        self.command: deque[int] = deque()
        self.status: deque[int] = deque()
        self.readback: deque[int] = deque()
        self.aborts = 0
        self.idle = 0

    def write(self, address: int, word: int, strobes: int = 0xF) -> int:
        """The response; ``address`` within the register file, its low two bits ignored."""
        offset = address & ~3
        if offset == REGISTERS["CONTROL"].offset:
            self.aborts += word & strobes & 1
            return RESP_OKAY
        if (
            offset == REGISTERS["COMMAND"].offset
            and strobes == 0xF
            and len(self.command) < self.command_depth
        ):
            self.command.append(word)
            return RESP_OKAY
        return RESP_SLVERR

    def read(self, address: int) -> tuple[int, int]:
        """(word, response)."""
        offset = address & ~3
        plain = {
            REGISTERS["ID"].offset: ID_WORD,
            REGISTERS["VERSION"].offset: self.version,
            REGISTERS["CONTROL"].offset: self.idle << 1,
            REGISTERS["LEVELS"].offset: levels_word(
                self.command_depth - len(self.command), len(self.status), len(self.readback)
            ),
        }
        if offset in plain:
            return plain[offset], RESP_OKAY
        for name, queue in (("STATUS", self.status), ("READBACK", self.readback)):
            if offset == REGISTERS[name].offset and queue:
                return queue.popleft(), RESP_OKAY
        return 0, RESP_SLVERR
