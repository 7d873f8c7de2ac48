"""AXI blocks as functions of words: time does not exist here. Pure Python integers."""

from collections import deque
from collections.abc import Callable, Sequence

from golden.axi.format import (
    CACHE_REGISTERS,
    COUNTERS,
    ID_WORD,
    PAGE_BYTES,
    REGISTERS,
    RESP_OKAY,
    RESP_SLVERR,
    levels_word,
)


def bursts(address: int, words: int, word_bytes: int, burst_beats: int) -> list[tuple[int, int]]:
    """(byte address, beats) of the bursts that move ``words`` words from ``address`` on.

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


def command_words(address: int, count: int, word_bytes: int) -> int:
    """Words of memory that ``count`` bytes from ``address`` on touch."""
    return -(-(address % word_bytes + count) // word_bytes) if count else 0


def write_packet(
    commands: Sequence[tuple[int, int]],
    words: Sequence[int],
    data_bits: int,
    address_bits: int,
) -> tuple[list[list[tuple[int, int]]], int]:
    """Writes one packet as the write port does: (address, byte) in order, per command; misfit.

    commands: (byte address, bytes) of the packet's commands, all but the last with ``more``.
    words: those of ``i`` up to ``last``, first byte in the low bits.

    A command writes the bytes of the packet in order. A command after one with ``more`` writes from
    a multiple of the word on. Its first byte is the packet's byte at the multiple of the word at
    which the previous command ended.
    Bytes beyond the packet's words are not written. The second result says whether the packet holds
    fewer or more words than the commands need. Commands of 0 bytes do nothing.
    """
    word_bytes = data_bits // 8
    stream = b"".join(word.to_bytes(word_bytes, "little") for word in words)
    written: list[list[tuple[int, int]]] = []
    at, asked = 0, 0  # the packet's byte that comes next; words needed up to here
    shift = 0  # from a byte's number to its place, counted from a multiple of the word
    is_begun = False
    for n, (address, count) in enumerate(commands):
        written.append([])
        if not count:
            continue
        if is_begun:
            address -= address % word_bytes
        else:
            shift, is_begun = address % word_bytes, True
        for k in range(count):
            if at + k < len(stream):
                written[-1].append(((address + k) % (1 << address_bits), stream[at + k]))
        at += count
        if n != len(commands) - 1:
            at += -(at + shift) % word_bytes
        asked = -(-at // word_bytes)
    return written, int(asked != len(words))


class RegisterModel:
    """The register file between bus accesses: what each answers, and what the queues hold.

    cache_depth : words of each queue of CACHE_REGISTERS; 0: there are no such registers
    counter : words of COUNTERS
    """

    def __init__(self, version: int, command_depth: int, cache_depth: int = 0):
        self.version, self.command_depth = version, command_depth
        self.counter = [0] * len(COUNTERS) if cache_depth else []
        self.request: deque[int] = deque()
        self.answer: deque[int] = deque()
        self.batch: deque[int] = deque()
        self.run: deque[int] = deque()
        self.result: deque[int] = deque()
        self.command: deque[int] = deque()
        self.status: deque[int] = deque()
        self.readback: deque[int] = deque()
        self.aborts = 0
        self.idle = 0
        # By offset: queues that the host writes, with their depths, and those that it reads.
        self._written = {REGISTERS["COMMAND"].offset: (self.command, command_depth)}
        self._read = {
            REGISTERS["STATUS"].offset: self.status,
            REGISTERS["READBACK"].offset: self.readback,
        }
        if cache_depth:
            written = {"REQUEST": self.request, "BATCH": self.batch, "RUN": self.run}
            for name, queue in written.items():
                self._written[CACHE_REGISTERS[name].offset] = queue, cache_depth
            self._read[CACHE_REGISTERS["ANSWER"].offset] = self.answer
            self._read[CACHE_REGISTERS["RESULT"].offset] = self.result

    def write(self, address: int, word: int, strobes: int = 0xF) -> int:
        """The response; ``address`` within the register file, its low two bits ignored."""
        offset = address & ~3
        if offset == REGISTERS["CONTROL"].offset:
            self.aborts += word & strobes & 1
            return RESP_OKAY
        if offset in self._written and strobes == 0xF:
            queue, depth = self._written[offset]
            if len(queue) < depth:
                queue.append(word)
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
        for name, word in zip(COUNTERS, self.counter, strict=False):
            plain[CACHE_REGISTERS[name].offset] = word
        if offset in plain:
            return plain[offset], RESP_OKAY
        if self._read.get(offset):
            return self._read[offset].popleft(), RESP_OKAY
        return 0, RESP_SLVERR
