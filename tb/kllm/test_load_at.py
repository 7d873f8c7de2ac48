"""KllmLoadAt against golden.kllm.machine: entries of a table by the batch, and errors of memory.

KllmLoad with a batch does the same commands, with LOADs between them.

Shown to fail:

- the position where the token's id belongs;
- a limit one entry too high, or one that compares 24 bits of the index;
- a product without the carry into bit 20;
- a token that keeps the error of the one before it, or its NaN;
- a place without a token that reads;
- rows of the next token that are requested only after those of the token before it;
- a range check without the stride;
- LOAD that begins with a LOAD_AT, in KllmLoad;
- the choice of place t in the place of place + t, of rank 0 for all, or a cycle too early;
- a choice that needs a token at its place; one beyond the place's choices that has an entry;
- CHOICE_VALUE that reads its entry; without experts, a rank that is no RANGE.
"""

import numpy as np
import pytest
import torch

from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig, VectorShape
from golden.kllm.format import ID_BITS
from golden.kllm.isa import ROW_BYTES, CommandStatus, Index, Opcode, encode
from golden.kllm.machine import Machine, Memory
from golden.kllm.timing import load_at
from golden.kllm.top_k import ids, word_of
from golden.words import alternating, join, layout_word
from hdl.kllm.batch import entry_layout
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.choices import choice_layout
from hdl.kllm.slots.load import KllmLoad
from hdl.kllm.slots.load_at import KllmLoadAt, KllmLoadAtConfig
from tb.kllm.support.commands import command_payload, row_of
from tb.simulate.run import simulate

CONFIGS = {
    "batch": BLOCKS["kllm_load"].configs["batch"].at,
    "experts": BLOCKS["kllm_load"].configs["experts"].at,
    "one": KllmLoadAtConfig(vectors=VectorShape(rows=77), address_bits=33, places=1),
    "all_rows": KllmLoadAtConfig(
        vectors=VectorShape(rows=65536), address_bits=32, places=64, experts=16
    ),
    "all_addresses": KllmLoadAtConfig(vectors=VectorShape(rows=300), address_bits=37, places=5),
}
NAN, ZERO = row_of([0x7E00] * 16), 0
MEMORY_ROWS = 1400
ERRORS = 12  # among the first 200 rows; rows beyond the memory give errors, too


class Top(Memory):
    """A data memory of which only the rows from ``base`` on are there."""

    base = 0

    def read(self, address, words):
        return None if address < self.base else super().read(address - self.base, words)


class Maker:
    """Steps: a command, the batch that it sees, and what it must give."""

    def __init__(self, config, seed):
        self.config, self.rng = config, np.random.default_rng([seed, 72])
        self.end = 1 << config.address_bits - 5
        # The top rows of the data memory, where an entry can reach them.
        self.base = self.end - MEMORY_ROWS if config.address_bits <= 37 else 0
        machine = MachineConfig(
            vectors=config.vectors, batch=config.places, experts=config.experts
        )
        self.machine = Machine(machine)
        memory = self.rng.integers(0, 256, 32 * MEMORY_ROWS, dtype=np.uint8)
        faults = set(self.rng.permutation(200)[:ERRORS].tolist())
        self.machine.data = Top(memory, ROW_BYTES, faults)
        self.machine.data.base = self.base
        self.memory = {
            self.base + n: (int.from_bytes(row.tobytes(), "little"), n in self.machine.data.faults)
            for n, row in enumerate(memory.reshape(-1, 32))
        }
        self.steps, self.seen = [], set()
        self.choose([])

    def choose(self, ids: list[list[int]]) -> None:
        """The ids of each place's choices, the best first, with any words; None: no element."""
        rng, made = self.rng, []
        for each in ids:
            some = [0x8000, 0x8001, 0x7FFF, int(rng.integers(0x0400, 0xFC01))]
            keys = rng.choice(some, len(each))
            ranks = [
                0 if number is None else int(key) << ID_BITS | (1 << ID_BITS) - 1 - number
                for key, number in zip(keys, each, strict=True)
            ]
            made.append(torch.tensor(ranks, dtype=torch.int64))
        rest = self.config.places - len(made)
        self.machine.choices = made + [torch.zeros(0, dtype=torch.int64)] * rest

    def choices(self) -> list[list[int]]:
        """The choices of each place as kllm_choices gives them."""
        return [
            [
                layout_word(choice_layout, valid=1, word=word_of(rank), id=int(ids(each[n])))
                for n, rank in enumerate(each.tolist())
            ]
            for each in self.machine.choices
        ]

    def batch(self, wanted) -> list[Place | None]:
        """Places with these indices by id and by position; the others have any."""
        rng, made = self.rng, []
        for each in wanted:
            if each is None:
                made.append(None)
            else:
                token, position = each
                made.append(Place(int(rng.integers(256)), position, token))
        rest = self.config.places - len(made)
        return made + [Place(3, 9, int(rng.integers(1 << 32))) for _ in range(rest)]

    def add(self, places, **operands) -> None:
        """LOAD_AT with the batch ``places``; address is that of the whole data memory."""
        defaults = {"rows": 1, "index": Index.TOKEN, "limit": 1 << 20, "dst": 0, "stride": 0}
        operands = defaults | {"tokens": 1, "place": 0, "rank": 0} | operands
        machine, batch = self.machine, self.batch(places)
        machine.cache.batch = batch
        words = encode(Opcode.LOAD_AT, 0, {}, operands)
        status = machine.step(words).status
        step = {"read": [], "write": [], "command": command_payload(words)}
        step["status"] = [int(status)]
        step["batch"] = [self.entry(place) for place in batch]
        step["choices"] = self.choices()
        most = self.config.places - operands["place"]
        inside = operands["rows"] and operands["tokens"] in range(1, most + 1)
        if not self.config.experts:
            is_old = operands["index"] < Index.CHOICE and not operands["rank"]
            inside = inside and is_old and not operands["place"]
        last = operands["dst"] + operands["stride"] * (operands["tokens"] - 1) + operands["rows"]
        if inside and last <= self.config.vectors.rows:
            for t in range(operands["tokens"]):
                at = operands["place"] + t
                self.token(step, at, batch[at], operands, operands["dst"] + t * operands["stride"])
        else:
            assert status == CommandStatus.RANGE
        self.seen.add(status)
        self.steps.append(step)

    def entry(self, place) -> int:
        if place is None:
            numbers = {"sequence": int(self.rng.integers(256)), "token": 1, "position": 1}
            return layout_word(entry_layout, valid=0, **numbers)
        return layout_word(
            entry_layout, valid=1, sequence=place.sequence, position=place.position,
            token=place.token,
        )  # fmt: skip

    def token(self, step, at, place, o, dst) -> None:
        """The rows that one token reads and writes, and that golden leaves."""
        rows, words, fault = o["rows"], [], False
        index = None
        if o["index"] >= Index.CHOICE:
            held = self.machine.choices[at].tolist()
            element = held[o["rank"]] if o["rank"] < len(held) else 0
            index = (1 << ID_BITS) - 1 - (element & (1 << ID_BITS) - 1)
        elif place is not None:
            index = place.position if o["index"] else place.token
        if index is None or index >= o["limit"]:
            words.append([ZERO] * rows)
        elif o["index"] == Index.CHOICE_VALUE:
            words.append([row_of([word_of(element)] * 16)] * rows)
        else:
            first = o["address"] + index * rows
            fault = first + rows > self.end
            if not fault:
                step["read"].append(32 * first | rows << self.config.address_bits)
                found = [self.memory.get(first + n, (first + n, True)) for n in range(rows)]
                words.append([word for word, _ in found])
                fault = any(error for _, error in found)
            if fault:
                words.append([NAN] * rows)
        written = [(dst + n, word) for some in words for n, word in enumerate(some)]
        step["write"] += [join((row, 16), (word, 256)) for row, word in written]

    def load(self, address: int, rows: int, dst: int) -> None:
        """LOAD, for KllmLoad."""
        operands = {"address": address, "rows": rows, "dst": dst}
        words = encode(Opcode.LOAD, 0, {}, operands)
        assert not self.machine.step(words).status
        held = self.steps[-1]
        found = [self.memory[address + n][0] for n in range(rows)]
        self.steps.append(
            {
                "command": command_payload(words), "batch": held["batch"],
                "choices": held["choices"],
                "read": [32 * address | rows << self.config.address_bits], "status": [0],
                "write": [join((dst + n, 16), (word, 256)) for n, word in enumerate(found)],
            }
        )  # fmt: skip


def made(config, seed, loads=False):
    """Steps that see every case of the docstring of KllmLoadAt, and the memory."""
    maker = Maker(config, seed)
    rng, base, last, most = maker.rng, maker.base, config.vectors.rows, config.places
    good = base + 210  # rows from here on have no error
    faulty = base + min(maker.machine.data.faults)
    maker.add([(5, 0)], address=good, rows=60, dst=last - 60)
    entries = [(int(n), int(rng.integers(1 << 21))) for n in rng.permutation(50)]
    small = [(token, token) for token, _ in entries]
    maker.add(small[:most], address=good, rows=3, stride=3, tokens=most)
    # By position: the id is beyond the table. Then an empty place, and an index beyond it.
    maker.add([(1 << 31, 4)] * most, address=good, rows=2, stride=2, index=1, tokens=most, limit=5)
    mixed = [(49, 0), None, (50, 0), (1 << 24, 0), ((1 << 32) - 1, 0), (0, 0)][:most]
    maker.add(mixed, address=good, rows=4, stride=5, tokens=len(mixed), limit=50)
    maker.add([None] * most, address=faulty, rows=2, stride=1, tokens=most)
    maker.add([(50, 0)], address=good, limit=50)
    maker.add([(49, 1 << 20)], address=good, limit=50)
    maker.add([(0, 0)], address=good, limit=0)
    # Errors: of one row, of a row of one token among others, of the end of the memory.
    maker.add([(0, 0)], address=faulty, rows=1, dst=7)
    maker.add([(0, 0)], address=max(faulty - 2, base), rows=5, dst=7)
    some = [(0, 0), (faulty - base, 0), (210, 0), None, (1, 0)][:most]
    maker.add(some, address=base, rows=1, stride=1, tokens=len(some))
    both = [(faulty - base, 0), (1 << 20, 0), (210, 0)][:most]
    maker.add(both, address=base, rows=1, stride=1, tokens=len(both))
    ends = [(MEMORY_ROWS - 1, 0), (MEMORY_ROWS, 0), (MEMORY_ROWS - 2, 0), (220, 0)][:most]
    maker.add(ends, address=base, rows=1, stride=2, tokens=len(ends))
    maker.add(ends[::-1], address=base - 1 if base else 0, rows=2, stride=2, tokens=len(ends),
              limit=MEMORY_ROWS // 2 + 300)  # fmt: skip
    maker.add([(MEMORY_ROWS - 1, 0)], address=base, rows=2)
    # Out of range.
    for wrong in (
        {"rows": 0}, {"tokens": 0}, {"tokens": most + 1}, {"tokens": 255}, {"rows": last + 1},
        {"dst": last - 1, "rows": 2}, {"dst": last - 1}, {"stride": 65535, "tokens": 2},
        {"tokens": most, "stride": -(-last // most) + 1, "dst": most},
    ):  # fmt: skip
        if max(wrong.values()) < 1 << 16:
            maker.add(small[:most], address=good, **wrong)
    # Every bit of an index and of a product, where the address brings them back.
    for index in alternating((1 << 24) - 2):
        for rows in (1, 21, 42, 63):
            first = good + int(rng.integers(1000)) - index * rows
            if 0 <= first < 1 << 32:
                maker.add([(index, 0)], address=first, rows=rows, limit=index + 1)
                maker.add([(index, 0)], address=first, rows=rows, limit=index)
    for rows in alternating(min(last, MEMORY_ROWS - 210)):
        maker.add([(0, 0)], address=good, rows=rows)
    for _ in range(20):
        tokens = int(rng.integers(1, most + 1))
        rows = int(rng.integers(1, max(2, min(40, last // tokens))))
        stride = rows + int(rng.integers(0, 3)) if rows * tokens + 2 * tokens < last else rows
        room = last - stride * (tokens - 1) - rows
        places = [
            None if rng.random() < 0.2 else (int(rng.integers(60)), int(rng.integers(60)))
            for _ in range(tokens)
        ]
        maker.add(
            places, address=base + int(rng.integers(300)), rows=rows, index=int(rng.integers(2)),
            limit=int(rng.choice([20, 58, 200])), dst=int(rng.integers(min(room, 65535) + 1)),
            stride=stride, tokens=tokens,
        )  # fmt: skip
        if loads:
            maker.load(good + int(rng.integers(50)), int(rng.integers(1, 9)), 3)
    choices(maker, good, faulty)
    bus, beyond = CommandStatus.BUS_ERROR, CommandStatus.RANGE
    assert {CommandStatus(0), bus, beyond, bus | beyond} <= maker.seen or most == 1
    unknown = {"read": [], "write": [], "status": [int(CommandStatus.MALFORMED)]}
    unknown |= {"batch": [0] * most, "choices": maker.choices()}
    maker.steps.append(unknown | {"command": int(Opcode.READ)})
    return maker


def choices(maker, good, faulty):
    """Entries and words by choices, of every rank; without experts all of these are RANGE."""
    most, experts, last = maker.config.places, maker.config.experts, maker.config.vectors.rows
    for wrong in ({"index": Index.CHOICE}, {"index": Index.CHOICE_VALUE}, {"rank": 1},
                  {"rank": 255}, {"place": 1}, {"place": 255}):  # fmt: skip
        if not experts or wrong.get("place"):
            tokens = most if wrong.get("place", 0) == 1 else 1
            stride = min(1, tokens - 1)
            maker.add([(0, 0)], address=good, tokens=tokens, stride=stride, **wrong)
    if not experts:
        return
    rng = maker.rng
    few = [[int(n) for n in rng.permutation(40)[:experts]] for _ in range(most)]
    maker.choose(few)
    every = {"address": good, "tokens": most, "stride": 4}
    for index in (Index.CHOICE, Index.CHOICE_VALUE):
        for rank in range(experts):
            maker.add([None], rows=2, index=index, rank=rank, limit=40, **every)
        maker.add([], rows=1, index=index, rank=experts, limit=40, **every)
        maker.add([], rows=3, index=index, rank=128, limit=40, **every)
    # Fewer choices than a rank; none of a place; an id of the limit; no element.
    some = [[few[0][0]], [], [39, 40, None], [None]][:most]
    maker.choose(some)
    for index in (Index.CHOICE, Index.CHOICE_VALUE):
        for rank in range(experts):
            for place in range(len(some)):
                maker.add([], address=good, rows=2, index=index, rank=rank, limit=40, place=place)
        maker.add([], address=good, index=index, limit=(1 << 24) - 1, place=min(3, most - 1))
    maker.choose([[faulty - maker.base]] * most)  # an entry with an error
    maker.add([], address=maker.base, index=Index.CHOICE, limit=200, place=most - 1, dst=last - 1)
    for _ in range(30):
        wide = min(most, last)
        maker.choose([rng.integers(0, 60, int(rng.integers(experts + 1))).tolist()
                      for _ in range(most)])  # fmt: skip
        tokens = int(rng.integers(1, wide + 1))
        rows = int(rng.integers(1, max(2, min(9, last // tokens))))
        places = [None if rng.random() < 0.3 else (int(rng.integers(60)), int(rng.integers(60)))
                  for _ in range(most)]  # fmt: skip
        maker.add(
            places, address=good, rows=rows, index=int(rng.integers(4)), stride=rows,
            limit=int(rng.choice([20, 58, 200])), rank=int(rng.integers(experts)),
            tokens=tokens, place=int(rng.integers(most - tokens + 1)),
        )  # fmt: skip


def at_full_rate(config, seed):
    """Tokens without errors, of rows that take as long as their requests or longer."""
    maker = Maker(config, seed)
    for rows in (3 + bool(config.experts), 7):  # a choice takes a cycle
        tokens = min(config.places, config.vectors.rows // rows)
        places = [(int(n), 0) for n in maker.rng.integers(0, 100, tokens)]
        address = maker.base + 210
        maker.add(places, address=address, rows=rows, stride=rows, tokens=tokens)
    return maker.steps


def run(block, config, seed, loads=False):
    maker = made(config, seed, loads)
    params = {"program": maker.steps, "memory": maker.memory, "rate": at_full_rate(config, seed)}
    params["latency"] = load_at(bool(config.experts)).latency  # KllmLoad has that of LOAD
    simulate(block, "tb.kllm.tb_load_at", params=params, seed=seed)


@pytest.mark.telling("batch", "experts", "all_addresses")
@pytest.mark.parametrize("name", CONFIGS)
def test_load_at(name, seed):
    run(KllmLoadAt(CONFIGS[name]), CONFIGS[name], seed)


@pytest.mark.telling("experts")
@pytest.mark.parametrize("name", ["batch", "experts"])
def test_load_with_a_batch(name, seed):
    """The same commands and LOADs between them, through the engine of the unit LOAD."""
    config = BLOCKS["kllm_load"].configs[name]
    run(KllmLoad(config), config.at, seed, loads=True)
