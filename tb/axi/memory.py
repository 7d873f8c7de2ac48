"""Inside the simulator: what a read port finds at each address, and a memory that answers it."""

import hashlib
import random
from collections import deque

from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import PAGE_BYTES, RESP_DECERR, RESP_OKAY, RESP_SLVERR

__all__ = ["Memory", "Words", "random_commands"]


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
    beside tb.bench.Bench and samples as it does. ``most`` is the largest number of bursts that
    were on their way at once, ``requests`` the AR payloads.
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
        return sum(value << self.r[name].offset for name, value in fields.items())

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
        waiting: deque[tuple[int, list[int]]] = deque()
        cycle = 0
        while True:
            await ReadOnly()
            if dut.axi__ar__valid.value and dut.axi__ar__ready.value:
                request = self.fields(int(dut.axi__ar__payload.value))
                self.requests.append(request)
                waiting.append((cycle + self.latency - 1, self._burst(request)))
                self.on_their_way += 1
                self.most = max(self.most, self.on_their_way)
            if dut.axi__r__valid.value and dut.axi__r__ready.value:
                last = self.r["last"].offset
                self.on_their_way -= int(dut.axi__r__payload.value) >> last & 1
            self.strays += int(dut.stray.value)
            while waiting and waiting[0][0] <= cycle:
                self.beats += waiting.popleft()[1]
            await FallingEdge(dut.clk)
            cycle += 1


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
