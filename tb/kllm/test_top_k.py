"""KllmTopK against golden.kllm.top_k: the best elements of tokens in pieces, and one of them.

Shown to fail:

- of equal elements the later one, in a row or from row to row;
- NaN as the largest, infinity as NaN, -0 below +0, or numbers compared as words;
- an element after the length that counts;
- the list of another token, or of the command before, with ``begin``;
- a list that a reset does not forget;
- an id without its carry into bit 16, or its bit 24;
- of a row only its best element where k is above 1, or one more than k in the list;
- a list of k elements that another k finds as one of ``top``;
- an element that comes from the RAM while one of a row enters;
- the choice of the place before;
- a row that is requested only when the one before it has come;
- a route of the sampling's k, above ``experts``, or one that gives the host an id;
- choices of the place before, of a command without ``end``, or ones that nobody has taken.
"""

import numpy as np
import pytest
import torch

from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig, VectorShape
from golden.kllm.engines import Sampling
from golden.kllm.format import ID_BITS, KEY_ZERO
from golden.kllm.isa import NOBODY, CommandStatus, Opcode, encode, row_count
from golden.kllm.machine import Machine
from golden.words import alternating, join, layout_word
from hdl.kllm.batch import choice_layout
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.top_k import KllmTopK, KllmTopKConfig
from tb.kllm.support.commands import command_payload, row_of
from tb.simulate.run import simulate

CONFIGS = {
    "small": BLOCKS["kllm_top_k"].configs["small"],
    "one": KllmTopKConfig(vectors=VectorShape(rows=77), places=1, top=17),
    "greedy": KllmTopKConfig(vectors=VectorShape(rows=256), places=4, top=1),
    "all_rows": KllmTopKConfig(vectors=VectorShape(rows=65536), places=64),
    "experts": BLOCKS["kllm_top_k"].configs["experts"],
    "greedy_experts": KllmTopKConfig(
        vectors=VectorShape(rows=256), places=3, top=1, experts=16
    ),
}
EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]
NANS = [0x7C01, 0x7E00, 0xFE00, 0xFFFF]
USED = 200  # rows that have words


class Maker:
    """Steps: a command and what it must give, on rows of every kind of number."""

    def __init__(self, config, seed):
        self.config, self.rng = config, np.random.default_rng([seed, 83])
        machine = MachineConfig(
            vectors=config.vectors, batch=config.places, top=config.top, experts=config.experts
        )
        self.machine = Machine(machine)
        last = config.vectors.rows
        self.rows = min(USED, last)
        kinds = [self.row(n) for n in range(self.rows)]
        self.table = {n: row_of(words) for n, words in enumerate(kinds)}
        self.machine.vector[: self.rows] = torch.tensor(kinds)
        for n in range(max(self.rows, last - 3), last):  # the last rows are other rows' copies
            self.table[n] = self.table[n % 16]
            self.machine.vector[n] = self.machine.vector[n % 16]
        self.steps, self.seen = [], set()
        self.rebatch()

    def row(self, n: int) -> list[int]:
        """16 rows of words, few of them NaN; then equal ones, both zeros, edges, all NaN."""
        rng = self.rng
        if n < 16:
            return rng.integers(0, 0x7C00, 16).tolist()
        if n == 16:
            return [0x3C00] * 15 + [0x7E00]
        kind = n % 8
        if kind == 0:
            return [int(rng.choice(EDGES))] * 16
        if kind == 1:
            return rng.choice(EDGES[:2], 16).tolist()
        if kind == 2:
            return rng.choice([0x8000, 0x8001, 0xFC00], 16).tolist()
        if kind == 3:
            words = rng.choice(EDGES[:8], 16)
            words[rng.integers(16)] = rng.choice(NANS)
            return words.tolist()
        if kind == 4:
            return rng.choice(NANS, 16).tolist()
        if kind == 5:  # neighbours
            return (rng.integers(0, 3, 16) + 0x3BFF + 0x8000 * int(rng.integers(2))).tolist()
        return rng.choice(EDGES, 16).tolist() if kind == 6 else rng.integers(0, 65536, 16).tolist()

    def rebatch(self, k: int | None = None) -> None:
        """Other choices: no token, no sampling, any k; ``k``: that of all places."""
        rng, places = self.rng, []
        for _ in range(self.config.places):
            inverse = int(rng.choice([0, 0x3DC5, 0x4800, 0x7BFF, rng.integers(0x2800, 0x4000)]))
            most = self.config.top + 2
            wanted = int(rng.integers(most)) if k is None else k
            sampling = Sampling(wanted, inverse, int(rng.integers(1 << 32)))
            kind = int(rng.integers(5)) if k is None else 2
            position = int(rng.integers(1 << 20))
            place = Place(1, position, 1, None if kind == 1 else sampling)
            places.append(None if kind == 0 else place)
        self.machine.cache.batch = places

    def choices(self) -> list[int]:
        """The choices that kllm_batch gives of each place."""
        made = []
        for place in self.machine.cache.batch:
            fields = {"k": 1, "position": 5, "inverse_temperature": 0x1234, "seed": 99}
            if place is not None and place.sampling is not None:
                sampling = place.sampling
                fields["k"] = min(max(sampling.k, 1), self.config.top)
                fields["position"] = place.position
                fields["inverse_temperature"] = sampling.inverse_temperature
                fields["seed"] = sampling.seed
            made.append(layout_word(choice_layout, **fields))
        return made

    def chosen(self, o: dict[str, int]) -> list[int]:
        """The elements that stay of each place, the best one last; without one 0."""
        made = []
        for place in range(o["place"], o["place"] + o["tokens"]):
            ranks = self.machine.choices[place].tolist()
            for n in reversed(range(o["route"])):
                element = ranks[n] if n < len(ranks) else 0
                made.append(join((place, 8), (n, 8), (o["route"], 8), (element, 41)))
        return made

    def add(self, **operands) -> dict:
        defaults = {"src": 0, "stride": 0, "tokens": 1, "length": 16, "first": 0, "place": 0}
        operands = defaults | {"begin": 1, "end": 1, "route": 0} | operands
        words = encode(Opcode.TOP_K, 0, {}, operands)
        self.machine.readback = []
        status = self.machine.step(words).status
        step = {"command": command_payload(words), "row_request": [], "choices": self.choices()}
        if status != CommandStatus.RANGE:
            rows = row_count(operands["length"])
            firsts = [operands["src"] + t * operands["stride"] for t in range(operands["tokens"])]
            step["row_request"] = [first + row for first in firsts for row in range(rows)]
            assert all(row in self.table for row in step["row_request"])
        step |= {"o": self.machine.readback, "status": [int(status)], "chosen": []}
        if status != CommandStatus.RANGE and operands["end"] and operands["route"]:
            step["chosen"] = self.chosen(operands)
        self.seen |= {status, NOBODY in self.machine.readback}
        self.steps.append(step)
        return step


def made(config, seed):
    maker = Maker(config, seed)
    rng, most, last, held = maker.rng, config.places, config.vectors.rows, maker.rows
    # After a reset there is no best element, though it does not begin anew.
    maker.add(src=20, stride=8, tokens=min(most, 4), begin=0)
    maker.add(src=0, length=16 * 16)
    maker.add(src=20, length=16, first=5)  # all NaN
    for first in ((1 << 24) - 1, *alternating((1 << 24) - 1)):
        maker.rebatch()
        maker.add(src=0, length=16 * 16, first=first)
    for length in (1, 15, 16, 17, 31, 33, 255):
        maker.rebatch()
        maker.add(src=24, length=length)
    # The same numbers again: the lowest id, whichever piece comes first.
    for first in (70, 30, 50):
        maker.add(src=16, length=48, first=first, begin=int(first == 70), end=int(first == 50))
    # A list of few for one of many, and back; of a command without an end too.
    for k in (2, config.top, 3, 1, config.top):
        maker.rebatch(k)
        maker.add(src=24, length=100, first=int(rng.integers(1000)), begin=0, end=int(k != 3))
    routes(maker)
    for length in (15, 16):  # without its NaN and with it
        maker.add(src=16, length=length)
    for wrong in (
        {"length": 0}, {"tokens": 0}, {"tokens": most + 1}, {"tokens": 255}, {"src": last - 1,
        "length": 17}, {"length": 16 * (last + 1)}, {"stride": 65535, "tokens": 2, "src": 1},
        {"tokens": most, "stride": -(-last // most) + 1, "src": last - 1}, {"place": most},
        {"place": 255}, {"place": 1, "tokens": most}, {"place": 255, "tokens": 255},
    ):  # fmt: skip
        if max(wrong.values()) < 1 << 16 and (most > 1 or "stride" not in wrong):
            maker.add(**wrong)
    maker.add(src=last - 1, first=9)
    maker.add(src=last - 3, length=48, begin=0)
    for _ in range(40):
        tokens = int(rng.integers(1, most + 1))
        if most > 8 and rng.random() < 0.8:  # of 64 places a few at a time
            tokens = int(rng.integers(1, 5))
        rows = int(rng.integers(1, max(2, min(6, held // tokens))))
        stride = int(rng.integers(0, max(1, (held - rows) // tokens) + 1))
        room = held - stride * (tokens - 1) - rows
        if rng.random() < 0.6:
            maker.rebatch()
        maker.add(
            src=int(rng.integers(max(room, 0) + 1)), stride=stride, tokens=tokens,
            length=16 * rows - int(rng.integers(16)), first=int(rng.integers(1 << 24)),
            place=int(rng.integers(most - tokens + 1)), begin=int(rng.integers(2)),
            end=int(rng.integers(2)), route=int(rng.integers(config.experts + 1)),
        )  # fmt: skip
    assert {CommandStatus(0), CommandStatus.RANGE, CommandStatus.NONFINITE, True} <= maker.seen
    nothing = {"row_request": [], "o": [], "status": [int(CommandStatus.MALFORMED)], "chosen": []}
    maker.steps.append(nothing | {"command": int(Opcode.READ), "choices": maker.choices()})
    return maker


def routes(maker) -> None:
    """Elements that stay, of every number, with equal ones among them, and of no element at all."""
    config, most = maker.config, maker.config.places
    for route in (config.experts + 1, 128, 255):
        maker.add(src=0, length=40, route=route)
    for route in range(1, config.experts + 1):
        maker.rebatch()
        maker.add(src=0, length=70, stride=5, tokens=min(most, 3), route=route)
        maker.add(src=16, length=48, route=route, place=most - 1)
        maker.add(src=20, length=16, route=route)  # all NaN
        maker.add(src=0, length=min(route, 2), route=route)
        # Pieces, of which the last one gives the choices; then an id of the same list.
        maker.add(src=3, length=30, first=100, route=route, end=0)
        maker.add(src=24, length=30, begin=0, route=route)
        maker.add(src=30, length=30, first=50, begin=0)
        maker.add(src=5, length=20, first=200, begin=0, route=route)


def at_full_rate(config, seed):
    """Rows of which the first one has the largest numbers; k, what the list has, and its cycles."""
    maker = Maker(config, seed)
    large = list(range(0x4C0F, 0x4BFF, -1))
    for n in (30, 40, 50, 60):
        for row in range(n, n + 10):
            words = large if row == n else [0x3C00] * 16
            maker.table[row] = row_of(words)
            maker.machine.vector[row] = torch.tensor(words)
    tokens, few = min(config.places, 4), min(config.top, 14)
    for k in sorted({1, few, min(few, 3)}):
        maker.rebatch(k)
        for begin, end in ((1, 0), (0, 0), (0, 1), (1, 1)):
            # Of a list from before the elements count that are as good as its worst.
            worst = 0 if begin else int(maker.machine.best[0][k - 1]) >> ID_BITS
            first = 1 if k == 1 else sum(KEY_ZERO + word >= worst for word in large)
            step = maker.add(src=30, stride=10, tokens=tokens, length=96, begin=begin, end=end)
            step |= {"k": k, "held": 0 if begin else k, "rows": 6, "first": first, "end": end}
    return maker


@pytest.mark.telling("small", "one", "experts")
@pytest.mark.parametrize("name", CONFIGS)
def test_top_k(name, seed):
    config = CONFIGS[name]
    maker, rate = made(config, seed), at_full_rate(config, seed)
    params = {"program": maker.steps, "table": maker.table}
    params |= {"rate": rate.steps, "rate_table": rate.table}
    simulate(KllmTopK(config), "tb.kllm.tb_top_k", params=params, seed=seed)
