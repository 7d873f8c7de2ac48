"""Cycles of every command of KllmFunctionalUnit, and its longest tokens.

The cycles are those of golden.kllm.timing.FunctionCycles, exact for commands on rows. Those of
slots are exact without outliers, and within two bounds with them. The longest tokens have 16,383
elements; every word is equal to golden.kllm.functional.execute.

Shown to fail with:

- elements of FUNCTION taken one per cycle where 8 are side by side
- cycles of slots that are one less than those of the hardware
- a slot fetch that refuses 1,024 rows of entries
"""

import numpy as np
import pytest
import torch

from golden.kllm.config import SlotShape, VectorShape
from golden.kllm.functional import Slot
from golden.kllm.isa import Function, Opcode
from golden.kllm.timing import FunctionCycles
from golden.words import join
from hdl.kllm.function.unit import KllmFunctionalUnit, KllmFunctionalUnitConfig
from tb.kllm.test_functional_unit import CONFIGS, Program, rows_of, words_of
from tb.simulate.run import simulate

LENGTHS = (17, 576, 100, 100)  # of the slots of ``cycles``
OUTLIERS = (6, 30, 0, 0)
DELAYS = (1, 2, 4)
STAGES = 2  # of the element functions of the unit
MAXIMUM = 16_383
LONGEST = KllmFunctionalUnitConfig(
    vectors=VectorShape(rows=3100), width=4, softmax_elements=MAXIMUM,
    slot=SlotShape(slots=2, elements=MAXIMUM, outliers_max=500, bits_a=2, integer_bits=4),
)  # fmt: skip


class Memory:
    """Slots as golden and as the memory have them."""

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.slots, self.descriptors, self.entries, self.outliers = [], [], [], []

    def add(self, length, outliers) -> None:
        config, rng = self.config, self.rng
        bits = max(config.slot.bits_a, config.slot.integer_bits)
        outlier = np.zeros(length, bool)
        outlier[rng.permutation(length)[:outliers]] = True
        index = rng.integers(0, 1 << config.slot.bits_a, length)
        x = words_of(rng.normal(0, 4, length))
        scale = int(words_of(rng.uniform(0.5, 2)))
        rms, mean = (int(np.float32(each).view(np.uint32)) for each in (rng.uniform(0.1, 3), 0.25))
        self.slots.append(
            Slot(
                index=torch.tensor(index), outlier=torch.tensor(outlier), words=torch.tensor(x),
                scale=scale, integer=False, rms_reciprocal=rms, mean=mean,
            )
        )  # fmt: skip
        self.descriptors.append(
            join((1, 1), (0, 1), (length, 14), (outliers, 14), (scale, 16), (rms, 32), (mean, 32))
        )
        value = np.zeros(-(-length // 16) * 16, np.int64)
        mask = np.zeros(len(value), bool)
        value[:length], mask[:length] = index, outlier
        self.entries.append(
            [
                join(*((v, bits) for v in row), *((v, 1) for v in marks))
                for row, marks in zip(value.reshape(-1, 16), mask.reshape(-1, 16), strict=True)
            ]
        )
        self.outliers.append([int(word) for word in x[outlier]])

    def row_outliers(self, slot) -> list[int]:
        """Outliers of each row of a slot."""
        length = self.slots[slot].length
        counts = np.zeros(-(-length // 16) * 16, np.int64)
        counts[:length] = self.slots[slot].outlier.numpy()
        return counts.reshape(-1, 16).sum(axis=1).tolist()


def commands(functions):
    """(opcode, operands) of each command, at several numbers."""
    found = []
    for length in (1, 16, 17, 100, 576):
        rows = -(-length // 16)
        for tokens in (1, 3):
            found.append((Opcode.BINARY, {
                "op": 0, "a": 0, "a_stride": rows, "b": 108, "b_stride": rows, "dst": 300,
                "dst_stride": rows, "tokens": tokens, "length": length,
            }))  # fmt: skip
            found.append((Opcode.SOFTMAX, {
                "src": 0, "stride": rows, "dst": 300, "dst_stride": rows, "tokens": tokens,
                "length": length,
            }))  # fmt: skip
        for scalar in (0, 1):
            found.append((Opcode.AXPY, {
                "scalar": scalar, "immediate": 0x3C00, "slot": 0, "a": 0, "b": 100, "dst": 450,
                "length": length,
            }))  # fmt: skip
    for heads, size in ((1, 32), (3, 32), (2, 96), (9, 64)):
        found.append((Opcode.ROTARY, {
            "src": 0, "dst": 450, "cos": 100, "sin": 110, "heads": heads, "head_size": size,
        }))  # fmt: skip
    for f in functions:
        for length in (1, 17, 100):
            found.append((Opcode.FUNCTION, {"function": int(f), "src": 0, "dst": 450,
                                            "length": length}))  # fmt: skip
        for slot, length in enumerate(LENGTHS):
            found.append((Opcode.ACTIVATE, {"function": int(f), "slot": slot, "dst": 450,
                                            "length": length}))  # fmt: skip
        found.append((Opcode.GLU, {"function": int(f), "slot_a": 2, "slot_b": 3, "dst": 450,
                                   "length": 100}))  # fmt: skip
        found.append((Opcode.GLU, {"function": int(f), "slot_a": 3, "slot_b": 3, "dst": 450,
                                   "length": 100}))  # fmt: skip
    found.append((Opcode.FUNCTION_CODEBOOK, {"table": 0, "src": 0}))
    found.append((Opcode.BINARY, found[0][1] | {"tokens": 0}))
    return found


def cycles_of(memory, opcode, o, cycles: FunctionCycles, bad: int = 0) -> tuple[int, int]:
    """(least, most) cycles of a command."""
    rows = -(-o.get("length", 0) // 16)
    name = Function(o["function"]).name if "function" in o else ""
    if opcode == Opcode.ACTIVATE:
        return cycles.slots(memory.row_outliers(o["slot"]), name)
    if opcode == Opcode.GLU:
        first, second = (memory.row_outliers(o[slot]) for slot in ("slot_a", "slot_b"))
        return cycles.slots(first, name, second)
    if opcode == Opcode.BINARY:
        exact = cycles.rows(rows * o["tokens"]) if o["tokens"] else cycles.refused
    elif opcode == Opcode.AXPY:
        exact = cycles.axpy(rows) if o["scalar"] else cycles.rows(rows)
    elif opcode == Opcode.ROTARY:
        exact = cycles.rotary(o["heads"] * o["head_size"] // 16)
    elif opcode == Opcode.SOFTMAX:
        exact = cycles.softmax(rows, o["tokens"], bad)
    elif opcode == Opcode.FUNCTION:
        exact = cycles.function(rows, name)
    else:
        exact = cycles.codebook
    return exact, exact


def timed(config, answer) -> FunctionCycles:
    return FunctionCycles(config.width, config.slot.bits_a, STAGES, answer, config.functions)


def params_of(memory, program, name) -> dict:
    return {
        "programs": {name: program.steps},
        "descriptors": memory.descriptors,
        "entries": memory.entries,
        "outliers": memory.outliers,
        "delays": DELAYS,
    }


@pytest.mark.telling("width_4", "width_8_functions_8", "extra")
@pytest.mark.parametrize("name", CONFIGS)
def test_cycles(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 98])
    memory = Memory(config, rng)
    for length, outliers in zip(LENGTHS, OUTLIERS, strict=True):
        memory.add(length, outliers)
    vector = words_of(rng.uniform(-1, 1, (config.vectors.rows, 16)))
    vector[640, 3] = 0x7E00  # the second token of the last SOFTMAX
    program = Program(config, rng, memory.slots, vector)
    last = config.vectors.rows - 1
    given = [(Opcode.FUNCTION_CODEBOOK, {"table": t, "src": last - t}, 0) for t in (0, 1)]
    given += [(opcode, operands, 0) for opcode, operands in commands(config.extra.functions)]
    given.append((Opcode.SOFTMAX, {
        "src": 638, "stride": 2, "dst": 450, "dst_stride": 2, "tokens": 3, "length": 32,
    }, 1))  # fmt: skip
    for opcode, operands, bad in given:
        program.step(opcode, operands)
        program.steps[-1]["cycles"] = {
            delay: cycles_of(memory, opcode, operands, timed(config, delay), bad)
            for delay in DELAYS
        }
    params = params_of(memory, program, "cycles")
    # The commands whose cycles the timing states.
    stated = {
        "": ("BINARY", {"tokens": 1, "length": 1}),
        "of a refused command": ("BINARY", {"tokens": 0}),
        "of FUNCTION_CODEBOOK": ("FUNCTION_CODEBOOK", {}),
        "of SOFTMAX of one row": ("SOFTMAX", {"tokens": 1, "length": 1}),
    }
    steps = {
        text: next(
            n for n, (opcode, o, _) in enumerate(given)
            if opcode.name == name and all(o[field] == v for field, v in fields.items())
        )
        for text, (name, fields) in stated.items()
    }  # fmt: skip
    simulate(
        KllmFunctionalUnit(config),
        "tb.kllm.tb_functional_cycles",
        params={
            **params,
            "stated": steps,
            "vector": [rows_of(row)[0] for row in vector],
        },
        seed=seed,
    )


def test_longest_tokens(seed):
    """SOFTMAX, AXPY of a folded LayerNorm, ACTIVATE and GLU of 16,383 elements."""
    config, rng = LONGEST, np.random.default_rng([seed, 99])
    memory = Memory(config, rng)
    for outliers in (500, 0):
        memory.add(MAXIMUM, outliers)
    rows = -(-MAXIMUM // 16)
    vector = words_of(rng.uniform(-1, 1, (config.vectors.rows, 16)))
    vector[: 2 * rows] = words_of(rng.normal(0, 3, (2 * rows, 16)))
    vector[rows - 1, 15] = 0x7BFF  # after the length: it would be the largest
    program = Program(config, rng, memory.slots, vector)
    last = config.vectors.rows - 1
    for opcode, operands in (
        (Opcode.FUNCTION_CODEBOOK, {"table": 0, "src": last}),
        (Opcode.FUNCTION_CODEBOOK, {"table": 1, "src": last - 1}),
        (Opcode.SOFTMAX, {"src": 0, "stride": 0, "dst": rows, "dst_stride": 0, "tokens": 1,
                          "length": MAXIMUM}),
        (Opcode.AXPY, {"scalar": 1, "immediate": 0, "slot": 0, "a": 0, "b": rows, "dst": 2 * rows,
                       "length": MAXIMUM}),
        (Opcode.ACTIVATE, {"function": int(Function.SILU), "slot": 0, "dst": 0,
                           "length": MAXIMUM}),
        (Opcode.GLU, {"function": int(Function.GELU), "slot_a": 1, "slot_b": 0, "dst": 17,
                      "length": MAXIMUM}),
    ):  # fmt: skip
        assert program.step(opcode, operands) == 0
        program.steps[-1]["cycles"] = cycles_of(memory, opcode, operands, timed(config, 2))
    simulate(
        KllmFunctionalUnit(config),
        "tb.kllm.tb_functional_longest",
        params={
            **params_of(memory, program, "longest"),
            "vector": [rows_of(row)[0] for row in vector],
        },
        seed=seed,
    )
