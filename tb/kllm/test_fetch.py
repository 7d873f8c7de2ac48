"""KllmFetch against golden.kllm.fetch: programs of a data memory, the host's commands, aborts.

The bench has a model of the dispatcher. It takes words, counts commands and gives their statuses
at any time, those of one unit in order.

Shown to fail:

- waits that are not moved;
- a tag that stays as it is in the program;
- a run that begins while a word of the host waits, or that is aborted while one is offered;
- a run that is taken in the cycle of an abort;
- a status of a run that the host gets;
- a row of an aborted run that the next one gives;
- a place of the header's row, or a read on offer, that a reset leaves as it is;
- a program of PROGRAM_MAX commands, or one command more, taken for a damaged header or a sound one;
- an abort that changes an answer on offer, or puts ABORTED in the place of another status;
- an aborted run that counts a command of which the dispatcher drops the last word;
- words of the host that wait, or come, in an abort and live on after it.
"""

import dataclasses
import random
import struct
import zlib

import numpy as np
import pytest

from golden.kllm.config import MACHINES
from golden.kllm.engines import screen
from golden.kllm.fetch import program_image, run
from golden.kllm.isa import (
    COMMAND_ROWS,
    COMMAND_WORDS,
    COMMANDS,
    HEADER_ROWS,
    PROGRAM_MAX,
    ROW_BYTES,
    RUN_CHECKS,
    CommandStatus,
    Header,
    Opcode,
    RunStatus,
    Unit,
)
from golden.kllm.machine import Result
from hdl.kllm.fetch import KllmFetch, KllmFetchConfig
from tb.simulate.run import simulate

BATCH = dataclasses.replace(MACHINES["small"], batch=1)
CONFIGS = {
    "default": (KllmFetchConfig(machine=BATCH.word), BATCH),
    "smallest": (
        KllmFetchConfig(
            units=int(Unit.CACHE), machine=MACHINES["small"].word, chunk=1, address_bits=32
        ),
        MACHINES["small"],
    ),
    "odd": (KllmFetchConfig(machine=BATCH.word, chunk=3, address_bits=37), BATCH),
}
LONGEST = 1 << 19  # row of a program of PROGRAM_MAX commands, which ends below the other ones
SOFT = [CommandStatus.OVERFLOW, CommandStatus.SCALE_NONFINITE]


class Rows:
    """A data memory with a few rows; what is not there gives errors."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.faults: set[int] = set()

    def put(self, row: int, image: bytes) -> None:
        for n in range(0, len(image), ROW_BYTES):
            assert row + n // ROW_BYTES not in self.rows
            self.rows[row + n // ROW_BYTES] = image[n : n + ROW_BYTES]

    def read(self, address: int, words: int) -> np.ndarray | None:
        wanted = range(address, address + words)
        if any(row not in self.rows or row in self.faults for row in wanted):
            return None
        return np.frombuffer(b"".join(self.rows[row] for row in wanted), np.uint8)

    def words(self) -> dict[int, tuple[int, bool]]:
        found = {row: int.from_bytes(data, "little") for row, data in self.rows.items()}
        return {row: (word, row in self.faults) for row, word in found.items()}


class Scripted:
    """A machine whose commands end as a script says; golden.kllm.fetch.run runs programs on it."""

    def __init__(self, machine, data: Rows) -> None:
        self.config, self.data = machine, data
        self.issued = dict.fromkeys(Unit, 0)
        self.readback: list[int] = []
        self.script: list[int] = []
        self.words: list[int] = []
        self.results: list[Result] = []

    def begin(self, script) -> None:
        self.script, self.words, self.results = list(script), [], []

    def step(self, words) -> Result:
        unit, _ = screen(words, list(self.issued.values())[: self.config.units])
        if unit is not None:
            self.issued[unit] += 1
        self.words += words
        status = CommandStatus(self.script[len(self.results)])
        result = Result(words[0] >> 16, unit or Unit.LOAD, status)
        self.results.append(result)
        return result


class Maker:
    """Packets: what the host writes, what the dispatcher gets and answers, what the host gets."""

    def __init__(self, config, machine, seed) -> None:
        self.config, self.machine = config, machine
        self.rng = random.Random(f"{seed} fetch")
        self.end = (1 << config.address_bits) // ROW_BYTES
        self.memory = Rows()
        self.scripted = Scripted(machine, self.memory)
        self.packets: list[dict] = []
        self.seen: set = set()
        # Rows of RUN have 31 bits: programs lie at both ends, and where every bit is 0 and 1.
        self.spots = [1 << 20, min(self.end, 1 << 31) - 3000, 0x2AAAAAA0, 0x55555500]
        self.spots = [spot for spot in self.spots if spot < self.end - 2000]

    def commands(self, count: int) -> list[int]:
        """Words of any commands, few of them unknown."""
        rng, known = self.rng, [int(opcode) for opcode in COMMANDS]
        words = [rng.getrandbits(32) for _ in range(COMMAND_WORDS * count)]
        for n in range(0, len(words), COMMAND_WORDS):
            if rng.random() < 0.9:
                words[n] = words[n] & ~0xFFFF | rng.choice(known)
        return words

    def script(self, count: int, failing: float) -> list[int]:
        rng = self.rng
        fails = [1 << bit for bit in range(11)] + [0b1000_0000_0100]
        return [
            rng.choice(fails) if rng.random() < failing
            else rng.choice([0, 0, 0, int(rng.choice(SOFT))])
            for _ in range(count)
        ]  # fmt: skip

    def place(self, image: bytes) -> int:
        """A row for an image, at the next spot."""
        spot = self.rng.randrange(len(self.spots))
        row = self.spots[spot]
        self.spots[spot] += len(image) // ROW_BYTES + self.rng.randrange(4)
        self.memory.put(row, image)
        return row

    def host(self, count: int = 1) -> None:
        """Commands of the host, of one unit: their statuses come in order."""
        for _ in range(count):
            words, script = self.commands(1), self.script(1, 0.3)
            words[0] = words[0] & ~0xFF | self.rng.choice([int(Opcode.LOAD), 0xFF])
            self.scripted.begin(script)
            result = self.scripted.step(words)
            self.packets.append(
                {"word": words, "o": words, "statuses": script, "status": [result.word]}
            )

    def program(self, count: int, words=None) -> bytes:
        return program_image(self.commands(count) if words is None else words, self.machine)

    def run(self, row: int, checks: bool = False, failing: float = 0.0) -> None:
        """The run of what is at ``row``."""
        word = row | RUN_CHECKS * checks
        found = self.memory.read(row, HEADER_ROWS)
        count = 0 if found is None else int(found.view("<u4")[Header.COMMANDS])
        count = min(count, PROGRAM_MAX)
        script = self.script(count, failing)
        self.scripted.begin(script)
        answer = run(self.scripted, word, self.end)
        given = len(self.scripted.results)
        self.packets.append(
            {
                "run": [word], "o": self.scripted.words, "statuses": script[:given],
                "answer": [answer.word], "reads": self.reads(row, count, answer, checks),
                # What is read after an error depends on time.
                "all_reads": not (answer.unit == 7 and answer.status == RunStatus.BUS_ERROR),
            }
        )  # fmt: skip
        self.seen.add((answer.unit == 7, answer.status if answer.unit == 7 else 0, checks))

    def reads(self, row: int, count: int, answer, checks: bool) -> list[tuple[int, int]]:
        """(row, rows) of each read at most."""
        none = RunStatus.HEADER | RunStatus.FOREIGN
        made, chunk = [(row, HEADER_ROWS)], self.config.chunk
        if row + HEADER_ROWS > self.end:
            return []
        beyond = row + HEADER_ROWS + COMMAND_ROWS * count > self.end
        if (answer.unit == 7 and answer.status & none) or not count or beyond:
            return made
        body = [
            (row + HEADER_ROWS + COMMAND_ROWS * n, COMMAND_ROWS * min(chunk, count - n))
            for n in range(0, count, chunk)
        ]
        again = checks and not (answer.unit == 7 and answer.status & RunStatus.DAMAGED)
        return made + body + body * again


def with_header(image: bytes, **changes) -> bytes:
    """An image with other words in its header, and the check word of that."""
    words = list(struct.unpack("<16I", image[:64]))
    for name, value in changes.items():
        words[Header[name.upper()]] = value
    head = struct.pack("<15I", *words[:15])
    return head + struct.pack("<I", zlib.crc32(head)) + image[64:]


def flipped(image: bytes, bit: int) -> bytes:
    made = bytearray(image)
    made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


def made(config, machine, seed) -> Maker:
    maker = Maker(config, machine, seed)
    rng, chunk = maker.rng, config.chunk
    first = maker.place(maker.program(2 * chunk + 3))
    maker.run(first)  # this one's timing is checked
    maker.host(2)
    maker.run(first, checks=True, failing=0.3)  # the waits move by other counts
    maker.run(first, failing=0.2)
    for count in (1, chunk, 2 * chunk, 4 * chunk + 1):
        maker.run(maker.place(maker.program(count)), rng.random() < 0.5, rng.choice([0, 0.5]))
        maker.host(rng.randrange(3))
    # Damage: of the first and the last row of commands, and of any bit of the header.
    for checks in (False, True):
        for bit in (512, 512 + 512 * 3 - 1, 512 + rng.randrange(512 * 3)):
            maker.run(maker.place(flipped(maker.program(3), bit)), checks, 0.3)
        maker.host()
    for bit in (0, 31, 70, 100, 130, 200, 480, 511, rng.randrange(512)):
        maker.run(maker.place(flipped(maker.program(2), bit)), rng.random() < 0.5)
    good = maker.program(2)
    maker.run(maker.place(good))
    for changes in (
        {"magic": 0x53505A52}, {"commands": 0}, {"commands": PROGRAM_MAX + 1}, {"set": 0},
        {"commands": 1 << 31 | 2}, {"machine": machine.word ^ 1 << 31}, {"check": 0},
    ):  # fmt: skip
        maker.run(maker.place(with_header(good, **changes)), rng.random() < 0.5)
    # The longest program, of which all but the first commands are missing. No image is behind it.
    maker.memory.put(LONGEST, with_header(good, commands=PROGRAM_MAX))
    maker.run(LONGEST)
    # Errors of the memory: of the header, of the first and second row of a command, of the last.
    count = 2 * chunk + 1
    for fault in (0, 1, 2, 3, HEADER_ROWS + 2 * chunk + 1, HEADER_ROWS + 2 * count - 1):
        for checks in (False, True):
            row = maker.place(maker.program(count))
            maker.memory.faults.add(row + fault)
            maker.run(row, checks, 0.2)
    maker.host(2)
    # The end of the addresses, and of the rows that a run may name.
    last = min(maker.end, (1 << 31) + 7)
    maker.memory.put(last - 8, maker.program(3))
    maker.run(last - 8, checks=True)
    if maker.end < 1 << 31:
        maker.memory.put(last - 100, with_header(maker.program(3), commands=50))
        maker.run(last - 100)  # one command beyond
        maker.run(last - 1)
        maker.run((1 << 31) - 1)
    maker.run(first, failing=0.3)
    kinds = {status for is_run, status, _ in maker.seen if is_run}
    wanted = {RunStatus.HEADER, RunStatus.FOREIGN, RunStatus.DAMAGED, RunStatus.BUS_ERROR}
    assert wanted <= kinds
    assert any(not is_run for is_run, _, _ in maker.seen)
    return maker


@pytest.mark.telling("default", "smallest")
@pytest.mark.parametrize("name", CONFIGS)
def test_fetch(name, seed):
    config, machine = CONFIGS[name]
    maker = made(config, machine, seed)
    params = {"packets": maker.packets, "memory": maker.memory.words()}
    simulate(KllmFetch(config), "tb.kllm.tb_fetch", params=params, seed=seed)
