"""KllmReadback against golden.kllm.machine: READ and READ_SLOT, word for word.

Shown to fail:

- the halves of a word exchanged;
- a range check one row too lax;
- an empty slot that is read;
- a descriptor that changes where its outliers have bit 8 or its length bit 1;
- a row that is requested only when the row before it has left, of READ and of READ_SLOT;
- a cycle more before the words of the outliers;
- bit 8 of a row of a slot, or bit 12 of an outlier's number, stuck at 0 (the longest slots alone).
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.index.format import K_MAX
from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig, SlotShape, VectorShape
from golden.kllm.engines import Sampling
from golden.kllm.functional import Slot
from golden.kllm.isa import COMMANDS, CommandStatus, Opcode, encode
from golden.kllm.machine import Machine
from golden.words import join, layout_word
from hdl.kllm.batch import choice_layout
from hdl.kllm.engine import descriptor_layout, entry_row_layout
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.readback import KllmReadback, KllmReadbackConfig
from tb.kllm.support.commands import command_payload, row_of
from tb.simulate.run import simulate

CONFIGS = {
    "table1": BLOCKS["kllm_readback"].configs["table1"],
    "experts": BLOCKS["kllm_readback"].configs["experts"],
    "two_bits": KllmReadbackConfig(
        vectors=VectorShape(rows=77), slot=SlotShape(slots=5, bits_a=2, integer_bits=4)
    ),
    "longest": KllmReadbackConfig(
        vectors=VectorShape(rows=77),
        slot=SlotShape(slots=10, elements=K_MAX, outliers_max=K_MAX),
    ),
    "batch": BLOCKS["kllm_readback"].configs["batch"],
    "no_integers": KllmReadbackConfig(
        vectors=VectorShape(rows=65536), slot=SlotShape(slots=256, bits_a=3, integer_bits=0)
    ),
}
# (length, outliers, integer) of slots 0, 1, ...; None: not valid
SLOTS = [(1, 0, False), (16, 16, False), None, (17, 3, False), (503, 300, False), (48, 0, True)]
# Every bit of a length, of a row and of an outlier's number, as 0 and as 1.
LONGEST = [(0x3FFF, 0x2AAA, False), (0x2AAA, 0x1555, False), (0x1555, 0x0AAA, False)]


class Memory:
    """A golden machine, and its rows and slots as the memories hold them."""

    def __init__(self, config, rng):
        self.config = config
        machine = MachineConfig(
            slot=dataclasses.replace(config.slot, integer_bits=config.slot.integer_bits or 8),
            vectors=config.vectors,
            batch=config.batch,
            top=config.top,
            experts=config.experts,
        )
        self.machine = Machine(machine)
        for place in range(config.batch):  # one without a token, the others draw
            drawn = Place(1, 7, 1, Sampling(place + 1, 0x3DC5, 1000 + place))
            self.machine.cache.batch[place] = drawn if place else None
        used = [*range(40), *range(config.vectors.rows - 20, config.vectors.rows)]
        self.machine.vector[used] = torch.from_numpy(rng.integers(0, 1 << 16, (len(used), 16)))
        self.tables = {
            "row_row": {
                (row,): row_of(self.words(row))
                for row in used
            },
            "slot_descriptor": {}, "slot_entries": {}, "slot_outlier": {},
        }  # fmt: skip
        longest = LONGEST if config == CONFIGS["longest"] else []
        held = [*SLOTS[: config.slot.slots - 1 - len(longest)], *longest, (33, 2, False)]
        numbers = [*range(len(held) - 1), config.slot.slots - 1]
        for number in range(config.slot.slots):
            empty = layout_word(descriptor_layout, length=9, outliers=1, scale=7)
            self.tables["slot_descriptor"][number,] = empty
        for number, kind in zip(numbers, held, strict=True):
            if kind is not None and not (kind[2] and not config.slot.integer_bits):
                self.fill(number, *kind, rng)

    def words(self, row):
        return self.machine.vector[row].tolist()

    def fill(self, number, length, outliers, integer, rng):
        config, tables = self.config, self.tables
        bits = config.slot.integer_bits if integer else config.slot.bits_a
        index = torch.from_numpy(rng.integers(0, 1 << bits, length))
        mask = np.zeros(length, dtype=bool)
        mask[rng.permutation(length)[:outliers]] = True
        x = torch.zeros(length, dtype=torch.int64)
        x[torch.from_numpy(mask)] = torch.from_numpy(rng.integers(0, 1 << 16, outliers))
        scale, rms, mean = (int(rng.integers(0, 1 << bits)) for bits in (16, 32, 32))
        self.machine.slots[number] = Slot(
            index=index, outlier=torch.from_numpy(mask), words=x, scale=scale, integer=integer,
            rms_reciprocal=rms, mean=mean,
        )  # fmt: skip
        tables["slot_descriptor"][number,] = layout_word(
            descriptor_layout, valid=1, integer=integer, length=length, outliers=outliers,
            scale=scale, rms_reciprocal=rms, mean=mean,
        )  # fmt: skip
        rows = -(-length // 16)
        entries, marks = np.zeros((2, 16 * rows), dtype=np.int64)
        entries[:length], marks[:length] = index, mask
        layout = entry_row_layout(config.slot.bits_a, config.slot.integer_bits)
        for row in range(rows):
            here = slice(16 * row, 16 * row + 16)
            tables["slot_entries"][number, row] = layout_word(
                layout, value=entries[here], outlier=marks[here]
            )
        for n, word in enumerate(x[torch.from_numpy(mask)].tolist()):
            tables["slot_outlier"][number, n] = word

    def step(self, opcode, **operands):
        """A command and what it gives."""
        operands = COMMANDS[opcode].defaults | operands
        words = encode(opcode, 0, {}, operands)
        self.machine.readback = []
        status = self.machine.step(words).status
        step = {
            "command": command_payload(words),
            "status": [int(status)],
            "o": self.machine.readback,
            "chosen": [],
        }
        if operands.get("route") and status != CommandStatus.RANGE:
            made = self.machine.choices[operands["place"]].tolist()
            step["chosen"] = [
                join((operands["place"], 8), (n, 8), (operands["route"], 8), (made[n], 41))
                for n in reversed(range(operands["route"]))
            ]
        step |= {"row_request": [], "slot_slot": [], "slot_entry_request": []}
        step["slot_outlier_request"] = []
        if opcode == Opcode.READ and not status:
            step["row_request"] = list(range(operands["src"], operands["src"] + operands["rows"]))
        if opcode == Opcode.TOP_K and status != CommandStatus.RANGE:
            rows = -(-operands["length"] // 16)
            firsts = (operands["src"] + t * operands["stride"] for t in range(operands["tokens"]))
            step["row_request"] = [first + row for first in firsts for row in range(rows)]
        if opcode == Opcode.READ_SLOT and status != CommandStatus.RANGE:
            number = operands["slot"]
            step["slot_slot"] = [number]
            held = self.machine.slots[number]
            if held is not None:
                rows = range(-(-held.length // 16))
                # Entries, then the masks of the same rows.
                step["slot_entry_request"] = [
                    join((number, 8), (row, 10)) for row in (*rows, *rows)
                ]
                count = int(held.outlier.sum())
                step["slot_outlier_request"] = [join((number, 8), (n, 14)) for n in range(count)]
        return step


def made(config, seed):
    rng = np.random.default_rng([seed, 81])
    memory, last = Memory(config, rng), config.vectors.rows
    reads = [(0, 3), (5, 0), (last - 1, 1), (last - 1, 2), (last - 3, 3), (17, 1), (1, 65535)]
    reads = [read for read in reads if read != (1, 65535) or sum(read) > last]
    program = [memory.step(Opcode.READ, src=src, rows=rows) for src, rows in reads]
    most = config.slot.slots
    numbers = {*range(min(6, most)), most - 1, min(most, 255), 255}
    slots = [memory.step(Opcode.READ_SLOT, slot=number) for number in sorted(numbers)]
    steps = [step for pair in zip(program, slots, strict=False) for step in pair]
    steps += [*program[len(slots) :], *slots[len(program) :]]
    nothing = {key: [] for key in steps[0]}
    if config.batch:  # words of READ, of slots and of TOP_K in turn
        choices = [{"length": 37}, {"length": 640, "tokens": 1}, {"tokens": 5}, {"src": 250}]
        for n, wanted in enumerate(choices):
            operands = {"src": 0, "stride": 7, "tokens": 3, "length": 100, "first": 1000}
            operands |= {"place": 0, "begin": 1, "end": 1} | wanted
            steps.insert(3 * n + 1, memory.step(Opcode.TOP_K, **operands))
    if config.experts:  # choices, then words for the host
        operands = {"src": 0, "length": 37, "first": 0, "place": 2, "route": config.experts}
        steps.insert(2, memory.step(Opcode.TOP_K, **operands))
    steps.insert(3, nothing | {"command": 1, "status": [int(CommandStatus.MALFORMED)]})
    seen = {word for step in steps for word in step["status"]}
    assert {0, int(CommandStatus.RANGE), int(CommandStatus.SLOT_MISMATCH)} <= seen or (
        config.slot.slots == 256
    )
    return steps, memory, [memory.step(Opcode.READ, src=3, rows=12)]


def full_slots(memory) -> dict[str, list]:
    """READ_SLOTs of every slot that holds something, and (length, outliers) of each."""
    held = {n: each for n, each in enumerate(memory.machine.slots) if each is not None}
    return {
        "slots": [memory.step(Opcode.READ_SLOT, slot=number) for number in held],
        "slot_sizes": [(each.length, int(each.outlier.sum())) for each in held.values()],
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_readback(name, seed):
    config = CONFIGS[name]
    program, memory, rows = made(config, seed)
    choices = [
        layout_word(choice_layout, k=place + 1, position=7, inverse_temperature=0x3DC5,
                    seed=1000 + place)
        for place in range(config.batch)
    ]  # fmt: skip
    params = {"choices": choices, "program": program, "tables": memory.tables, "rows": rows}
    params |= full_slots(memory)
    simulate(KllmReadback(config), "tb.kllm.tb_readback", params=params, seed=seed)
