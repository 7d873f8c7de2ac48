"""Command sets: words, roles, hazards, and that a command is complete.

Shown to fail: QUANTIZE whose slot has the role ``Value`` fails ``test_accesses_are_those_of_the_
machine`` of tests/kllm/test_assembler.py; GLU left out of golden.kllm.bounds.CYCLES fails
``test_every_command_of_kllm_is_complete``.
"""

from enum import IntEnum
from pathlib import Path

import pytest

from golden.isa import Command, CommandSet, Operand, Touch, Value
from golden.kllm import bounds, functional, isa
from golden.kllm.machine import Machine

ROOT = Path(__file__).resolve().parent.parent


class Op(IntEnum):
    COPY = 1
    STORE = 2


class Unit(IntEnum):
    A = 0
    B = 1
    C = 2


def rows(writes: bool, **fields) -> Touch:
    return Touch("rows", writes, lambda operands, machine: operands["n"] * machine, **fields)


COPY = Command(
    Op.COPY, Unit.B, "",
    (
        Operand("src", 8, "", rows(False, stride="step", tokens="n")),
        Operand("dst", 8, "", rows(True, unless=("step", 9))),
        Operand("n", 4, "", Value(), 1),
        Operand("step", 4, "", Value(hexadecimal=True), 0),
    ),
)  # fmt: skip


def test_words_and_back():
    made = CommandSet([COPY], Unit, words=8, first_operand=3, after_bits=16)
    operands = {"src": 200, "dst": 3, "n": 15, "step": 7}
    words = made.encode(Op.COPY, 9, {Unit.A: 1, Unit.C: 0x10002}, operands)
    assert words == [9 << 16 | 1, 1, 2, 200, 3, 15, 7, 0]
    assert made.decode(words) == (Op.COPY, 9, {Unit.A: 1, Unit.B: 0, Unit.C: 2}, operands)
    for bad, line in (
        ({**operands, "n": 16}, "COPY.n must be 0..15, not 16"),
        ({**operands, "m": 0}, "COPY takes src, dst, n, step; wrong or missing"),
    ):
        with pytest.raises(ValueError, match=line):
            made.encode(Op.COPY, 0, {}, bad)
    for place, word, line in (
        (0, 7, "no command begins with 0x00000007"),
        (0, 0x101, "no command begins with 0x00000101"),
        (5, 16, "COPY.n is 0x10: too wide"),
        (7, 1, "operand word 4 must be zero"),
    ):
        with pytest.raises(ValueError, match=line):
            made.decode([*words[:place], word, *words[place + 1 :]])


def test_places_of_a_command():
    access = COPY.access({"src": 10, "dst": 50, "n": 3, "step": 5}, 2)
    assert access.reads("rows") == ((10, 6), (15, 6), (20, 6))
    assert access.writes("rows") == ((50, 6),)
    assert not access.writes("slots")
    assert not COPY.access({"src": 10, "dst": 50, "n": 3, "step": 9}, 2).writes("rows")
    assert COPY.defaults == {"n": 1, "step": 0}
    assert [each.access for each in COPY.operands] == ["reads rows", "writes rows", "", ""]
    assert COPY.operands[3].text(10) == "0xa"
    assert COPY.overlap({"src": 10, "dst": 25, "n": 3, "step": 5}, 2, "rows")
    assert COPY.overlap({"src": 10, "dst": 26, "n": 3, "step": 5}, 2, "rows") is None


@pytest.mark.parametrize(
    ("operands", "line"),
    [
        ((Operand("n", 8, "", Value()),), "STORE touches nothing"),
        ((Operand("dst", 8, "", rows(True, stride="by")),), "STORE has no operand by"),
        ((Operand("dst", 8, "", rows(True, when=("kind", 1))),), "STORE has no operand kind"),
        (tuple(Operand(f"r{n}", 8, "", rows(True)) for n in range(6)), "at most 5 operands"),
    ],
)
def test_incomplete_commands_are_refused(operands, line):
    """A command whose places are forgotten would race in silence."""
    with pytest.raises(ValueError, match=line):
        CommandSet([Command(Op.STORE, Unit.A, "", operands)], Unit, words=8, first_operand=3)


def test_an_opcode_is_in_the_table_once():
    with pytest.raises(ValueError, match="COPY is in the table twice"):
        CommandSet([COPY, COPY], Unit)


ENGINES = {
    isa.Unit.LOAD: ("slots/load.py",),
    isa.Unit.QUANTIZE: ("quantize/*.py",),
    isa.Unit.MATMUL: ("matmul/*.py",),
    isa.Unit.FUNCTION: ("function/*.py",),
    isa.Unit.READ: ("slots/readback.py",),
    isa.Unit.CACHE: ("cache/*.py",),
}


@pytest.mark.parametrize("opcode", isa.Opcode)
def test_every_command_of_kllm_is_complete(opcode):
    """Table, places, cycles, golden and engine: what a new command needs."""
    command = isa.COMMANDS[opcode]
    touched = {each.access for each in command.operands} - {""}
    memories = ("rows", "slots", "choices")
    assert touched <= {f"{way} {memory}" for way in ("reads", "writes") for memory in memories}
    assert touched
    for operand in command.operands:  # rows and slots are places, whatever else an operand is
        named = operand.meaning.endswith(", row") or operand.name.startswith("slot")
        assert named == operand.access.endswith(("rows", "slots")), operand.name
    assert opcode in bounds.CYCLES
    if command.unit == isa.Unit.FUNCTION:
        assert f"Opcode.{opcode.name}" in Path(functional.__file__).read_text()
    else:
        assert callable(getattr(Machine, f"_{opcode.name.lower()}"))
    parts = [
        part
        for pattern in ENGINES[command.unit]
        for part in sorted((ROOT / "hdl" / "kllm").glob(pattern))
    ]
    assert parts
    assert any(f"Opcode.{opcode.name}" in part.read_text() for part in parts)
