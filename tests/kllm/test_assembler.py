"""Programs: waits that make order free, text and hex and back, one-line errors.

Shown to fail: without hazards of reads (write after read), without those of slots, or with waits
one command too low, ``test_any_order_that_waits_allow_gives_the_same`` fails.
``test_every_text_comes_back`` fails for a disassembler that ignores ranges and overlaps,
``test_disassemble_refuses_what_is_no_command`` for one that ignores the bits after the last wait.
"""

import dataclasses
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.kllm import assembler as module
from golden.kllm.assembler import (
    Assembler,
    AssemblyError,
    accesses,
    assemble,
    disassemble,
    from_hex,
    main,
    overlap,
    to_hex,
)
from golden.kllm.config import (
    MACHINES,
    FunctionShape,
    LaneShape,
    MachineConfig,
    PortShape,
    SlotShape,
)
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    Binary,
    CommandStatus,
    Function,
    MatmulMode,
    Opcode,
    Unit,
    decode,
    encode,
)
from golden.kllm.machine import Machine, Result
from golden.kllm.programs import random_program

SMALL = MACHINES["small"]
OPCODES = {opcode for opcode, each in COMMANDS.items() if each.known(SMALL.units)}


def commands_of(words: list[int]) -> list[list[int]]:
    return [words[n : n + COMMAND_WORDS] for n in range(0, len(words), COMMAND_WORDS)]


def run_in_any_order(machine: Machine, words: list[int], seed: int) -> list[Result]:
    """Each unit in order; among the units, any whose next command has what it waits for."""
    queues: dict[Unit, list] = {unit: [] for unit in Unit}
    for command in commands_of(words):
        opcode, tag, after, operands = decode(command)
        queues[COMMANDS[opcode].unit].append((opcode, tag, after, operands))
    done = dict.fromkeys(Unit, 0)
    rng, results = random.Random(seed), []
    while any(queues.values()):
        ready = [
            unit
            for unit, queue in queues.items()
            if queue and all(done[u] >= count for u, count in queue[0][2].items())
        ]
        assert ready, "no command can start"
        unit = rng.choice(ready)
        opcode, tag, _, operands = queues[unit].pop(0)
        results.append(Result(tag, unit, machine._execute(opcode, operands)))
        done[unit] += 1
    return results


@pytest.mark.parametrize("case", range(6))
def test_any_order_that_waits_allow_gives_the_same(seed: int, case: int) -> None:
    program = random_program(SMALL, 100 * seed + case, 50)
    machine = Machine(SMALL, program.data, program.weights)
    results = run_in_any_order(machine, program.words, case)
    assert machine.readback == program.readback
    assert torch.equal(machine.vector, program.vector)
    assert sorted(results, key=lambda r: r.tag) == sorted(program.results, key=lambda r: r.tag)


def test_units_do_overlap() -> None:
    """Waits are not simply the program's order: of most pairs of units one runs ahead."""
    program = random_program(SMALL, 3, 60)
    issued = dict.fromkeys(Unit, 0)
    free = 0
    for command in commands_of(program.words):
        opcode, _, after, _ = decode(command)
        free += sum(issued[u] > after[u] for u in Unit if u != COMMANDS[opcode].unit)
        issued[COMMANDS[opcode].unit] += 1
    assert free > 60


def test_waits_for_what_was_written_and_for_what_is_read() -> None:
    asm = Assembler(SMALL)
    x, y, z = asm.vector(40), asm.vector(40), asm.vector(16)
    asm.load(address=0, dst=x)
    asm.load(address=3, dst=y)
    asm.binary(op=Binary.ADD, a=x, b=y, dst=y)  # reads what both loads wrote
    asm.load(address=9, dst=x)  # overwrites what BINARY reads
    asm.load(address=9, dst=z)  # waits for nothing new
    asm.quantize(src=y, slot=asm.slots())
    asm.read_slot(slot=0)
    waits = [
        {unit.name: count for unit, count in decode(command)[2].items() if count}
        for command in commands_of(asm.words())
    ]
    assert waits == [
        {}, {}, {"LOAD": 2}, {"FUNCTION": 1}, {"FUNCTION": 1}, {"LOAD": 2, "FUNCTION": 1},
        {"QUANTIZE": 1},
    ]  # fmt: skip


def test_waits_stay_within_half_the_counter() -> None:
    """A unit that never waits for a busy one keeps up with its counter, or its wait would age."""
    asm = Assembler(SMALL)
    asm.load(address=0, dst=0, rows=1)
    asm.issued[Unit.LOAD] = 70000
    asm.read(src=9, rows=1)
    after = decode(asm.words()[-COMMAND_WORDS:])[2][Unit.LOAD]
    assert 0 < (70000 - after) % (1 << 16) <= 1 << 14


def test_a_new_part_waits_for_nothing() -> None:
    asm = Assembler(SMALL)
    x = asm.vector(16)
    asm.load(address=0, dst=x)
    asm.part()
    asm.read(src=x)
    machine = Machine(SMALL, bytearray(32))
    assert not any(result.status for part in asm.parts for result in machine.run(part))
    assert decode(asm.parts[1])[2][Unit.LOAD] == 1


def test_room_is_given_and_taken_back() -> None:
    asm = Assembler(SMALL)
    a = asm.vector(100, 2)
    assert (a.stride, a.rows, a.token(1).row) == (7, 14, 7)
    assert asm.vector(17).row == 14
    asm.free(a)
    with pytest.raises(AssemblyError, match="not all taken"):
        asm.free(a)
    with pytest.raises(AssemblyError, match=r"^no 300 rows in a row are free: 254 of 256 are$"):
        asm.vector(4800)
    assert asm.vector(16 * 240).row == 16
    slots = asm.slots(3)
    with pytest.raises(AssemblyError, match="no 2 slots"):
        asm.slots(2)
    asm.free(slots)
    assert asm.slots(2).first == 0
    assert a.part(32, 16).row == 2


def test_refuses_rows_that_overlap() -> None:
    asm = Assembler(SMALL)
    x = asm.vector(64, 2)
    asm.softmax(src=x, dst=x)
    with pytest.raises(AssemblyError, match=r"^SOFTMAX: source and destination overlap$"):
        asm.softmax(src=x, dst=module.Vector(x.row + 1, 64, 2, 4))
    with pytest.raises(AssemblyError, match="tokens of the destination overlap"):
        asm.softmax(src=x, dst=module.Vector(32, 64, 2, 3))
    with pytest.raises(AssemblyError, match="ROTARY: source and destination overlap"):
        asm.rotary(src=x, dst=x, cos=x, sin=x, heads=1, head_size=32)


def test_accesses_are_those_of_the_machine(seed: int) -> None:
    """A command changes nothing outside what ``accesses`` says; every opcode of SMALL occurs.

    Five programs or more: each opcode occurs by chance.
    """
    seen = set()
    for case in range(40):
        if case >= 5 and seen == OPCODES:
            break
        program = random_program(SMALL, 1000 * seed + case, 60)
        machine = Machine(SMALL, program.data, program.weights)
        for command in commands_of(program.words):
            opcode, _, _, operands = decode(command)
            before, held = machine.vector.clone(), list(machine.slots)
            machine.step(command)
            access = accesses(opcode, operands, SMALL)
            assert overlap(opcode, operands, SMALL) is None
            inside = torch.zeros(SMALL.vector_rows, dtype=torch.bool)
            for first, count in access.writes("rows"):
                inside[first : first + count] = True
            assert not (machine.vector != before).any(dim=1)[~inside].any()
            spans = access.writes("slots")
            slots = {n for first, count in spans for n in range(first, first + count)}
            changed = {n for n in range(SMALL.slots) if machine.slots[n] is not held[n]}
            assert changed <= slots
            seen.add(opcode)
    assert seen == OPCODES


TEXT = """
# rows 0 and 1: a clustering codebook
LOAD address=0 rows=2 dst=0
activation_codebook src=0   # not upper case
QUANTIZE src=16 length=64 slot=1 k_max=1 k_min=1 norm=RMS epsilon=0x3727c5ac tag=77
MATMUL mode=DIRECT length=16 outputs=4 weights=0x10 dst=32 src=40 after=none
READ_SLOT slot=1 after=QUANTIZE:2,LOAD:1
"""


def test_text_to_words() -> None:
    words = assemble(TEXT, SMALL)
    assert len(words) == 5 * COMMAND_WORDS
    opcode, tag, after, operands = decode(words[2 * COMMAND_WORDS : 3 * COMMAND_WORDS])
    assert (opcode, tag, operands["norm"], operands["tokens"]) == (Opcode.QUANTIZE, 77, 1, 1)
    assert after[Unit.LOAD] == 1  # that of the command before it in its unit: no extra wait
    assert decode(words[COMMAND_WORDS : 2 * COMMAND_WORDS])[2][Unit.LOAD] == 1
    matmul = decode(words[3 * COMMAND_WORDS : 4 * COMMAND_WORDS])
    assert matmul[3]["mode"] == MatmulMode.DIRECT
    assert not any(matmul[2].values())
    assert decode(words[4 * COMMAND_WORDS :])[2] == {
        Unit.LOAD: 1, Unit.QUANTIZE: 2, Unit.MATMUL: 0, Unit.FUNCTION: 0, Unit.READ: 0,
        Unit.CACHE: 0,
    }  # fmt: skip


def test_text_and_hex_come_back(seed: int) -> None:
    words = random_program(SMALL, seed, 60).words
    assert assemble(disassemble(words, SMALL), SMALL) == words
    assert from_hex("// a comment\n" + to_hex(words)) == words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LOAD address=0 rows=1 dst=70000", "LOAD.dst must be 0..65535, not 70000"),
        ("LOAD address=0 rows=1", "LOAD takes address, rows, dst; wrong or missing: ['dst']"),
        ("LOAD address=0 rows=x dst=0", "LOAD.rows must be an integer, not 'x'"),
        ("JUMP", "command must be one of LOAD, "),
        ("LOAD 3", "operand must be name=value, not '3'"),
        ("LOAD rows=1 rows=2", "LOAD.rows is given twice"),
        ("QUANTIZE norm=MEAN", "QUANTIZE.norm must be an integer or one of NONE, RMS, LAYER"),
        ("READ src=0 rows=1 after=LOADS:1", "after must be UNIT:count with a unit of LOAD, "),
        ("READ src=0 rows=1 after=LOAD:70000", "after must be 0..65535, not 70000"),
        ("READ src=0 rows=1 tag=70000", "tag must be 0..65535, not 70000"),
        ("READ_SLOT slot=255", "READ_SLOT.slot must be 0..3, not 255"),
        ("READ src=250 rows=7", "READ.src must be 0..249, not 250"),
        ("READ src=0 rows=257", "READ.src must take 0..256 rows, not 257"),
        ("READ src=0 rows=0", "READ.rows must be 1..65535, not 0"),
        ("QUANTIZE src=0 length=16 slot=3 tokens=2", "QUANTIZE.slot must be 0..2, not 3"),
        ("QUANTIZE src=0 length=16 slot=0 tokens=0", "QUANTIZE.tokens must be 1..255, not 0"),
        ("QUANTIZE src=0 length=0 slot=0", "QUANTIZE.length must be 1..65535, not 0"),
        (
            "QUANTIZE src=0 length=16 slot=0 norm=3",
            "QUANTIZE.norm must be one of NONE, RMS, LAYER, not 3",
        ),
        (
            "MATMUL mode=3 length=16 outputs=4 weights=0 dst=0",
            "MATMUL.mode must be one of KMEANS, INTEGER, DIRECT, not 3",
        ),
        (
            "FUNCTION function=TANH src=0 dst=64 length=16",
            f"FUNCTION.function must be one of {', '.join(list(Function.__members__)[:8])}, not 8",
        ),
        (
            "BINARY op=MINIMUM a=0 b=1 dst=64 length=16",
            "BINARY.op must be one of ADD, MULTIPLY, not 2",
        ),
        (
            "ROTARY src=0 dst=64 cos=128 sin=129 head_size=48",
            "ROTARY.head_size must be 32..65504, a multiple of 32, not 48",
        ),
    ],
)
def test_errors_name_line_field_range_value(text: str, message: str) -> None:
    with pytest.raises(AssemblyError) as error:
        assemble("\n# two lines above\n" + text, SMALL, "file")
    assert str(error.value).startswith(f"file:3: {message}")


def test_functions_that_some_machines_have() -> None:
    """Shown to fail: the table's own names alone, whatever the machine has."""
    some = dataclasses.replace(SMALL, extra=FunctionShape(tanh=True, bounds=True))
    lines = ("FUNCTION function=TANH src=0 dst=64 length=16",
             "BINARY op=MINIMUM a=0 b=1 dst=64 length=9")  # fmt: skip
    words = assemble("\n".join(lines), some)
    assert assemble(disassemble(words, some), some) == words
    with pytest.raises(AssemblyError, match="GELU, EXP, RECIPROCAL, SQRT, RSQRT, TANH, not 10"):
        assemble("GLU function=QUICK_GELU slot_a=0 slot_b=1 dst=64 length=16", some)
    with pytest.raises(AssemblyError, match="must be one of ADD, MULTIPLY, not 2"):
        disassemble(words[16:], SMALL)


def test_command_line(tmp_path, capsys) -> None:
    source, hexed = tmp_path / "a.txt", tmp_path / "a.hex"
    binary = tmp_path / "a.bin"
    binary.write_bytes(b"abc\xff")
    source.write_text(TEXT)
    assert main([str(source), "-o", str(hexed)]) == 0
    assert from_hex(hexed.read_text()) == assemble(TEXT, MACHINES["table1"])
    assert main([str(hexed), "-d"]) == 0
    assert "MATMUL mode=DIRECT" in capsys.readouterr().out
    source.write_text("LOAD address=0 rows=1 dst=70000")
    for arguments, message in (
        ([str(source)], f"assembler: {source}:1: LOAD.dst must be 0..65535, not 70000\n"),
        ([str(source), "--config", "huge"], "assembler: --config must be one of table1, "),
        ([str(source), "--set", "lane.lanes=0"], "assembler: LaneShape.lanes must be 1..64, not 0"),
        ([str(source), "-d"], "assembler: line 1: a word must be 8 hex digits, not 'LOAD'\n"),
        ([str(tmp_path / "none")], f"assembler: {tmp_path / 'none'}: No such file or directory\n"),
        ([str(binary)], f"assembler: {binary} is not text: byte 3\n"),
        ([str(binary), "-d"], f"assembler: {binary} is not text: byte 3\n"),
    ):
        assert main(arguments) == 2
        printed = capsys.readouterr().err
        assert printed.startswith(message)
        assert printed.count("\n") == 1


@pytest.mark.parametrize("text", ["", "\n", "# a comment\n"])
def test_a_program_without_a_command_is_refused(text, tmp_path, capsys) -> None:
    """Shown to fail: the command wrote an empty program, status 0."""
    source = tmp_path / "empty.txt"
    for options, mark in (([], "#"), (["-d"], "//")):
        source.write_text(text.replace("#", mark))
        assert main([str(source), "-o", str(tmp_path / "made"), *options]) == 2
        assert capsys.readouterr().err == f"assembler: {source}: the program has no command\n"
    assert not (tmp_path / "made").exists()


def test_disassemble_refuses_what_is_no_command() -> None:
    with pytest.raises(AssemblyError, match="word 0: no command begins with"):
        disassemble([0xFF] + [0] * 15, SMALL)
    ends = encode(Opcode.READ, 0, {}, {"src": 0, "rows": 1})
    ends[3] = 1 << 16
    with pytest.raises(AssemblyError, match=r"^word 0: READ: the machine has no unit CACHE"):
        disassemble(ends, SMALL)
    ends[3] = 1 << 32
    with pytest.raises(
        AssemblyError, match=r"^word 0: word 3 must be 0\.\.4294967295, not 42949672"
    ):
        disassemble(ends, SMALL)


def _operand(bits: int) -> st.SearchStrategy[int]:
    """Small numbers, multiples of 32, both ends, anything."""
    top = (1 << bits) - 1
    return st.one_of(
        st.integers(0, min(top, 40)),
        st.integers(0, min(top, 240) // 32).map(lambda n: 32 * n),
        st.sampled_from((0, 1, top)),
        st.integers(0, top),
    )


@st.composite
def _any_operands(draw) -> tuple[Opcode, dict[str, int]]:
    opcode = draw(st.sampled_from(Opcode))
    return opcode, {each.name: draw(_operand(each.bits)) for each in COMMANDS[opcode].operands}


@st.composite
def _any_command(draw) -> list[int]:
    opcode, operands = draw(_any_operands())
    after = {unit: draw(_operand(16)) for unit in Unit}
    words = encode(opcode, draw(_operand(16)), after, operands)
    if draw(st.integers(0, 9)) == 0:
        words[draw(st.integers(0, COMMAND_WORDS - 1))] ^= 1 << draw(st.integers(0, 32))
    return words


@given(commands=st.lists(_any_command(), max_size=3))
def test_every_text_comes_back(commands: list[list[int]]) -> None:
    """``disassemble`` writes what ``assemble`` makes the same words of, or refuses in one line."""
    words = [word for command in commands for word in command]
    refusal = ""
    try:
        text = disassemble(words, SMALL)
    except AssemblyError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith("word ")
        assert "\n" not in refusal
    else:
        assert assemble(text, SMALL) == words


@given(command=_any_operands())
def test_refuses_what_the_machine_refuses(command: tuple[Opcode, dict[str, int]]) -> None:
    """Operands that the table alone refuses have the status RANGE in the golden machine."""
    opcode, operands = command
    places = {"rows": SMALL.vector_rows, "slots": SMALL.slots, "choices": SMALL.batch}
    if opcode in OPCODES and COMMANDS[opcode].refusal(operands, SMALL, places):
        result = Machine(SMALL, bytearray(32)).step(encode(opcode, 0, {}, operands))
        assert result.status & CommandStatus.RANGE


def test_machine_configurations_check_themselves() -> None:
    for wrong, message in (
        ({"lane": LaneShape(columns=20)}, "lane.columns must be a multiple of 16, not 20"),
        ({"lane": LaneShape(elements=12)}, "lane.elements must be a divisor of 16, not 12"),
        ({"slot": SlotShape(integer_bits=0)}, "slot.integer_bits must be 4 or 8, not 0"),
        ({"ports": PortShape(bits=96)}, "ports.bits must be a power of two in 32..1024, not 96"),
        (
            {"ports": PortShape(bits=2048)},
            "ports.bits must be a power of two in 32..1024, not 2048",
        ),
        ({"vectors": 3}, "vectors must be a VectorShape, not 3"),
    ):
        with pytest.raises(ValueError, match=f"^MachineConfig.{message}"):
            MachineConfig(**wrong)  # type: ignore[arg-type]
    assert MACHINES["table1"].image_words(576, 576) == 99
