"""KllmFunctionDecode against golden.kllm.functional.execute, and a table of what each field is.

Shown to fail with:

- a check that forgets the stride
- slot b not checked
- whole heads of the cosine
- the length of SOFTMAX held against that of slots
- RANGE kept for the next command
- any bit of an operand stuck at 0
- a function, or MAXIMUM, that the unit lacks taken
- a function that it has refused
"""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import torch

from golden.kllm.config import FunctionShape, SlotShape, VectorShape
from golden.kllm.format import Operation
from golden.kllm.functional import FunctionalState, Slot, execute
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    FIRST_OPERAND_WORD,
    Binary,
    CommandStatus,
    Opcode,
    Scalar,
    Unit,
    encode,
)
from hdl.kllm.function.decode import KllmFunctionDecode, KllmFunctionDecodeConfig
from hdl.kllm.function.job import Kind, job_layout
from tb.simulate.run import simulate

CONFIGS = {
    "some": KllmFunctionDecodeConfig(
        vectors=VectorShape(rows=100), slot=SlotShape(slots=5, elements=200), softmax_elements=300
    ),
    "all": KllmFunctionDecodeConfig(
        vectors=VectorShape(rows=1 << 16),
        slot=SlotShape(slots=256, elements=16383),
        softmax_elements=16383,
        extra=FunctionShape(tanh=True, gelu_erf=True, quick_gelu=True, bounds=True),
    ),
}
CONFIGS["one"] = dataclasses.replace(CONFIGS["some"], extra=FunctionShape(gelu_erf=True))
COUNT = 800
REFUSED = CommandStatus.RANGE | CommandStatus.MALFORMED
ONE = 0x3C00
OPERATIONS = {
    Binary.ADD: Operation.SUM, Binary.MULTIPLY: Operation.PRODUCT,
    Binary.MINIMUM: Operation.MINIMUM, Binary.MAXIMUM: Operation.MAXIMUM,
}  # fmt: skip


def random_operands(rng, opcode: Opcode, config) -> dict[str, int]:
    """Operands that are in range more often than not, each near its limits now and then."""
    if rng.random() < 0.4:
        return spread_operands(rng, opcode, config)
    last = config.vectors.rows
    near = {"slot": config.slot.slots, "slot_a": config.slot.slots, "slot_b": config.slot.slots}
    values = {}
    for field in COMMANDS[opcode].operands:
        name, most = field.name, (1 << field.bits) - 1
        if name in ("tokens", "heads"):
            value = rng.integers(0, 6)
        elif name == "head_size":
            value = rng.choice([0, 16, 32, 64, 96, 48])
        elif name == "length":
            limit = {Opcode.SOFTMAX: config.softmax_elements}.get(opcode, config.slot.elements)
            value = rng.choice([0, 1, 15, 16, 17, 31, 100, limit, limit + 1])
        elif "stride" in name:
            value = rng.integers(0, 9)
        elif name in near:
            value = rng.choice([0, near[name] - 1, near[name], rng.integers(0, near[name])])
        elif name in ("src", "dst", "a", "b", "cos", "sin"):
            value = rng.choice([rng.integers(0, last), last - rng.integers(0, 20), 0])
        else:
            value = rng.integers(0, most + 1)
        if rng.random() < 0.01:
            value = most
        values[name] = int(min(value, most))
    return values


def spread_operands(rng, opcode: Opcode, config) -> dict[str, int]:
    """Operands of any magnitude; the last token ends at the last row, or one after it."""
    values = {}
    for field in COMMANDS[opcode].operands:
        values[field.name] = int(rng.integers(0, 1 << rng.integers(1, field.bits + 1)))
    limit = config.softmax_elements if opcode == Opcode.SOFTMAX else config.slot.elements
    for name in ("length", "head_size"):
        if name in values:
            values[name] = int(rng.integers(1, 1 << rng.integers(1, limit.bit_length() + 1)))
    if opcode == Opcode.ROTARY:
        values["head_size"] = max(values["head_size"] // 32 * 32, 32)
    for name in ("slot", "slot_a", "slot_b"):
        if name in values:
            values[name] %= config.slot.slots
    rows = -(-values.get("length", values.get("head_size", 16)) // 16)
    tokens = values.get("tokens", values.get("heads", 1))
    strides = {"src": "stride", "a": "a_stride", "b": "b_stride", "dst": "dst_stride"}
    widest = max(config.vectors.rows - rows, 0) // max(tokens - 1, 1)
    for name in strides.values():
        if name in values and rng.random() < 0.9:
            values[name] = min(values[name], widest)
    for name in ("src", "dst", "a", "b", "cos", "sin"):
        if name in values:
            of = values.get(strides.get(name, ""), 0)
            if opcode == Opcode.ROTARY and name not in ("cos", "sin"):
                of = rows
            reach = (tokens - 1) * of + rows
            first = config.vectors.rows - reach + int(rng.random() < 0.05)
            if first > 0 and rng.random() < 0.5:
                first = int(rng.integers(0, first + 1))
            if first >= 0:
                values[name] = min(first, (1 << 16) - 1)
    return values


def job_of(opcode: Opcode, o: dict[str, int]) -> dict[str, int]:
    """The fields of a job that are specified, by command."""
    length = o.get("length", o.get("head_size", 1))
    rows = -(-length // 16)
    job = {
        "kind": Kind.ROWS, "operation": Operation.COPY, "derives": 0, "two_slots": 0,
        "length": length, "tokens": o.get("tokens", o.get("heads", 1)), "rows": rows,
        "steps": rows, "a_first": o.get("a", o.get("src", 0)), "a_stride": o.get("a_stride", 0),
        "b_first": o.get("b", 0), "b_stride": o.get("b_stride", 0),
        "d_first": o.get("dst", 0), "d_stride": o.get("dst_stride", 0),
        "slot_a": 0, "slot_b": 0,
    }  # fmt: skip
    if opcode == Opcode.BINARY:
        job |= {"operation": OPERATIONS[Binary(o["op"])], "scalar": ONE}
    elif opcode == Opcode.AXPY:
        derives = int(o["scalar"] == Scalar.NEGATED_MEAN)
        job |= {"operation": Operation.SUM, "derives": derives, "slot_a": o["slot"]}
        if not derives:
            job["scalar"] = o["immediate"]
    elif opcode == Opcode.ROTARY:
        job |= {
            "operation": Operation.ROTATE, "steps": length // 32, "a_stride": rows,
            "d_stride": rows, "b_first": o["cos"], "b_second": o["sin"],
        }  # fmt: skip
    elif opcode == Opcode.SOFTMAX:
        job |= {"kind": Kind.SOFTMAX, "operation": Operation.SCORE, "a_stride": o["stride"]}
    elif opcode == Opcode.FUNCTION:
        job |= {"operation": Operation.ELEMENT, "function": o["function"]}
    elif opcode == Opcode.FUNCTION_CODEBOOK:
        job |= {"kind": Kind.CODEBOOK, "table": o["table"]}
        del job["d_first"]
    else:
        two = opcode == Opcode.GLU
        job |= {
            "kind": Kind.SLOTS, "operation": Operation.PRODUCT if two else Operation.COPY,
            "function": o["function"], "two_slots": int(two),
            "slot_a": o["slot_a"] if two else o["slot"], "slot_b": o.get("slot_b", 0),
        }  # fmt: skip
    reads_a = job["kind"] != Kind.SLOTS
    if not reads_a:
        del job["a_first"]
    if not reads_a or opcode not in (Opcode.BINARY, Opcode.AXPY, Opcode.ROTARY):
        del job["b_first"]
    return {name: int(value) for name, value in job.items()}


def judge(state: FunctionalState, opcode: int, operands: dict[str, int]) -> CommandStatus:
    """The status of a command before it runs: its arithmetic is left out."""
    instead = {
        "axpy": lambda scalar, a, b: a, "binary": lambda op, a, b: a, "rotary": lambda x, *_: x,
        "function": lambda op, a: a, "softmax": lambda words: (words, torch.tensor(0)),
    }  # fmt: skip
    with mock.patch.multiple("golden.kllm.functional", **instead):
        return execute(state, opcode, operands) & REFUSED


def one_bit_away(rng, opcode: Opcode, config, state) -> list[tuple[int, dict[str, int]]]:
    """Commands that differ from one in range by one bit of one operand, each bit once."""
    found = []
    for field in COMMANDS[opcode].operands:
        while judge(state, opcode, right := random_operands(rng, opcode, config)):
            pass
        found += [
            (opcode, right | {field.name: right[field.name] ^ 1 << bit})
            for bit in range(field.bits)
        ]
    return found


def command_of(opcode: int, operands: dict[str, int]) -> int:
    known = opcode in COMMANDS and COMMANDS[opcode].unit == Unit.FUNCTION
    words = encode(opcode, 0, {}, operands) if known else [0] * COMMAND_WORDS
    command = int(opcode)
    for position, word in enumerate(words[FIRST_OPERAND_WORD:]):
        command |= word << 8 + 32 * position
    return command


@pytest.mark.parametrize("name", CONFIGS)
def test_function_decode(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 87])
    opcodes = [opcode for opcode, each in COMMANDS.items() if each.unit == Unit.FUNCTION]
    length = config.slot.elements
    slot = Slot(torch.zeros(length, dtype=int), torch.zeros(length, dtype=int),
                torch.zeros(length, dtype=int), scale=ONE)  # fmt: skip
    state = FunctionalState(
        vector=torch.zeros(config.vectors.rows, 16, dtype=int), slots=[slot] * config.slot.slots,
        slot_elements=config.slot.elements, softmax_elements=config.softmax_elements, bits_a=4,
        extra=config.extra,
    )  # fmt: skip
    layout = {field: job_layout[field] for field in job_layout.members}
    commands, jobs, masks, statuses = [], [], [], set()
    given = []
    for n in range(COUNT):
        opcode, operands = int(rng.integers(0, 256)), {}
        if n % 20:
            opcode = opcodes[n % len(opcodes)]
        if opcode in opcodes:
            operands = random_operands(rng, opcode, config)
        given.append((opcode, operands))
    for opcode in opcodes:
        given += one_bit_away(rng, opcode, config, state)
    for opcode, operands in given:
        status = judge(state, opcode, operands)
        statuses.add(int(status))
        fields = {"status": int(status)} | (job_of(opcode, operands) if not status else {})
        commands.append(command_of(opcode, operands))
        jobs.append(sum(value << layout[name].offset for name, value in fields.items()))
        masks.append(
            sum((1 << layout[name].width) - 1 << layout[name].offset for name in fields)
        )
    assert statuses == {0, int(CommandStatus.RANGE), int(CommandStatus.MALFORMED)}
    simulate(
        KllmFunctionDecode(config),
        "tb.kllm.tb_function_decode",
        params={"commands": commands, "jobs": jobs, "masks": masks},
        seed=seed,
    )
