"""The golden machine: every command against a plain computation, every fault, recovery.

Shown to fail:

- a fault that writes its destination;
- a DEPENDENCY that does not count;
- a padding element that is kept;
- lanes that see only the wanted outputs.
"""

import numpy as np
import pytest
import torch

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.nearest import midpoints
from golden.kllm.assembler import Assembler, Slots, Vector
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.format import weight_port_words
from golden.kllm.image import weight_image
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    Binary,
    Codebook,
    CommandStatus,
    Function,
    MatmulMode,
    Norm,
    Opcode,
    OutlierMode,
    Outliers,
    Statistics,
    Unit,
    encode,
)
from golden.kllm.machine import Machine, Memory, Result, slot_of_words, slot_words
from golden.kllm.matmul import matmul
from golden.kllm.programs import random_program
from golden.kllm.quantize import quantize_tokens, quantize_unsigned
from golden.kllm.records import Codebooks, Packet, Weight
from golden.kllm.vectors.requests import codebook_packet, integer_packet
from hdl.registry import all_blocks

SMALL = MACHINES["small"]
NAN = 0x7E00


def words_of(values) -> torch.Tensor:
    return bits_from_float(torch.as_tensor(np.asarray(values), dtype=torch.float64))


def book(bits: int, seed: int) -> torch.Tensor:
    values = np.sort(np.random.default_rng(seed).uniform(-1, 1, 1 << bits))
    return words_of(values)


class Bench:
    """A machine whose vector memory is written directly, and one weight image of 40 x 20."""

    length, outputs, address = 40, 20, 5

    def __init__(self, config: MachineConfig = SMALL, scale: float = 0.5):
        rng = np.random.default_rng(1)
        self.config, self.asm = config, Assembler(config)
        self.index = torch.from_numpy(rng.integers(0, 16, (self.length, self.outputs)))
        self.scale = words_of(rng.uniform(0.1, 1, self.outputs) * scale)
        image = weight_image(self.index.numpy(), self.scale.numpy(), config.layout)
        before = np.full(self.address * config.port_bits // 8, 0xA5, dtype=np.uint8)
        weights = [np.concatenate((before, port)) for port in image]
        self.machine = Machine(config, np.arange(320, dtype=np.uint8), weights)
        self.a, self.b = book(config.bits_a, 2), book(config.bits_b, 3)
        self.packet = torch.from_numpy(codebook_packet(self.a, self.b))
        self.x = Vector(100, self.length, 2, 3)
        self.values = words_of(rng.normal(size=(2, self.length)))
        for t in range(2):
            self.machine.state.write(100 + 3 * t, self.values[t])
        self.machine.state.write(10, self.packet)
        self.machine.state.write(40, self.b)
        self.machine.state.write(42, self.a)
        self.machine.state.write(43, midpoints(self.a))

    def run(self) -> list[CommandStatus]:
        """Statuses of what was assembled since the last run."""
        words = self.asm.parts.pop()
        self.asm.parts.append([])
        return [result.status for result in self.machine.run(words)]

    def one(self, opcode: Opcode, **operands: int) -> CommandStatus:
        self.asm.emit(opcode, operands, check=False)
        return self.run()[0]

    def read(self, vector: Vector, t: int = 0) -> torch.Tensor:
        return self.machine.state.read(vector.row + t * vector.stride, vector.length)

    def quantize(self, slot: int = 1, k: int = 1) -> None:
        self.asm.activation_codebook(src=42)
        self.asm.quantize(src=self.x, slot=Slots(slot, 2), outliers=Outliers(k, k))
        assert self.run() == [0, 0]


def test_load() -> None:
    bench = Bench()
    assert bench.one(Opcode.LOAD, address=2, rows=3, dst=7) == 0
    expected = np.arange(64, 160, dtype=np.uint8).view("<u2").astype(np.int64)
    assert bench.machine.vector[7:10].reshape(-1).tolist() == expected.tolist()
    assert bench.one(Opcode.LOAD, address=0, rows=0, dst=7) == CommandStatus.RANGE
    assert bench.one(Opcode.LOAD, address=0, rows=2, dst=255) == CommandStatus.RANGE
    assert bench.machine.vector[7, 0] == expected[0]
    assert not bench.machine.vector[255].any()
    bench.machine.data.faults.add(4)
    for address, rows in ((3, 2), (9, 2)):  # a fault, and beyond the end
        assert bench.one(Opcode.LOAD, address=address, rows=rows, dst=7) == CommandStatus.BUS_ERROR
        assert bool((bench.machine.vector[7 : 7 + rows] == NAN).all())
    assert bench.one(Opcode.LOAD, address=5, rows=1, dst=7) == 0


def test_quantize_and_matmul() -> None:
    """Against golden.kllm.quantize and golden.kllm.matmul on the same operands."""
    bench = Bench()
    bench.quantize()
    tokens = quantize_tokens(bench.values, bench.a, share=1 / bench.length)
    for t, slot in enumerate(bench.machine.slots[1:3]):
        assert slot is not None
        assert torch.equal(slot.index, tokens.index[t].long())
        assert torch.equal(slot.outlier, tokens.outlier[t])
        assert slot.scale == tokens.scale[t]
    dst = Vector(200, bench.outputs, 2, 4)
    bench.asm.lane_codebook(src=10)
    bench.asm.matmul(weights=5, dst=dst, length=40, slot=Slots(1, 2))
    bench.machine.vector[200:210] = 7
    assert bench.run() == [0, 0]
    weight = Weight(bench.index, bench.scale)
    expected = matmul(tokens, weight, Codebooks(bench.a, bench.b)).y
    for t in range(2):
        assert torch.equal(bench.read(dst, t), expected[t])
        assert not bench.machine.vector[201 + 4 * t, 4:].any()  # after the outputs
        assert bool((bench.machine.vector[202 + 4 * t] == 7).all())


def test_the_packet_has_the_products() -> None:
    bench = Bench()
    tokens = quantize_tokens(bench.values, bench.a, share=1 / bench.length)
    weight = Weight(bench.index, bench.scale)
    made = matmul(tokens, weight, Packet(bench.packet, 4, 4))
    assert torch.equal(made.y, matmul(tokens, weight, Codebooks(bench.a, bench.b)).y)
    with pytest.raises(ValueError, match="a packet of 272 words needed, not"):
        matmul(tokens, weight, Packet(bench.packet[1:], 4, 4))


def test_a_machine_has_no_exact_products() -> None:
    message = "product must be rounded or fixed16 or fixed12, not 'exact'"
    with pytest.raises(ValueError, match=rf"^MachineConfig.{message}$"):
        MachineConfig.parse(SMALL, ["product=exact"])


@pytest.mark.parametrize("product", ["rounded", "fixed16", "fixed12"])
def test_half_packets_give_what_whole_ones_give(product: str) -> None:
    """Products, outliers and integers. Shown to fail: a packet taken for a whole one."""
    made = {}
    values = np.sort(np.random.default_rng(5).uniform(-1, 0, 8))
    b = words_of(np.concatenate((values, -values[::-1])))
    for half in (False, True):
        machine = MachineConfig.parse(SMALL, [f"product={product}", f"antisymmetric={half}"])
        bench = Bench(machine)
        assert machine.kmeans_words == (136 if half else 272)
        assert machine.integer_words == (8 if half else 16)
        packet = codebook_packet(bench.a, b, product, half)
        integers = integer_packet(b, machine.bits_a, product, half)
        bench.machine.state.write(10, torch.from_numpy(packet))
        bench.machine.state.write(28, torch.from_numpy(integers))
        bench.quantize()
        k, n = Vector(200, 20, 2, 4), Vector(210, 20, 2, 4)
        bench.asm.lane_codebook(src=10)
        bench.asm.matmul(weights=5, dst=k, length=40, slot=Slots(1, 2))
        bench.asm.binary(op=Binary.MULTIPLY, a=bench.x, b=bench.x, dst=bench.x)
        bench.asm.quantize_integer(src=bench.x, slot=Slots(1, 2))
        bench.asm.lane_codebook(src=28, kind=Codebook.INTEGER)
        bench.asm.matmul(weights=5, dst=n, length=40, slot=Slots(1, 2), mode=MatmulMode.INTEGER)
        assert not any(bench.run())
        made[half] = [bench.read(each, t) for each in (k, n) for t in range(2)]
    for one, other in zip(made[False], made[True], strict=True):
        assert one.any()
        assert torch.equal(one, other)


def test_fold_norm_scales_by_the_token() -> None:
    """Against float64: within the roundings of the scale and of the output."""
    bench = Bench()
    bench.asm.activation_codebook(src=42)
    rms = Statistics(Norm.RMS, 0x3727C5AC)
    bench.asm.quantize(src=bench.x, slot=0, outliers=Outliers(1, 1), statistics=rms)
    bench.asm.lane_codebook(src=10)
    plain, folded = Vector(200, 20, 2, 2), Vector(210, 20, 2, 2)
    bench.asm.matmul(weights=5, dst=plain, length=40, slot=0)
    bench.asm.matmul(weights=5, dst=folded, length=40, slot=0, fold_norm=True)
    assert not any(bench.run())
    for t in range(2):
        slot = bench.machine.slots[t]
        assert slot is not None
        rms = np.array([slot.rms_reciprocal], dtype=np.uint32).view(np.float32)[0]
        expected = float_from_bits(bench.read(plain, t)) * float(rms)
        found = float_from_bits(bench.read(folded, t))
        assert bool(((found - expected).abs() <= expected.abs() * 2**-9 + 1e-6).all())


def test_integer_and_direct() -> None:
    bench = Bench()
    p = Vector(150, 40, 2, 3)
    weights = torch.rand(2, 40, generator=torch.Generator().manual_seed(1))
    probabilities = words_of(weights)
    for t in range(2):
        bench.machine.state.write(150 + 3 * t, probabilities[t])
    dst, direct = Vector(200, 20, 2, 2), Vector(210, 20, 2, 2)
    bench.asm.quantize_integer(src=p, slot=0)
    bench.asm.lane_codebook(src=40, kind=Codebook.INTEGER)
    bench.asm.matmul(weights=5, dst=dst, length=40, slot=0, mode=MatmulMode.INTEGER)
    bench.asm.lane_codebook(src=10)
    bench.asm.matmul(weights=5, dst=direct, length=40, src=p, mode=MatmulMode.DIRECT)
    assert not any(bench.run())
    a, s = quantize_unsigned(probabilities, 8)
    real = float_from_bits(bench.b)[bench.index] * float_from_bits(bench.scale)
    for t in range(2):
        expected = float_from_bits(s[t]) * (a[t].double() @ real)
        found = float_from_bits(bench.read(dst, t))
        assert bool(((found - expected).abs() <= expected.abs() * 2**-10 + 1e-6).all())
        expected = float_from_bits(probabilities[t]) @ real
        found = float_from_bits(bench.read(direct, t))
        assert bool(((found - expected).abs() <= expected.abs() * 2**-10 + 1e-6).all())


def test_vector_commands() -> None:
    """The unit's own arithmetic is tested in test_kllm_functional: here, that it is reached."""
    bench = Bench()
    x, y = Vector(100, 40), Vector(103, 40)
    dst = Vector(200, 40)
    bench.asm.binary(op=Binary.ADD, a=x, b=y, dst=dst)
    assert bench.run() == [0]
    both = [row.numpy().astype(np.uint16).view(np.float16) for row in bench.values]
    expected = (both[0] + both[1]).view(np.uint16).astype(np.int64)
    assert bench.read(dst).tolist() == expected.tolist()
    bench.asm.function(function=Function.RELU, src=dst, dst=dst)
    bench.asm.softmax(src=Vector(200, 40), dst=dst)
    assert not any(bench.run())
    assert abs(float(float_from_bits(bench.read(dst)).sum()) - 1) < 0.01


def test_read_and_read_slot() -> None:
    bench = Bench()
    bench.quantize(slot=2, k=2)
    assert bench.one(Opcode.READ, src=100, rows=1) == 0
    pairs = bench.values[0, :16].tolist()
    assert bench.machine.readback == [pairs[n] | pairs[n + 1] << 16 for n in range(0, 16, 2)]
    assert bench.one(Opcode.READ_SLOT, slot=2) == 0
    words = bench.machine.readback
    assert len(words) == 4 + 3 * 4 + 3 + 4
    assert words[0] == 40 | 4 << 16
    slot, taken = slot_of_words(words)
    assert taken == len(words)
    held = bench.machine.slots[2]
    assert held is not None
    assert slot_words(slot) == words
    assert torch.equal(slot.index, held.index)
    assert torch.equal(slot.words, held.words)
    with pytest.raises(ValueError, match="has 23 words, not 9"):
        slot_of_words(words[:9])
    assert bench.one(Opcode.READ_SLOT, slot=0) == CommandStatus.SLOT_MISMATCH
    assert bench.one(Opcode.READ_SLOT, slot=4) == CommandStatus.RANGE
    assert bench.one(Opcode.READ, src=100, rows=157) == CommandStatus.RANGE
    assert bench.machine.readback == []


MATMUL = {
    "mode": 0, "slot": 1, "tokens": 2, "length": 40, "outputs": 20, "weights": 5, "dst": 200,
    "stride": 4, "fold_norm": 0, "src": 0, "src_stride": 3,
}  # fmt: skip
RANGE, MISMATCH = CommandStatus.RANGE, CommandStatus.SLOT_MISMATCH


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"tokens": 0}, RANGE),
        ({"length": 0}, RANGE),
        ({"length": 257}, RANGE),
        ({"outputs": 0}, RANGE),
        ({"dst": 251}, RANGE),
        ({"dst": 250}, 0),
        ({"slot": 3}, RANGE),
        ({"mode": 3}, RANGE),
        ({"mode": 2, "length": 65}, RANGE),
        ({"mode": 2, "fold_norm": 1}, RANGE),
        ({"mode": 2, "src": 251}, RANGE),
        ({"mode": 2, "src": 250, "slot": 99}, 0),
        ({"length": 39}, MISMATCH),
        ({"slot": 0}, MISMATCH),
        ({"slot": 2}, MISMATCH),
        ({"mode": 1}, CommandStatus.CODEBOOK_MISSING),
        ({"weights": 200}, CommandStatus.BUS_ERROR),
    ],
)
def test_faults_of_matmul(change: dict[str, int], status: CommandStatus) -> None:
    bench = Bench()
    bench.quantize()
    operands = MATMUL | change
    assert bench.one(Opcode.MATMUL, **MATMUL) == CommandStatus.CODEBOOK_MISSING
    assert bench.one(Opcode.LANE_CODEBOOK, src=10, kind=0) == 0
    bench.machine.vector[200:] = 7
    assert bench.one(Opcode.MATMUL, **operands) == status
    filled = NAN if status == CommandStatus.BUS_ERROR else 7
    if status:
        assert bool((bench.machine.vector[200:202] == filled).all())
        assert bool((bench.machine.vector[202:204] == 7).all())
    assert bench.one(Opcode.MATMUL, **MATMUL) == 0  # the next one is right
    bench.machine.weights[0].faults.add(5)
    assert bench.one(Opcode.MATMUL, **MATMUL) == CommandStatus.BUS_ERROR


def test_too_long_to_replay() -> None:
    bench = Bench(MachineConfig.parse(SMALL, ["replay_beats=2"]))
    bench.quantize()
    assert bench.one(Opcode.LANE_CODEBOOK, src=10, kind=0) == 0
    assert bench.one(Opcode.MATMUL, **MATMUL) == RANGE
    assert bench.one(Opcode.MATMUL, **MATMUL | {"tokens": 1}) == 0


def test_data_faults_of_matmul() -> None:
    bench = Bench()
    assert bench.one(Opcode.LANE_CODEBOOK, src=10, kind=0) == 0
    bench.machine.vector[103, 2] = 0x7C00
    bench.machine.vector[200:] = 7
    direct = MATMUL | {"mode": 2, "src": 100}
    assert bench.one(Opcode.MATMUL, **direct) == CommandStatus.NONFINITE
    assert bool((bench.machine.vector[200:202] == NAN).all())
    assert bool((bench.machine.vector[204:206] == NAN).all())
    bench.machine.vector[103, 2] = 0x7BFF
    bench.machine.vector[103, 3] = 0x7BFF
    bench = Bench(scale=60000.0)
    assert bench.one(Opcode.LANE_CODEBOOK, src=10, kind=0) == 0
    assert bench.one(Opcode.MATMUL, **direct) == CommandStatus.OVERFLOW
    assert bool((bench.read(Vector(200, 20)) & 0x7FFF == 0x7C00).any())


def test_scales_behind_the_outputs_show_in_the_status() -> None:
    """The lanes compute whole groups: 20 outputs of 32 here."""
    bench = Bench()
    # Scales are the last array beat of 4: 32 port words, 16 of each lane, the last 4 FP16 scales.
    number = 3 * 32 + 16 + 3
    memory = bench.machine.weights[number % 3]
    at = (bench.address + number // 3) * 8
    assert not memory.data[at : at + 8].any()
    memory.data[at + 6 : at + 8] = (0x00, 0x7C)
    assert bench.one(Opcode.LANE_CODEBOOK, src=10, kind=0) == 0
    direct = MATMUL | {"mode": 2, "src": 100}
    assert bench.one(Opcode.MATMUL, **direct) == CommandStatus.SCALE_NONFINITE
    assert weight_port_words(4, 32, 3, 0) == 43


def test_faults_of_quantize() -> None:
    bench = Bench()
    base = {"src": 100, "stride": 3, "tokens": 2, "length": 40, "slot": 1, "k_max": 1, "k_min": 1}
    assert bench.one(Opcode.QUANTIZE, **base) == CommandStatus.CODEBOOK_MISSING
    assert bench.one(Opcode.ACTIVATION_CODEBOOK, src=255) == RANGE
    assert bench.one(Opcode.ACTIVATION_CODEBOOK, src=42) == 0
    both = RANGE | CommandStatus.CAPACITY
    for change, status in (
        ({"tokens": 0}, RANGE),
        ({"slot": 3}, RANGE),
        ({"norm": 3}, RANGE),
        ({"k_max": 39}, CommandStatus.CAPACITY),
        ({"k_max": 39, "slot": 3}, both),
        ({"mode": OutlierMode.OFFLINE, "thresholds": 0x7C00 << 16}, RANGE),
        ({"mode": OutlierMode.OFFLINE, "thresholds": 0x3C00BC00, "k_max": 99}, 0),
    ):
        assert bench.one(Opcode.QUANTIZE, **base | change) == status
    first = bench.machine.slots[1]
    bench.machine.vector[103, 1] = NAN
    assert bench.one(Opcode.QUANTIZE, **base) == CommandStatus.NONFINITE
    assert bench.machine.slots[1] is not first  # the good token has its slot
    assert bench.machine.slots[1] is not None
    assert bench.machine.slots[2] is None
    integer = {name: base[name] for name in ("src", "stride", "tokens", "length", "slot")}
    status = CommandStatus.NONFINITE | CommandStatus.NEGATIVE
    assert bench.one(Opcode.QUANTIZE_INTEGER, **integer) == status
    assert bench.machine.slots[1] is None
    bench.machine.vector[43, 0] = 0x3C01  # a midpoint beyond 1: no codebook is left
    assert bench.one(Opcode.ACTIVATION_CODEBOOK, src=42) == RANGE
    assert bench.one(Opcode.QUANTIZE, **base) == CommandStatus.CODEBOOK_MISSING


def test_lane_codebook_beyond_one_leaves_none() -> None:
    bench = Bench()
    assert bench.one(Opcode.LANE_CODEBOOK, src=10, kind=0) == 0
    assert bench.one(Opcode.LANE_CODEBOOK, src=250, kind=0) == RANGE  # beyond the memory: kept
    direct = MATMUL | {"mode": 2, "src": 100}
    assert bench.one(Opcode.MATMUL, **direct) == 0
    bench.machine.vector[20, 0] = 0xBC01
    assert bench.one(Opcode.LANE_CODEBOOK, src=10, kind=0) == RANGE
    assert bench.one(Opcode.MATMUL, **direct) == CommandStatus.CODEBOOK_MISSING


def test_malformed_commands_do_nothing() -> None:
    machine = Machine(SMALL, np.zeros(32, dtype=np.uint8))
    good = encode(Opcode.LOAD, 9, {}, {"address": 0, "rows": 1, "dst": 0})
    for word, bit in ((0, 9), (3, 20), (5, 16), (7, 0)):
        words = list(good)
        words[word] ^= 1 << bit
        assert machine.step(words) == Result(9, Unit.LOAD, CommandStatus.MALFORMED)
    assert machine.issued[Unit.LOAD] == 4  # they count as completed in their unit
    assert machine.step([0xFF, *good[1:]]) == Result(0, Unit.LOAD, CommandStatus.MALFORMED)
    assert machine.issued[Unit.LOAD] == 4  # an unknown one is in no unit
    assert machine.step(good).status == 0
    read = encode(Opcode.READ, 5, {}, {"src": 0, "rows": 1})
    read[4 + 3] = 1
    result = machine.step(read)
    assert result == Result(5, Unit.READ, CommandStatus.MALFORMED)
    assert result.word == 1 | 4 << 13 | 5 << 16
    with pytest.raises(ValueError, match="a command has 16 words"):
        machine.run([0] * 17)


def test_dependency_by_signed_distance() -> None:
    machine = Machine(SMALL, np.zeros(32, dtype=np.uint8))

    def load(after: int) -> CommandStatus:
        operands = {"address": 0, "rows": 1, "dst": 0}
        return machine.step(encode(Opcode.LOAD, 0, {Unit.QUANTIZE: after}, operands)).status

    assert load(1) == CommandStatus.DEPENDENCY
    machine.issued[Unit.QUANTIZE] = 65540
    assert load(4) == 0
    assert load(5) == CommandStatus.DEPENDENCY
    assert load(65530) == 0  # long complete
    assert machine.issued[Unit.LOAD] == 4


def test_configurations_are_those_of_the_generator() -> None:
    block = all_blocks()["kllm_accelerator"]
    assert {name: config.machine for name, config in block.configs.items()} == MACHINES


def test_memory_words() -> None:
    memory = Memory(np.arange(12, dtype=np.uint8), 4, {1})
    assert memory.read(0, 1) is not None
    assert memory.read(0, 2) is None
    assert memory.read(2, 2) is None
    assert memory.read(9, 0) is not None
    memory.write(2, np.zeros(4, dtype=np.uint8))
    with pytest.raises(ValueError, match="leave the memory"):
        memory.write(3, np.zeros(1, dtype=np.uint8))
    with pytest.raises(ValueError, match="a multiple of 5 bytes"):
        Memory(np.zeros(12, dtype=np.uint8), 5)
    with pytest.raises(ValueError, match="3 weight memories needed, not 1"):
        Machine(SMALL, weights=[np.zeros(8, dtype=np.uint8)])


def test_random_programs_see_every_command_and_fault(seed: int) -> None:
    opcodes, statuses = set(), CommandStatus(0)
    for case in range(8):
        program = random_program(SMALL, 50 * seed + case, 80, faults=True)
        machine = Machine(SMALL, program.data, program.weights)
        machine.data.faults = program.data_faults
        for memory, faults in zip(machine.weights, program.weight_faults, strict=True):
            memory.faults = faults
        assert machine.run(program.words) == program.results
        assert machine.readback == program.readback
        assert torch.equal(machine.vector, program.vector)
        opcodes |= {word & 0xFF for word in program.words[::COMMAND_WORDS]}
        for result in program.results:
            statuses |= result.status
    known = {opcode for opcode, each in COMMANDS.items() if each.known(SMALL.units)}
    assert opcodes >= known
    missing = {CommandStatus.ABORTED, CommandStatus.LANE_FAULT, CommandStatus.OVERFLOW}
    assert set(CommandStatus) - set(statuses) <= missing


def test_a_failed_command_changes_nothing(seed: int) -> None:
    """But for NaN after BUS_ERROR or in DIRECT, rows of SOFTMAX, slots of a QUANTIZE with data."""
    early = (
        CommandStatus.MALFORMED | CommandStatus.DEPENDENCY | RANGE | MISMATCH
        | CommandStatus.CODEBOOK_MISSING
    )  # fmt: skip
    seen = 0
    for case in range(4):
        program = random_program(SMALL, 70 * seed + case, 80, faults=True)
        machine = Machine(SMALL, program.data, program.weights)
        machine.data.faults = program.data_faults
        for first in range(0, len(program.words), COMMAND_WORDS):
            before, held = machine.vector.clone(), list(machine.slots)
            words = len(machine.readback)
            result = machine.step(program.words[first : first + COMMAND_WORDS])
            if result.status & early:
                seen += 1
                assert torch.equal(machine.vector, before)
                assert all(a is b for a, b in zip(machine.slots, held, strict=True))
                assert len(machine.readback) == words
    assert seen > 10
