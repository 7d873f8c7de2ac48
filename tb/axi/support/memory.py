"""Memories inside the simulator that answer a port, and what it finds at each address.

``Memory`` answers reads by a function of the address. ``Ram`` answers reads and writes, starts
full of junk, and can be looked into.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable

from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import (
    BURST_INCR,
    CACHE_NORMAL,
    PAGE_BYTES,
    RESP_DECERR,
    RESP_OKAY,
    RESP_SLVERR,
)
from golden.words import layout_word
from tb.simulate.ports import Signal, stream_port


class Words:
    """Byte address -> (word, response): hashed words, ``errors`` of 256 of them with an error."""

    def __init__(self, data_bits: int, errors: int = 0, salt: str = ""):
        self.data_bits, self.errors, self.salt = data_bits, errors, salt

    def __call__(self, address: int) -> tuple[int, int]:
        digest = hashlib.shake_128(f"{self.salt}{address}".encode()).digest(130)
        word = int.from_bytes(digest[: self.data_bits // 8], "little")
        response = RESP_OKAY
        if digest[128] < self.errors:
            response = RESP_DECERR if digest[129] & 1 else RESP_SLVERR
        return word, response


class Memory:
    """Turns AR transfers of a read port into beats: ``beats`` is what the bench offers on R.

    The beats of a burst are offered at least ``latency`` cycles after its AR transfer. Runs
    concurrently with tb.bench.Bench and samples as it does. ``most`` is the largest number of
    bursts that were in flight at once, ``requests`` the AR payloads.
    """

    def __init__(self, dut, config, words: Words, latency: int = 1):
        self.dut, self.config, self.words, self.latency = dut, config, words, latency
        self.ar = config.read_signature.members["ar"].signature.members["payload"].shape
        self.r = config.read_signature.members["r"].signature.members["payload"].shape
        self.beats: list[int] = []
        self.requests: list[dict[str, int]] = []
        self.on_their_way = self.most = self.strays = 0

    def fields(self, word: int) -> dict[str, int]:
        return {name: word >> field.offset & (1 << field.width) - 1 for name, field in self.ar}

    def beat(self, **fields) -> int:
        return layout_word(self.r, **fields)

    def _burst(self, request: dict[str, int]) -> list[int]:
        beats = []
        for n in range(request["len"] + 1):
            data, resp = self.words(request["addr"] + (n << request["size"]))
            beats.append(
                self.beat(id=request["id"], data=data, resp=resp, last=n == request["len"])
            )
        return beats

    async def run(self) -> None:
        dut = self.dut
        ar, r, stray = stream_port(dut, "axi__ar"), stream_port(dut, "axi__r"), Signal(dut.stray)
        waiting: deque[tuple[int, list[int]]] = deque()
        cycle = 0
        while True:
            await ReadOnly()
            if ar[1].get() and ar[2].get():
                request = self.fields(ar[0].get())
                self.requests.append(request)
                waiting.append((cycle + self.latency - 1, self._burst(request)))
                self.on_their_way += 1
                self.most = max(self.most, self.on_their_way)
            if r[1].get() and r[2].get():
                last = self.r["last"].offset
                self.on_their_way -= r[0].get() >> last & 1
            self.strays += stray.get()
            while waiting and waiting[0][0] <= cycle:
                self.beats += waiting.popleft()[1]
            await FallingEdge(dut.clk)
            cycle += 1


class Ram:
    """A memory on an AXI4 member: junk at first, bytes written by their strobes.

    Runs concurrently with tb.bench.Bench and samples as it does. ``beats`` is what the bench offers
    on R, ``answers`` what it offers on B (both only grow; clear them between runs). A burst is
    answered at least ``latency`` cycles after its AR transfer or after the last of its AW and W
    transfers. It fails on a burst that crosses 4 KiB, and on WLAST at a wrong beat. It also fails
    on request fields other than full-width INCR with ID 0.

    bus: prefix of the ports, such as ``axi``
    signature: axi4, axi4_read or axi4_write
    errors: byte address of a word -> response; a word with SLVERR or DECERR reads as it is and is
        not written; a write burst has the highest response of its words
    writes: (address, data, strobes) of every W beat in order
    requests: (channel, address, beats) of every AR and AW
    most: the most bursts that were in flight at once, by channel
    """

    def __init__(
        self,
        dut,
        bus: str,
        signature,
        latency: int = 1,
        errors: Callable[[int], int] = lambda address: RESP_OKAY,
        salt: str = "",
    ):
        self.dut, self.bus, self.latency, self.errors, self.salt = dut, bus, latency, errors, salt
        self.word_bytes = signature.data_bits // 8
        self.address_bits = signature.address_bits
        self.shapes = {
            name: member.signature.members["payload"].shape
            for name, member in signature.members.items()
        }
        self._ports = {name: stream_port(dut, f"{bus}__{name}") for name in self.shapes}
        self._pages: dict[int, bytearray] = {}
        self.clear()

    def clear(self) -> None:
        """Forget transfers and bursts in flight, as after a reset; bytes stay."""
        self.beats: list[int] = []
        self.answers: list[int] = []
        self.writes: list[tuple[int, int, int]] = []
        self.requests: list[tuple[str, int, int]] = []
        self.most = {"ar": 0, "aw": 0}
        self._on_their_way = {"ar": 0, "aw": 0}
        self._aw: deque[tuple[int, int]] = deque()  # address, beats
        self._w: deque[dict[str, int]] = deque()  # beats without an AW
        self._waiting: dict[str, deque[tuple[int, list[int]]]] = {"r": deque(), "b": deque()}
        self._done = 0  # beats of the oldest AW that have come
        self._resp = RESP_OKAY

    def _page(self, address: int) -> bytearray:
        number = address // PAGE_BYTES
        if number not in self._pages:
            junk = hashlib.shake_128(f"{self.salt}{number}".encode()).digest(PAGE_BYTES)
            self._pages[number] = bytearray(junk)
        return self._pages[number]

    def __getitem__(self, address: int) -> int:
        return self._page(address)[address % PAGE_BYTES]

    def peek(self, address: int, count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            where = (address + len(content)) % (1 << self.address_bits)
            at = where % PAGE_BYTES
            content += self._page(where)[at : at + count - len(content)]
        return bytes(content)

    def poke(self, address: int, content: bytes) -> None:
        for k, byte in enumerate(content):
            where = (address + k) % (1 << self.address_bits)
            self._page(where)[where % PAGE_BYTES] = byte

    def _fields(self, channel: str, word: int) -> dict[str, int]:
        shape = self.shapes[channel]
        return {name: word >> field.offset & (1 << field.width) - 1 for name, field in shape}

    def _word(self, channel: str, **fields) -> int:
        return layout_word(self.shapes[channel], **fields)

    def _request(self, channel: str, word: int) -> tuple[int, int]:
        """(address, beats) of a transfer of AR or AW."""
        request = self._fields(channel, word)
        address, beats = request.pop("addr"), request.pop("len") + 1
        size = (self.word_bytes - 1).bit_length()
        assert request == {
            "id": 0, "size": size, "burst": BURST_INCR, "lock": 0, "cache": CACHE_NORMAL,
            "prot": 0, "qos": 0,
        }  # fmt: skip
        assert address % self.word_bytes == 0
        assert address % PAGE_BYTES + beats * self.word_bytes <= PAGE_BYTES, "4 KiB crossed"
        self.requests.append((channel, address, beats))
        self._on_their_way[channel] += 1
        self.most[channel] = max(self.most[channel], self._on_their_way[channel])
        return address, beats

    def _read_burst(self, address: int, beats: int) -> list[int]:
        words = []
        for n in range(beats):
            where = address + n * self.word_bytes
            data = int.from_bytes(self.peek(where, self.word_bytes), "little")
            resp, is_last = self.errors(where), n == beats - 1
            words.append(self._word("r", id=0, data=data, resp=resp, last=is_last))
        return words

    def _write_beats(self, cycle: int) -> None:
        while self._aw and self._w:
            (address, beats), beat = self._aw[0], self._w.popleft()
            where = address + self._done * self.word_bytes
            self._done += 1
            assert beat["last"] == (self._done == beats), f"WLAST at {where:#x}"
            self.writes.append((where, beat["data"], beat["strb"]))
            resp = self.errors(where)
            self._resp = max(self._resp, resp)
            for k in range(self.word_bytes if resp < RESP_SLVERR else 0):
                if beat["strb"] >> k & 1:
                    self._page(where)[(where + k) % PAGE_BYTES] = beat["data"] >> 8 * k & 0xFF
            if self._done == beats:
                answer = self._word("b", id=0, resp=self._resp)
                self._waiting["b"].append((cycle + self.latency - 1, [answer]))
                self._aw.popleft()
                self._done, self._resp = 0, RESP_OKAY

    def _moved(self, channel: str, word: int, cycle: int) -> None:
        """A transfer in ``cycle``."""
        if channel == "ar":
            burst = self._read_burst(*self._request("ar", word))
            self._waiting["r"].append((cycle + self.latency - 1, burst))
        elif channel == "aw":
            self._aw.append(self._request("aw", word))
        elif channel == "w":
            self._w.append(self._fields("w", word))
        elif channel == "r":
            self._on_their_way["ar"] -= self._fields("r", word)["last"]
        else:
            self._on_their_way["aw"] -= 1

    async def run(self) -> None:
        cycle = 0
        channels = []
        for name in ("ar", "aw", "w", "r", "b"):
            if name in self._ports:
                payload, valid, ready = self._ports[name]
                channels.append((name, payload, valid.get, ready.get))
        settled, falling = ReadOnly(), FallingEdge(self.dut.clk)
        while True:
            await settled
            for name, payload, valid, ready in channels:
                if valid() and ready():
                    self._moved(name, payload.get(), cycle)
            if self._aw and self._w:
                self._write_beats(cycle)
            waiting = self._waiting["r"]
            while waiting and waiting[0][0] <= cycle:
                self.beats += waiting.popleft()[1]
            waiting = self._waiting["b"]
            while waiting and waiting[0][0] <= cycle:
                self.answers += waiting.popleft()[1]
            await falling
            cycle += 1


def random_packets(
    rng: random.Random, config, count: int, *, loose: bool = False
) -> list[list[tuple[int, int]]]:
    """Packets of write commands (address, bytes), of which all but the last have ``more``.

    One byte, one word, aligned and not, at pages' ends, at the top of the address space, in one
    to three commands. Some commands have 0 bytes. The earlier commands end, and the later ones
    begin, at a multiple of the word (unless ``loose``).
    """
    word, top = config.word_bytes, 1 << config.address_bits
    most = (1 << config.length_bits) - 1
    burst = min(config.burst_beats, 40)  # long bursts need not be many
    packets = []
    for _ in range(count):
        address = (
            rng.choice(
                [
                    rng.getrandbits(config.address_bits),
                    rng.getrandbits(20) * PAGE_BYTES - rng.randrange(20 * word),
                    -rng.randrange(1, 30 * word),
                    rng.getrandbits(20) * PAGE_BYTES,
                ]
            )
            % top
        )
        packet = []
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            words = rng.choice([1, 1, 2, rng.randrange(1, 2 * burst + 2)])
            size = words * word - address % word
            if size > most:
                size = most - (most + address) % word
            if loose:
                size = rng.randint(1, max(size, 1))
            if size > 0:
                packet.append((address, size))
                address = rng.getrandbits(config.address_bits - 8) * word % top
                address += rng.randrange(word) if loose else 0
        size = rng.choice(
            [1, 1, word - 1, word, word + 1, rng.randrange(1, 3 * word),
             rng.randrange(1, 3 * burst * word), burst * word]
        )  # fmt: skip
        packet.append((address, max(1, min(size, most))))
        if rng.random() < 0.1:
            packet.insert(rng.randrange(len(packet) + 1), (rng.getrandbits(30), 0))
        packets.append(packet)
    return packets


def random_commands(rng: random.Random, config, count: int) -> list[tuple[int, int]]:
    """(address, words): anywhere, at pages' ends, at the top of the address space, unaligned."""
    commands = []
    most = (1 << config.length_bits) - 1
    for _ in range(count):
        words = rng.choice(
            [0, 1, 2, config.burst_beats, config.burst_beats + 1, config.page_words + 1,
             rng.randrange(40), rng.randrange(3 * config.burst_beats)]
        )  # fmt: skip
        address = rng.choice(
            [
                rng.getrandbits(config.address_bits),
                rng.getrandbits(20) * PAGE_BYTES - rng.randrange(20) * config.word_bytes,
                -rng.randrange(1, 30) * config.word_bytes,
                rng.getrandbits(20) * PAGE_BYTES,
            ]
        )
        commands.append((address % (1 << config.address_bits), min(words, most)))
    return commands
