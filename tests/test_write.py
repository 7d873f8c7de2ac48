"""hdl.back.write: Verilog of RTLIL is the same circuit, whatever the widths and signs.

Shown to fail: a shift whose operand loses its high bits; assignments after a switch left out; a
select of bits beyond a signal.
"""

import random
import re

import pytest
from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.back import rtlil

from hdl.back.render import render
from hdl.back.write import read
from synth.yosys import run

NUMBER = 30  # outputs of one module
_PROOF = """read_rtlil old.il
read_verilog new.v
proc -norom
opt_clean
miter -equiv -flatten -make_outcmp -ignore_gold_x old new both
cd both
opt -full
techmap
opt
clean
"""


class _Words:
    """Random expressions and processes."""

    def __init__(self, seed: int):
        self.random, self.m = random.Random(seed), Module()
        self.words = [Signal(self.shape(5), name=f"a{n}") for n in range(6)]

    def shape(self, most: int):
        width = self.random.randint(1, most)
        return signed(width) if self.random.random() < 0.4 else width

    def leaf(self):
        if self.random.random() < 0.15:
            return Const(self.random.randint(-5, 9), self.random.choice([signed(5), 4]))
        word = self.random.choice(self.words)
        if len(word) > 1 and self.random.random() < 0.25:
            first = self.random.randrange(len(word))
            word = word[first : self.random.randint(first + 1, len(word))]
        return word

    def expression(self, depth: int):
        if depth == 0 or self.random.random() < 0.1:
            return self.leaf()
        a, b = (self.expression(depth - 1)[:20] if len(each) > 20 else each
                for each in (self.expression(depth - 1), self.expression(depth - 1)))  # fmt: skip
        return self.random.choice([
            lambda: -a, lambda: ~a, a.any, a.all, a.xor, a.as_signed, lambda: a[: len(a) // 2 + 1],
            lambda: a + b, lambda: a - b, lambda: a + b, lambda: a - b,
            lambda: a[:4] * b[:3], lambda: a & b, lambda: a | b, lambda: a ^ b,
            lambda: a == b, lambda: a != b, lambda: a < b, lambda: a <= b, lambda: a > b,
            lambda: a >= b, lambda: Mux(self.leaf().any(), a, b), lambda: Cat(a, b),
            lambda: a << b[:2].as_unsigned(), lambda: a >> b[:3].as_unsigned(),
            lambda: a.bit_select(b[:2].as_unsigned(), 2),
            lambda: a.word_select(b[:1].as_unsigned(), 2),
        ])()  # fmt: skip

    def statements(self, target: Signal, depth: int) -> None:
        m = self.m
        if depth == 0 or self.random.random() < 0.3:
            first = self.random.randrange(len(target))
            m.d.comb += target[first:].eq(self.expression(1))
        elif self.random.random() < 0.5:
            with m.If(self.leaf().any()):
                self.statements(target, depth - 1)
            with m.Elif(self.leaf().any()):
                self.statements(target, depth - 1)
            with m.Else():
                self.statements(target, depth - 1)
        else:
            selector = self.leaf()[:3]
            with m.Switch(selector):
                for _ in range(3):
                    with m.Case("".join(self.random.choice("01-") for _ in range(len(selector)))):
                        self.statements(target, depth - 1)
        if self.random.random() < 0.3:
            m.d.comb += target[0].eq(self.leaf())


@pytest.mark.parametrize(("seed", "narrow"), [(0, 64), (1, 64), (2, 2), (3, 2)])
def test_random_circuits(seed, narrow, tmp_path, monkeypatch):
    """narrow: bits up to which a select is written as a shift."""
    monkeypatch.setattr("hdl.back.inline._NARROW", narrow)
    words = _Words(seed)
    outputs = [Signal(words.shape(8), name=f"y{n}") for n in range(NUMBER)]
    for n, each in enumerate(outputs):
        if n % 3:
            words.m.d.comb += each.eq(words.expression(3))
        else:
            words.statements(each, 2)
    text = rtlil.convert(words.m, name="old", ports=[*words.words, *outputs], emit_src=False)
    (module,) = read(text)
    module.name = "new"
    (tmp_path / "old.il").write_text(text)
    lines = render(module, {}, {})
    assert ("+:" in "".join(lines)) == (narrow == 2)
    (tmp_path / "new.v").write_text("\n".join([*lines, ""]))
    proofs = "".join(f"tee -q -a said sat -prove cmp_y{n} 1\n" for n in range(NUMBER))
    run(_PROOF + proofs, tmp_path)
    said = re.findall(r"SUCCESS!|FAIL!", (tmp_path / "said").read_text())
    assert said == ["SUCCESS!"] * NUMBER


@pytest.mark.parametrize(("bits", "is_inside"), [(4, True), (5, False)])
def test_selects_stay_inside(bits, is_inside):
    """A shift gives zeros beyond the signal, where a select has unknown bits."""
    m = Module()
    row, place, word = Signal(16 * 29), Signal(bits), Signal(29)
    m.d.comb += word.eq(row.word_select(place, 29))
    (module,) = read(rtlil.convert(m, name="top", ports=[row, place, word], emit_src=False))
    assert ("+: 29]" in "".join(render(module, {}, {}))) == is_inside


def test_states_have_names():
    m = Module()
    go, busy = Signal(), Signal()
    with m.FSM():
        with m.State("IDLE"), m.If(go):
            m.next = "WORK"
        with m.State("WORK"):
            m.d.comb += busy.eq(1)
            m.next = "IDLE"
    # ``hdl.back.emit`` adds what Amaranth leaves out: here by hand.
    text = rtlil.convert(m, name="top", ports=[go, busy], emit_src=False)
    states = "".join(
        f'attribute \\enum_value_{n} "{name}"\n' for n, name in enumerate(["IDLE", "WORK"])
    )
    text = re.sub(r"(?=  wire width 1 \\fsm_state)", lambda _: states, text)
    made = "\n".join(render(read(text)[0], {}, {}))
    assert "localparam FSM_WORK = 1'h1;" in made
    assert "fsm_state <= FSM_WORK" in made


def test_the_first_of_overlapping_patterns_counts():
    """Verilator's CASEOVERLAP stops the build of a ``casez``. Shown to fail: ``casez``."""
    m = Module()
    ends = Signal(3)
    state = Signal(2)
    with m.Switch(ends):
        for number, pattern in enumerate(("--1", "-1-", "1--"), start=1):
            with m.Case(pattern):
                m.d.sync += state.eq(number)
    text = rtlil.convert(m, name="top", ports=[ends, state], emit_src=False)
    made = render(read(text)[0], {}, {})
    lines = [line.strip() for line in made if "ends[" in line]
    assert lines == [
        "else if (ends[0]) state <= 2'h1;",
        "else if (ends[1]) state <= 2'h2;",
        "else if (ends[2]) state <= 2'h3;",
    ]


def test_an_unknown_cell_is_refused():
    text = (
        "module \\top\n  cell $tribuf $1\n    parameter \\Y_WIDTH 1\n    parameter \\A_SIGNED 0\n"
    )
    with pytest.raises(NotImplementedError, match=r"top: a cell \$tribuf"):
        read(f"{text}    connect \\A 1'0\n    connect \\Y 1'0\n  end\nend\n")
