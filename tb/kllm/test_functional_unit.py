"""KllmFunctionalUnit against golden.kllm.functional.execute: programs on a memory model.

Shown to fail:

- the sine's sign on the other half;
- elements after the length kept;
- the largest element taken from the padding;
- exponentials of the padding added;
- a row of nothing but -infinity taken as any;
- table b filled by the scale of slot a;
- answers given to the other slot;
- a range check that forgets the stride;
- a golden that keeps an outlier that is a NaN;
- a front of several tokens, of ROTARY, of a command on slots, or of the command before;
- a front that moves on before its row is written, or ends a row early;
- MINIMUM done as MAXIMUM, or without its row of b;
- a function with a table refused, or one that a unit without it does.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from golden.fp16.vectors.columns import random_words
from golden.kllm.config import FunctionShape, SlotShape, VectorShape
from golden.kllm.functional import FunctionalState, Slot, execute
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    Binary,
    CommandStatus,
    Opcode,
    Scalar,
    Unit,
    encode,
)
from golden.words import join
from hdl.kllm.function.unit import KllmFunctionalUnit, KllmFunctionalUnitConfig
from tb.kllm.support.commands import command_payload, row_of
from tb.simulate.run import simulate

VECTORS = VectorShape(rows=700)
CONFIGS = {
    "width_8": KllmFunctionalUnitConfig(
        vectors=VECTORS, slot=SlotShape(slots=12, elements=600), softmax_elements=600
    ),
    "width_4": KllmFunctionalUnitConfig(
        vectors=VECTORS, width=4, softmax_elements=580,
        slot=SlotShape(slots=12, elements=580, outliers_max=600, bits_a=3, integer_bits=4),
    ),
    "width_16": KllmFunctionalUnitConfig(
        vectors=VECTORS, width=16, softmax_elements=592,
        slot=SlotShape(slots=12, elements=600, outliers_max=600, bits_a=2, integer_bits=0),
    ),
}
CONFIGS |= {
    f"width_{width}": dataclasses.replace(CONFIGS["width_4"], width=width) for width in (1, 2)
}  # fmt: skip
CONFIGS |= {
    f"width_{width}_functions_{functions}": dataclasses.replace(
        CONFIGS[f"width_{width}"], functions=functions
    )
    for width, functions in ((1, 2), (4, 2), (4, 8), (8, 8), (16, 8))
}
CONFIGS["extra"] = dataclasses.replace(
    CONFIGS["width_8"],
    extra=FunctionShape(tanh=True, gelu_erf=True, quick_gelu=True, bounds=True),
)
CONFIGS["front"] = dataclasses.replace(CONFIGS["width_8_functions_8"], front=True)
LENGTHS = [1, 15, 16, 17, 31, 32, 100, 576]
INF, NAN, NEGATIVE_INF = 0x7C00, 0x7E00, 0xFC00
# Cycles besides the passes over the elements, the same for all data: the checks of a command, its
# descriptors, and the longest chain of pipelines (GELU, 9 stages, then the lanes and the write).
OVERHEAD = 64


def words_of(value) -> np.ndarray:
    return np.asarray(value, np.float16).view(np.uint16).astype(np.int64)


def rows_of(words) -> list[int]:
    """Rows of 16 words as integers, zero after the end."""
    padded = [*map(int, words), *[0] * (-len(words) % 16)]
    return [row_of(padded[first : first + 16]) for first in range(0, len(padded), 16)]


class Recorded(FunctionalState):
    """Remembers which rows are written."""

    written: set[int]

    def write(self, row, words):
        self.written |= set(range(row, row - (-len(words) // 16)))
        super().write(row, words)


class Program:
    """Steps for the simulator, computed by golden as they are added."""

    def __init__(self, config, rng, slots, vector):
        self.config, self.rng = config, rng
        self.state = Recorded(
            vector=torch.tensor(vector),
            slots=slots,
            slot_elements=config.slot.elements,
            softmax_elements=config.softmax_elements,
            bits_a=config.slot.bits_a,
            extra=config.extra,
        )
        self.state.written = set()
        self.steps = []

    def step(self, opcode, operands, pokes=(), bound=0, name=None):
        """One command; pokes: (row, words) written before it."""
        state, rows = self.state, {}
        for row, words in pokes:
            state.write(row, torch.as_tensor(words))
            rows.update(enumerate(rows_of(words), start=row))
        state.written = set()
        status = execute(state, opcode, operands)
        known = opcode in COMMANDS and COMMANDS[opcode].unit == Unit.FUNCTION
        words = encode(opcode, 0, {}, operands) if known else [0] * COMMAND_WORDS
        command = command_payload([int(opcode), *words[1:]])
        self.steps.append(
            {
                "name": name or f"{len(self.steps)} {opcode!r} {operands}",
                "pokes": rows,
                "command": command,
                "status": int(status),
                "rows": {
                    row: rows_of(state.vector[row].numpy())[0] for row in sorted(state.written)
                },
                "bound": bound,
                "told": told_rows(opcode, operands) if not status else None,
            }
        )
        return status


def told_rows(opcode, o) -> tuple[int, int] | None:
    """First row and rows of a command whose rows ``front`` tells; None: of no others."""
    is_told = opcode in (Opcode.BINARY, Opcode.AXPY, Opcode.FUNCTION)
    if not is_told or o.get("tokens", 1) != 1 or o.get("scalar"):
        return None
    return o["dst"], -(-o["length"] // 16)


def vectors_of(rng, count) -> np.ndarray:
    """Words of the ordinary range, or of all ranges with infinities, NaN and subnormals."""
    if rng.random() < 0.5:
        return random_words(rng, count).astype(np.int64)
    x = words_of(rng.normal(0, 2, count))
    special = np.array([0, 0x8000, 1, 0x8001, INF, NEGATIVE_INF, NAN, 0x7BFF, 0x3FF])
    return np.where(rng.random(count) < 0.05, rng.choice(special, count), x)


def scores(rng, count) -> np.ndarray:
    """A row for SOFTMAX: ordinary, masked, constant, wide, all masked, infinite or NaN."""
    kind = rng.integers(0, 12)
    x = words_of(rng.normal(0, [1, 4, 20][kind % 3], count))
    if kind in (3, 4):
        x[rng.random(count) < 0.5] = NEGATIVE_INF
    if kind == 5:
        x[:] = x[0]
    if kind == 6:
        x = words_of(rng.uniform(-65000, 65000, count))
    if kind == 7:
        x[:] = NEGATIVE_INF
    if kind == 8:
        x[rng.integers(0, count)] = rng.choice([INF, NAN, 0xFE00, 0xFFFF])
    if kind == 9:
        x = rng.choice([0, 0x8000, 1, 0x8001], count)
    if kind == 10:
        x[rng.random(count) < 0.95] = NEGATIVE_INF
        x[-1] = x[0]
    return x.astype(np.int64)


def make_slots(config, rng):
    """(slots of golden, descriptors, entry rows, outlier words)."""
    slots, descriptors, entries, outliers = [], [], [], []
    bits = max(config.slot.bits_a, config.slot.integer_bits)
    kinds = [*LENGTHS, 100, 576, "integer", "empty"]
    for kind in kinds[: config.slot.slots]:
        length = kind if isinstance(kind, int) else 100
        share = rng.choice([0.005, 0.05, 0.3])
        count = int(min(round(share * length) + 1, config.slot.outliers_max, length))
        if kind == "integer":
            count = 0
        outlier = np.zeros(length, bool)
        outlier[rng.permutation(length)[:count]] = True
        index = rng.integers(0, 1 << config.slot.bits_a, length)
        x = words_of(rng.normal(0, 8, length))
        x = np.where(rng.random(length) < 0.1, random_words(rng, length), x)
        if length == 31:  # ACTIVATE runs every function on it, IDENTITY too
            x = rng.choice([0x7C01, 0xFC01, 0x7FFF, 0xFE00, 0xFFFF], length)
        scale = int(words_of(abs(rng.normal(0, 3))))
        rms, mean = (
            int(np.float32(value).view(np.uint32)) for value in (rng.uniform(0.1, 3), rng.normal())
        )
        slot = Slot(
            index=torch.tensor(index), outlier=torch.tensor(outlier), words=torch.tensor(x),
            scale=scale, integer=kind == "integer", rms_reciprocal=rms, mean=mean,
        )  # fmt: skip
        valid = kind != "empty"
        slots.append(slot if valid else None)
        descriptors.append(
            join(
                (valid, 1), (kind == "integer", 1), (length, 14), (count, 14), (scale, 16),
                (rms, 32), (mean, 32),
            )
        )  # fmt: skip
        # Everything after the length is junk, ones in the mask too.
        padded = -(-length // 16) * 16
        value = rng.integers(0, 1 << bits, padded)
        value[:length] = index | (value[:length] >> config.slot.bits_a << config.slot.bits_a)
        mask = rng.integers(0, 2, padded).astype(bool)
        mask[:length] = outlier
        rows = []
        for row in range(padded // 16):
            here = slice(16 * row, 16 * row + 16)
            rows.append(join(*((v, bits) for v in value[here]), *((v, 1) for v in mask[here])))
        entries.append(rows)
        outliers.append([int(word) for word in x[outlier]])
    return slots, descriptors, entries, outliers


def free_rows(rng, config, *counts):
    """First rows of disjoint regions of ``counts`` rows, anywhere, the last row included."""
    slack = config.vectors.rows - sum(counts)
    cuts = np.sort(rng.integers(0, slack + 1, len(counts)))
    if rng.random() < 0.3:
        cuts[-1] = slack
    order = rng.permutation(len(counts))
    first, at = [0] * len(counts), 0
    for k, region in enumerate(order):
        first[region] = int(at + cuts[k])
        at += counts[region]
    return first


def add_command(program, opcode, length=None, in_place=None, function=None):
    """A random right command of ``opcode``."""
    config, rng = program.config, program.rng
    length = int(rng.choice(LENGTHS)) if length is None else length
    rows = -(-length // 16)
    in_place = bool(rng.integers(0, 2)) if in_place is None else in_place
    known = config.extra.functions
    f = int(known[rng.integers(0, len(known))] if function is None else function)
    if opcode == Opcode.BINARY:
        tokens = int(rng.integers(1, 4))
        strides = [rows + int(rng.integers(0, 3)) for _ in range(3)]
        if rng.random() < 0.4:
            strides[1] = 0
        sizes = [stride * (tokens - 1) + rows for stride in strides]
        a, b, dst = free_rows(rng, config, *sizes)
        if in_place:
            dst, strides[2] = a, strides[0]
        pokes = [(a, vectors_of(rng, 16 * sizes[0])), (b, vectors_of(rng, 16 * sizes[1]))]
        operands = {
            "op": int(rng.integers(0, len(config.extra.operations))), "a": a,
            "a_stride": strides[0], "b": b, "b_stride": strides[1], "dst": dst,
            "dst_stride": strides[2], "tokens": tokens, "length": length,
        }  # fmt: skip
    elif opcode == Opcode.AXPY:
        a, b, dst = free_rows(rng, config, rows, rows, rows)
        pokes = [(a, vectors_of(rng, 16 * rows)), (b, vectors_of(rng, 16 * rows))]
        operands = {
            "scalar": int(rng.integers(0, 2)), "immediate": int(vectors_of(rng, 1)[0]),
            "slot": int(rng.integers(0, config.slot.slots - 1)), "a": a, "b": b,
            "dst": b if in_place else dst, "length": length,
        }  # fmt: skip
    elif opcode == Opcode.ROTARY:
        size, heads = int(rng.choice([32, 64, 96, 128])), int(rng.integers(1, 5))
        total, half = heads * size // 16, size // 32
        src, cos, sin, dst = free_rows(rng, config, total, half, half, total)
        angles = rng.uniform(-4, 4, 16 * half)
        pokes = [(src, vectors_of(rng, 16 * total))]
        pokes += [(cos, words_of(np.cos(angles))), (sin, words_of(np.sin(angles)))]
        operands = {
            "src": src, "dst": src if in_place else dst, "cos": cos, "sin": sin, "heads": heads,
            "head_size": size,
        }  # fmt: skip
    elif opcode == Opcode.SOFTMAX:
        tokens = int(rng.integers(1, 4)) if length < 500 else 1
        strides = [rows + int(rng.integers(0, 3)) for _ in range(2)]
        sizes = [stride * (tokens - 1) + rows for stride in strides]
        src, dst = free_rows(rng, config, *sizes)
        if in_place:
            dst, strides[1] = src, strides[0]
        # After the length: what would be the largest.
        pokes = []
        for t in range(tokens):
            whole = np.full(16 * rows, 0x7BFF)
            whole[:length] = scores(rng, length)
            pokes.append((src + t * strides[0], whole))
        operands = {
            "src": src, "stride": strides[0], "dst": dst, "dst_stride": strides[1],
            "tokens": tokens, "length": length,
        }  # fmt: skip
    elif opcode == Opcode.FUNCTION:
        src, dst = free_rows(rng, config, rows, rows)
        pokes = [(src, vectors_of(rng, 16 * rows))]
        operands = {"function": f, "src": src, "dst": src if in_place else dst, "length": length}
    elif opcode == Opcode.FUNCTION_CODEBOOK:
        (src,) = free_rows(rng, config, 1)
        pokes = [(src, words_of(np.sort(rng.uniform(-1, 1, 16))))]
        operands = {"table": int(rng.integers(0, 2)), "src": src}
    else:
        fitting = [
            k for k, slot in enumerate(program.state.slots)
            if slot is not None and not slot.integer and slot.length == length
        ]  # fmt: skip
        (dst,) = free_rows(rng, config, rows)
        pokes = []
        operands = {"function": f, "dst": dst, "length": length}
        if opcode == Opcode.ACTIVATE:
            operands["slot"] = int(rng.choice(fitting))
        else:
            operands["slot_a"] = int(rng.choice(fitting))
            operands["slot_b"] = int(rng.choice(fitting))
    return program.step(opcode, operands, pokes)


def codebooks(program):
    for table in (0, 1):
        (src,) = free_rows(program.rng, program.config, 1)
        words = words_of(np.sort(program.rng.uniform(-1, 1, 16)))
        program.step(Opcode.FUNCTION_CODEBOOK, {"table": table, "src": src}, [(src, words)])


OPCODES = [
    Opcode.BINARY, Opcode.AXPY, Opcode.ROTARY, Opcode.SOFTMAX, Opcode.FUNCTION, Opcode.ACTIVATE,
    Opcode.GLU,
]  # fmt: skip


def mixed(program):
    """Every command at several lengths, in random order; every function from slots and rows."""
    rng = program.rng
    codebooks(program)
    plan = [(opcode, length, None) for opcode in OPCODES for length in (1, 15, 16, 17, 100)]
    plan += [(opcode, 576, None) for opcode in (Opcode.BINARY, Opcode.ACTIVATE, Opcode.GLU)]
    plan += [(Opcode.SOFTMAX, length, None) for length in (16, 31, 100, 100, 100, 576)]
    known = program.config.extra.functions
    plan += [(opcode, 31, f) for f in known for opcode in (Opcode.FUNCTION, Opcode.ACTIVATE)]
    plan += [(Opcode.GLU, int(rng.choice(LENGTHS)), f) for f in known]
    plan += [(Opcode.BINARY, 100, None)] * 4
    plan += [(Opcode.FUNCTION_CODEBOOK, None, None)] * 4
    for k in rng.permutation(len(plan)):
        opcode, length, f = plan[k]
        add_command(program, opcode, length, function=f)


def faults(program):
    """Every status, each followed by a right command."""
    config, rng = program.config, program.rng
    last = config.vectors.rows
    R, C, S, M = (
        CommandStatus.RANGE,
        CommandStatus.CODEBOOK_MISSING,
        CommandStatus.SLOT_MISMATCH,
        CommandStatus.MALFORMED,
    )
    activate = {"function": 2, "slot": 6, "dst": 0, "length": 100}
    glu = {"function": 2, "slot_a": 6, "slot_b": 8, "dst": 0, "length": 100}
    integer, empty = 10, 11

    def expect(status, opcode, operands):
        assert program.step(opcode, operands) == status, (opcode, operands)
        add_command(program, Opcode.BINARY, 17)

    expect(C, Opcode.ACTIVATE, activate)
    expect(C, Opcode.GLU, glu)
    for table in (1, 0):
        (src,) = free_rows(rng, config, 1)
        words = words_of(np.sort(rng.uniform(-1, 1, 16)))
        program.step(Opcode.FUNCTION_CODEBOOK, {"table": table, "src": src}, [(src, words)])
        if table:
            expect(C, Opcode.ACTIVATE, activate)
            expect(C, Opcode.GLU, glu)
    assert not add_command(program, Opcode.GLU, 100)
    for wrong in ({"length": 99}, {"slot": integer}, {"slot": empty}, {"slot": 7}):
        expect(S, Opcode.ACTIVATE, activate | wrong)
    for name in ("slot_a", "slot_b"):
        for number in (integer, empty, 5):
            expect(S, Opcode.GLU, glu | {name: number})
    axpy = {"scalar": 1, "immediate": 0, "slot": 0, "a": 0, "b": 20, "dst": 40, "length": 100}
    expect(S, Opcode.AXPY, axpy | {"slot": empty})
    expect(CommandStatus(0), Opcode.AXPY, axpy | {"slot": integer})
    expect(CommandStatus(0), Opcode.AXPY, axpy | {"scalar": Scalar.IMMEDIATE, "slot": 255})
    outside = [{"length": 0}, {"slot": config.slot.slots}, {"slot": 255}]
    outside += [{name: last - 6} for name in ("a", "b", "dst")] + [{"length": 65535}]
    for wrong in outside:
        expect(R, Opcode.AXPY, axpy | wrong)
    for name in ("a", "b", "dst"):
        expect(CommandStatus(0), Opcode.AXPY, axpy | {"slot": 0, name: last - 7})
    for wrong in ({"slot": config.slot.slots}, {"length": config.slot.elements + 1}, {"length": 0},
                  {"dst": last - 6}):  # fmt: skip
        expect(R, Opcode.ACTIVATE, activate | wrong)
    for wrong in ({"slot_a": config.slot.slots}, {"slot_b": 255}, {"dst": last - 1}):
        expect(R, Opcode.GLU, glu | wrong)
    binary = {
        "op": Binary.ADD, "a": 0, "a_stride": 2, "b": 100, "b_stride": 3, "dst": 200,
        "dst_stride": 4, "tokens": 5, "length": 17,
    }  # fmt: skip
    ends = {"a": last - 10, "b": last - 14, "dst": last - 18}
    for name, row in ends.items():
        expect(CommandStatus(0), Opcode.BINARY, binary | {name: row})
        expect(R, Opcode.BINARY, binary | {name: row + 1})
        expect(R, Opcode.BINARY, binary | {f"{name}_stride": 65535})
    for op in Binary:
        right = op in config.extra.operations
        expect(CommandStatus(0) if right else R, Opcode.BINARY, binary | {"op": op})
    function = {"src": 0, "dst": 50, "length": 17}
    for f in range(16):
        status = CommandStatus(0) if f in config.extra.functions else R
        expect(status, Opcode.FUNCTION, function | {"function": f})
        expect(status, Opcode.ACTIVATE, activate | {"function": f})
        expect(status, Opcode.GLU, glu | {"function": f})
    expect(R, Opcode.BINARY, binary | {"tokens": 0})
    expect(R, Opcode.BINARY, binary | {"length": 0})
    rotary = {"src": 0, "dst": 50, "cos": 100, "sin": 110, "heads": 3, "head_size": 64}
    outside = [{"src": last - 11}, {"dst": last - 11}, {"cos": last - 1}, {"sin": last - 1}]
    outside += [{"head_size": size} for size in (0, 16, 48, 33)] + [{"heads": 0}, {"heads": 255}]
    for wrong in outside:
        expect(R, Opcode.ROTARY, rotary | wrong)
    for right in ({"src": last - 12}, {"dst": last - 12}, {"cos": last - 2}, {"sin": last - 2}):
        expect(CommandStatus(0), Opcode.ROTARY, rotary | right)
    softmax = {"src": 0, "stride": 7, "dst": 50, "dst_stride": 8, "tokens": 3, "length": 100}
    outside = [{"src": last - 20}, {"dst": last - 22}, {"tokens": 0}, {"length": 0}]
    for wrong in [*outside, {"length": config.softmax_elements + 1}]:
        expect(R, Opcode.SOFTMAX, softmax | wrong)
    for bad in (NAN, INF, 0xFFFF):
        pokes = [(7 * t, words_of(rng.normal(0, 1, 112))) for t in range(3)]
        pokes[1][1][int(rng.integers(0, 100))] = bad
        assert program.step(Opcode.SOFTMAX, softmax, pokes) == CommandStatus.NONFINITE
        add_command(program, Opcode.AXPY, 17)
    function = {"function": 7, "src": 0, "dst": 50, "length": 100}
    for wrong in ({"src": last - 6}, {"dst": last - 6}, {"length": 0}):
        expect(R, Opcode.FUNCTION, function | wrong)
    expect(R, Opcode.FUNCTION_CODEBOOK, {"table": 0, "src": last})
    expect(CommandStatus(0), Opcode.FUNCTION_CODEBOOK, {"table": 0, "src": last - 1})
    for unknown in (0, 0x2F, 0x38, 0x21, 0xFF):
        expect(M, unknown, {})


def cycles(program):
    """Long commands; bound: passes over the elements at ``width`` elements per cycle."""
    config, rng = program.config, program.rng
    width, length = config.width, 576
    codebooks(program)
    add_bound = {
        Opcode.BINARY: length // width, Opcode.AXPY: length // width,
        Opcode.SOFTMAX: 3 * length // width, Opcode.FUNCTION: length // config.functions,
    }  # fmt: skip
    x = [(row, words_of(rng.normal(0, 1, length))) for row in (0, 100)]
    one = {
        "op": 0, "a": 0, "a_stride": 0, "b": 100, "b_stride": 0, "dst": 200, "dst_stride": 0,
        "tokens": 1, "length": length,
    }  # fmt: skip
    program.step(Opcode.BINARY, one, x, add_bound[Opcode.BINARY], "BINARY 576")
    four = {
        "op": 0, "a": 0, "a_stride": 36, "b": 150, "b_stride": 36, "dst": 300,
        "dst_stride": 36, "tokens": 4, "length": length,
    }  # fmt: skip
    program.step(Opcode.BINARY, four, (), 4 * length // width, "BINARY 4 x 576")
    axpy = {"scalar": 1, "immediate": 0, "slot": 7, "a": 0, "b": 100, "dst": 200, "length": length}
    program.step(Opcode.AXPY, axpy, x, add_bound[Opcode.AXPY], "AXPY 576")
    rotary = {"src": 0, "dst": 200, "cos": 100, "sin": 110, "heads": 9, "head_size": 64}
    program.step(Opcode.ROTARY, rotary, x, length // width, "ROTARY 9 x 64")
    softmax = {"src": 0, "stride": 0, "dst": 200, "dst_stride": 0, "tokens": 1, "length": length}
    program.step(Opcode.SOFTMAX, softmax, x, add_bound[Opcode.SOFTMAX], "SOFTMAX 576")
    function = {"function": 2, "src": 0, "dst": 200, "length": length}
    program.step(Opcode.FUNCTION, function, x, add_bound[Opcode.FUNCTION], "FUNCTION SILU 576")
    tables = 1 << config.slot.bits_a
    for slot in (7, 9):
        golden = program.state.slots[slot]
        counts = golden.outlier.numpy().reshape(-1, 16).sum(axis=1)
        bound = int(np.maximum(counts, 16 // width).sum()) + tables
        activate = {"function": 2, "slot": slot, "dst": 200, "length": length}
        count = int(counts.sum())
        program.step(Opcode.ACTIVATE, activate, (), bound, f"ACTIVATE SILU 576, {count} outliers")
    golden = [program.state.slots[slot].outlier.numpy().reshape(-1, 16) for slot in (7, 9)]
    counts = [each.sum(axis=1) for each in golden]
    least = max(16 // width, 2)
    # One client fetches the outliers of both slots.
    bound = int(np.maximum(counts[0] + counts[1], least).sum()) + 2 * tables
    glu = {"function": 2, "slot_a": 7, "slot_b": 9, "dst": 200, "length": length}
    name = f"GLU SILU 576, {counts[0].sum()} and {counts[1].sum()} outliers"
    program.step(Opcode.GLU, glu, (), bound, name)


def chains(program):
    """Each function on the results of another one, at odd lengths, one right after the other."""
    rng = program.rng
    order = [f for pair in itertools.permutations(program.config.extra.functions, 2) for f in pair]
    for n, f in enumerate(order):
        length = int(rng.choice([1, 3, 7, 9, 15, 17, 31, 33, 47, 99]))
        pokes = [(0, vectors_of(rng, 112))] if n % 8 == 0 else []
        src = 8 * (n % 2)
        operands = {"function": int(f), "src": src, "dst": 8 - src, "length": length}
        program.step(Opcode.FUNCTION, operands, pokes)


def resets(program):
    for opcode, length in [(opcode, 100) for opcode in OPCODES]:
        add_command(program, opcode, length, in_place=False)


def machine_params(config, seed):
    rng = np.random.default_rng([seed, 63])
    slots, descriptors, entries, outliers = make_slots(config, rng)
    vector = rng.integers(0, 1 << 16, (config.vectors.rows, 16))
    programs = {}
    for fill in (mixed, faults, cycles, chains):
        program = Program(config, rng, slots, vector)
        fill(program)
        programs[fill.__name__] = program.steps
    program = Program(config, rng, slots, vector)
    codebooks(program)
    programs["codebooks"] = list(program.steps)
    resets(program)
    programs["resets"] = program.steps[2:]
    return {
        "programs": programs,
        "descriptors": descriptors,
        "entries": entries,
        "outliers": outliers,
        "vector": [rows_of(row)[0] for row in vector],
        "overhead": OVERHEAD,
    }


@pytest.mark.telling("width_1", "width_4", "width_4_functions_8", "width_16", "front", "extra")
@pytest.mark.parametrize("name", CONFIGS)
def test_functional_unit(name, seed):
    config = CONFIGS[name]
    simulate(
        KllmFunctionalUnit(config),
        "tb.kllm.tb_functional_unit",
        params=machine_params(config, seed),
        seed=seed,
    )


def test_programs_have_every_status():
    programs = machine_params(CONFIGS["width_8"], 1)["programs"]
    seen = {step["status"] for step in programs["faults"]}
    assert seen == {0, 1 << 0, 1 << 2, 1 << 3, 1 << 4, 1 << 5}
    assert any(step["status"] for step in programs["mixed"])
