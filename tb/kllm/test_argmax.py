"""KllmArgmax against golden.kllm.argmax: the best element of tokens that come in pieces.

Shown to fail:

- of equal elements the later one, in a row or from row to row;
- NaN as the largest, infinity as NaN, -0 below +0, or numbers compared as words;
- an element after the length that counts;
- the best of another token, or of the command before, with ``begin``;
- a best element that a reset does not forget;
- an id without its carry into bit 16;
- a row that is requested only when the one before it has come.
"""

import numpy as np
import pytest
import torch

from golden.kllm.config import MachineConfig, VectorShape
from golden.kllm.isa import NOBODY, CommandStatus, Opcode, encode, row_count
from golden.kllm.machine import Machine
from golden.words import alternating
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.argmax import KllmArgmax, KllmArgmaxConfig
from tb.kllm.support.commands import command_payload, row_of
from tb.simulate.run import simulate

CONFIGS = {
    "batch": BLOCKS["kllm_readback"].configs["batch"].argmax,
    "one": KllmArgmaxConfig(vectors=VectorShape(rows=77), places=1),
    "all_rows": KllmArgmaxConfig(vectors=VectorShape(rows=65536), places=64),
}
EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]
NANS = [0x7C01, 0x7E00, 0xFE00, 0xFFFF]
USED = 200  # rows that have words


class Maker:
    """Steps: a command and what it must give, on rows of every kind of number."""

    def __init__(self, config, seed):
        self.config, self.rng = config, np.random.default_rng([seed, 83])
        self.machine = Machine(MachineConfig(vectors=config.vectors, batch=config.places))
        last = config.vectors.rows
        self.rows = min(USED, last)
        kinds = [self.row(n) for n in range(self.rows)]
        self.table = {n: row_of(words) for n, words in enumerate(kinds)}
        self.machine.vector[: self.rows] = torch.tensor(kinds)
        for n in range(max(self.rows, last - 3), last):  # the last rows are other rows' copies
            self.table[n] = self.table[n % 16]
            self.machine.vector[n] = self.machine.vector[n % 16]
        self.steps, self.seen = [], set()

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

    def add(self, **operands) -> None:
        defaults = {"src": 0, "stride": 0, "tokens": 1, "length": 16, "first": 0}
        operands = defaults | {"begin": 1, "end": 1} | operands
        words = encode(Opcode.ARGMAX, 0, {}, operands)
        self.machine.readback = []
        status = self.machine.step(words).status
        step = {"command": command_payload(words), "row_request": []}
        if status != CommandStatus.RANGE:
            rows = row_count(operands["length"])
            firsts = [operands["src"] + t * operands["stride"] for t in range(operands["tokens"])]
            step["row_request"] = [first + row for first in firsts for row in range(rows)]
            assert all(row in self.table for row in step["row_request"])
        step |= {"o": self.machine.readback, "status": [int(status)]}
        self.seen |= {status, NOBODY in self.machine.readback}
        self.steps.append(step)


def made(config, seed):
    maker = Maker(config, seed)
    rng, most, last, held = maker.rng, config.places, config.vectors.rows, maker.rows
    # After a reset there is no best element, though it does not begin anew.
    maker.add(src=20, stride=8, tokens=min(most, 4), begin=0)
    maker.add(src=0, length=16 * 16)
    maker.add(src=20, length=16, first=5)  # all NaN
    for first in ((1 << 24) - 1, *alternating((1 << 24) - 1)):
        maker.add(src=0, length=16 * 16, first=first)
    for length in (1, 15, 16, 17, 31, 33, 255):
        maker.add(src=24, length=length)
    # The same numbers again: the lowest id, whichever piece comes first.
    for first in (70, 30, 50):
        maker.add(src=16, length=48, first=first, begin=int(first == 70), end=int(first == 50))
    for length in (15, 16):  # without its NaN and with it
        maker.add(src=16, length=length)
    for wrong in (
        {"length": 0}, {"tokens": 0}, {"tokens": most + 1}, {"tokens": 255}, {"src": last - 1,
        "length": 17}, {"length": 16 * (last + 1)}, {"stride": 65535, "tokens": 2, "src": 1},
        {"tokens": most, "stride": -(-last // most) + 1, "src": last - 1},
    ):  # fmt: skip
        if max(wrong.values()) < 1 << 16 and (most > 1 or "stride" not in wrong):
            maker.add(**wrong)
    maker.add(src=last - 1, first=9)
    maker.add(src=last - 3, length=48, begin=0)
    for _ in range(40):
        tokens = int(rng.integers(1, most + 1))
        rows = int(rng.integers(1, max(2, min(6, held // tokens))))
        stride = int(rng.integers(0, max(1, (held - rows) // tokens) + 1))
        room = held - stride * (tokens - 1) - rows
        maker.add(
            src=int(rng.integers(max(room, 0) + 1)), stride=stride, tokens=tokens,
            length=16 * rows - int(rng.integers(16)), first=int(rng.integers(1 << 24)),
            begin=int(rng.integers(2)), end=int(rng.integers(2)),
        )  # fmt: skip
    assert {CommandStatus(0), CommandStatus.RANGE, CommandStatus.NONFINITE, True} <= maker.seen
    nothing = {"row_request": [], "o": [], "status": [int(CommandStatus.MALFORMED)]}
    maker.steps.append(nothing | {"command": int(Opcode.READ)})
    return maker


def at_full_rate(config, seed):
    maker = Maker(config, seed)
    tokens = min(config.places, 5)
    maker.add(src=2, stride=3, tokens=tokens, length=16 * 3 - 1)
    maker.add(src=4, stride=1, tokens=tokens, length=16, begin=0, end=0)
    maker.add(src=0, stride=9, tokens=tokens, length=20, begin=0)
    return maker.steps


@pytest.mark.telling("batch", "all_rows")
@pytest.mark.parametrize("name", CONFIGS)
def test_argmax(name, seed):
    config = CONFIGS[name]
    maker = made(config, seed)
    params = {"program": maker.steps, "table": maker.table, "rate": at_full_rate(config, seed)}
    simulate(KllmArgmax(config), "tb.kllm.tb_argmax", params=params, seed=seed)
