"""Timing: paths computed by hand, names, FO4, the OpenSTA route, refusals.

Shown to fail:

- the setup time left out of a path;
- the falling edge's table read for the rising edge;
- an enable left to a flip-flop of its own, so that one gate drives all;
- the unit set before the library is read, so that ASAP7's paths came in ps.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from amaranth import Module, Signal
from amaranth.lib.wiring import In, Out

from golden.config import Config
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.children import add
from hdl.million.room import BLOCKS as MILLION
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from synth import cells, opensta, report
from synth.area import DONT_USE, SynthesisError, load_libraries
from synth.delays import Delays, Fo4, Table, fo4
from synth.netlist import map_for_speed, netlist_of
from synth.tables import timing as tables
from synth.timing import ESTIMATE, estimate, time_block
from synth.yosys import default_tool

# Delay and slew of every gate, ns: a + slew * b + load * c, in rising and falling edges.
RISE, FALL = (0.02, 0.1, 4.0), (0.01, 0.05, 2.0)
SLEWS, LOADS = (0.001, 0.1, 0.5), (0.001, 0.01, 0.5)
CAPACITANCE, SETUP = 0.002, 0.05


def _axis(numbers):
    return ", ".join(f"{number:g}" for number in numbers)


def _values(line):
    a, b, c = line
    rows = [", ".join(f"{a + b * slew + c * load:.8f}" for load in LOADS) for slew in SLEWS]
    return ", ".join(f'"{row}"' for row in rows)


def _timing(pin, kind="", sense="non_unate"):
    tables = "".join(
        f"{name}(both) {{ index_1(\"{_axis(SLEWS)}\"); index_2(\"{_axis(LOADS)}\"); "
        f"values({_values(line)}); }}\n"
        for name, line in (
            ("cell_rise", RISE), ("cell_fall", FALL),
            ("rise_transition", RISE), ("fall_transition", FALL),
        )
    )  # fmt: skip
    kind = f"timing_type : {kind};" if kind else f"timing_sense : {sense};"
    return f'timing() {{ related_pin : "{pin}"; {kind}\n{tables} }}\n'


def liberty():
    text = (
        'library("tiny") {\n delay_model : table_lookup;\n'
        ' time_unit : "1ns";\n capacitive_load_unit(1, "pf");\n'
        + "".join(
            f" {each}_{edge} : {value};\n"
            for each, value in (
                ("input_threshold_pct", 50),
                ("output_threshold_pct", 50),
                ("slew_lower_threshold_pct", 20),
                ("slew_upper_threshold_pct", 80),
            )
            for edge in ("rise", "fall")
        )
        + " lu_table_template(both) { variable_1 : input_net_transition;\n"
        " variable_2 : total_output_net_capacitance;\n"
        f' index_1("{_axis(SLEWS)}"); index_2("{_axis(LOADS)}"); }}\n'
        " lu_table_template(one) { variable_1 : constrained_pin_transition;\n"
        f' index_1("{_axis(SLEWS)}"); }}\n'
    )
    for cell in cells.CELLS:
        if cell.sequential and cell.name != "dff":
            continue
        inputs = ("D",) if cell.sequential else cell.inputs
        output = "Q" if cell.sequential else "Y"
        function = "IQ" if cell.sequential else cell.function
        inverts = cell.function.startswith("!")
        plain = all(f"!{pin}" not in cell.function[1:] for pin in inputs)
        sense = "non_unate" if not plain else "negative_unate" if inverts else "positive_unate"
        text += f"cell({cell.name}) {{\n area : {cell.area}\n"
        if cell.sequential:
            text += ' ff(IQ, IQN) { clocked_on : "CLK"; next_state : "D"; }\n'
            text += f" pin(CLK) {{ direction : input; clock : true; capacitance : {CAPACITANCE}; }}"
        for pin in inputs:
            setup = ""
            if cell.sequential:
                values = f'values("{_axis([SETUP] * len(SLEWS))}")'
                setup = (
                    f'timing() {{ related_pin : "CLK"; timing_type : setup_rising;\n'
                    f"rise_constraint(one) {{ {values}; }} fall_constraint(one) {{ {values}; }} }}"
                )
            text += f" pin({pin}) {{ direction : input; capacitance : {CAPACITANCE}; {setup} }}\n"
        arcs = (
            _timing("CLK", "rising_edge")
            if cell.sequential
            else "".join(_timing(pin, sense=sense) for pin in inputs)
        )
        text += f' pin({output}) {{ direction : output; function : "{function}";\n{arcs} }}\n}}\n'
    return text + "}\n"


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    """The cache lies under the working folder: nothing is found in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "tiny.lib").write_text(liberty())
    return load_libraries([Path("tiny.lib")])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkConfig(Config):
    pass


class Link(Block):
    """out = register(not in)"""

    def __init__(self, config):
        super().__init__(config, {"a": In(1), "b": Out(1)})

    def elaborate(self, platform):
        m = Module()
        held = Signal(name="held")
        m.d.sync += held.eq(~self.a)
        m.d.comb += self.b.eq(held)
        return m


class Pair(Block):
    """Two links in a row."""

    def __init__(self, config):
        super().__init__(config, {"a": In(1), "b": Out(1)})

    def elaborate(self, platform):
        m = Module()
        first = add(m, "first", Link(self.config))
        second = add(m, "second", Link(self.config))
        m.d.comb += [first.a.eq(self.a), second.a.eq(first.b), self.b.eq(second.b)]
        return m


def _at(line, slew, load):
    a, b, c = line
    return a + b * slew + c * load


def test_a_path_by_hand(tiny):
    """first.b -> nor2 with the reset -> second.b, by the lines that the tables are made of."""
    timing = time_block(Pair(LinkConfig()), "pair", tiny, 1.0, timer="estimate")
    path = timing.limit
    slew = {"rise": _at(RISE, 0, CAPACITANCE), "fall": _at(FALL, 0, CAPACITANCE)}
    rising = slew["fall"] + _at(RISE, slew["fall"], CAPACITANCE)  # Q falls, the gate rises
    falling = slew["rise"] + _at(FALL, slew["rise"], CAPACITANCE)
    assert path.ns == pytest.approx(max(rising, falling) + SETUP)
    assert path.setup == pytest.approx(SETUP)
    assert path.cells == 1
    assert [step.cell for step in path.steps] == ["dff", "nor2"]  # with the reset
    assert path.start == "first.b"
    assert path.end == "second.b"
    assert path.start_module.startswith("link")
    assert timing.mhz == pytest.approx(1000 / path.ns)
    assert timing.timer == ESTIMATE
    kinds = {each.kind: each for each in timing.paths}
    assert set(kinds) == {"register to register", "input to register", "register to output"}
    assert kinds["input to register"].start == "rst"
    assert kinds["register to output"].end == "b"
    q = max(_at(RISE, 0, timing.fo4.load_pf), _at(FALL, 0, timing.fo4.load_pf))
    assert kinds["register to output"].ns == pytest.approx(q)


def test_fo4_is_that_of_a_long_chain(tiny):
    reference = fo4(tiny.library, Delays("tiny", tiny.texts), DONT_USE)
    load = 4 * CAPACITANCE
    # rise = r + b_r * fall and fall = f + b_f * rise are the settled slews
    r, f = _at(RISE, 0, load), _at(FALL, 0, load)
    rise = (r + RISE[1] * f) / (1 - RISE[1] * FALL[1])
    fall = f + FALL[1] * rise
    assert reference == Fo4("inv", pytest.approx((rise + fall) / 2), pytest.approx(load))


def test_tables_are_linear_within_and_outside():
    table = Table((0.0, 1.0), (0.0, 2.0), ((1.0, 3.0), (2.0, 6.0)))
    for slew in (-0.5, 0.0, 0.25, 1.0, 3.0):
        for load in (-1.0, 0.5, 2.0, 5.0):
            expected = (1 + load) * (1 + slew)
            assert table.at(slew, load) == pytest.approx(expected)
    assert Table((0.0,), (0.0,), ((7.0,),)).at(5, 5) == 7.0


def test_enables_are_buffered(tiny):
    """64 registers share an enable: no net of the mapped netlist drives more than 12 pins."""
    block = StreamFifo(StreamFifoConfig(width=64, depth=2, storage="flipflop"))
    design = convert(block, "stream_fifo")
    delays = Delays("tiny", tiny.texts)
    reference = fo4(tiny.library, delays, DONT_USE)
    top = map_for_speed(design, tiny, reference, default_tool())
    netlist = netlist_of(design, top, tiny, delays)
    fanout = {}
    for instance in netlist.cells:
        for pin, net in instance.nets.items():
            if instance.cell.pins[pin].is_input and pin != "CLK":
                fanout[net] = fanout.get(net, 0) + 1
    assert netlist.flip_flops > 128
    assert max(fanout.values()) <= 12
    assert {path.start_kind for path in estimate(netlist, reference)} == {"input", "register"}


def test_command_line(tiny, capsys):
    arguments = ["stream_fifo", "width=2", "--liberty", "tiny.lib", "--clock-ns", "0.5"]
    assert report.main([*arguments, "--timer", "estimate", "--json"]) == 0
    timing = json.loads(capsys.readouterr().out)["timing"]
    worst = next(path for path in timing["paths"] if path["kind"] == "register to register")
    assert timing["clock_ns"] == 0.5
    assert timing["timer"] == ESTIMATE
    assert timing["maximum_mhz"] == pytest.approx(1000 / worst["ns"], abs=1e-3)
    assert timing["fo4_depth"] == pytest.approx(worst["ns"] / timing["fo4"]["ns"], rel=1e-3)
    assert worst["slack_ns"] == pytest.approx(0.5 - worst["ns"], abs=1e-6)
    assert report.main([*arguments, "--timer", "estimate"]) == 0
    shown = capsys.readouterr().out
    assert "stream_fifo at 0.5 ns: own estimate: no `sta` was used (see `make timing`)" in shown
    assert f"{worst['start']} (stream_fifo) -> {worst['end']} (stream_fifo)" in shown
    assert f"at most {timing['maximum_mhz']:,.0f} MHz between registers" in shown


@pytest.mark.parametrize("period", ["0", "-1", "nan", "inf", "fast"])
def test_a_bad_period_is_refused(period, capsys):
    with pytest.raises(SystemExit) as status:
        report.main(["stream_fifo", f"--clock-ns={period}"])
    assert status.value.code == 2
    assert capsys.readouterr().err == (
        f"synth.report: argument --clock-ns: must be a positive number of ns, not '{period}'\n"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: cells.liberty_text(), "inv has no delay table; a clock needs --liberty"),
        (lambda text: text.replace("ff(", "latch("), "the library has no plain flip-flop"),
        (lambda text: text.replace('"!(A&B)"', '"!(A|B)"'), "the library has no two-input NAND"),
        (lambda text: text.replace('function : "!A"', 'function : "A"'), "has no inverter"),
        (
            lambda text: text.replace(f'values({_values(FALL)})', 'values("1, 2")', 1),
            "a table cell_fall has 2 values; its axes need 9",
        ),
    ],
)  # fmt: skip
def test_a_library_that_cannot_time_is_refused(change, message, tmp_path, capsys):
    (tmp_path / "bad.lib").write_text(change(liberty()))
    arguments = ["stream_register", "--clock-ns", "1", "--liberty", "bad.lib"]
    assert report.main([*arguments, "--timer", "estimate"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_timer_needs_a_clock_and_its_program(tiny, monkeypatch, capsys):
    with pytest.raises(SystemExit) as status:
        report.main(["stream_register", "--timer", "estimate"])
    assert status.value.code == 2
    assert capsys.readouterr().err == "synth.report: --timer needs --clock-ns\n"
    monkeypatch.setenv("PATH", str(Path().resolve()))
    arguments = ["stream_register", "--clock-ns", "1", "--liberty", "tiny.lib"]
    assert report.main([*arguments, "--timer", "opensta"]) == 2
    assert "no program `sta` on PATH" in capsys.readouterr().err


SAID = """
senbazuru: register to register
Startpoint: c0 (rising edge-triggered flip-flop clocked by clk)
Endpoint: c1 (rising edge-triggered flip-flop clocked by clk)

      Slew       Delay        Time   Description
-----------------------------------------------------------------
  0.000000    0.000000    0.000000   clock clk (rise edge)
              0.000000    0.000000   clock network delay (ideal)
  0.000000    0.000000    0.000000 ^ {first}/CLK (dff)
  0.110000    0.320000    0.320000 v {first}/Q (dff)
  0.040000    0.060000    0.380000 ^ {inv}/Y (nor2)
  0.040000    0.000000    0.380000 ^ {second}/D (dff)
                          0.380000   data arrival time

             -0.050000    0.950000   library setup time
                          0.950000   data required time
-----------------------------------------------------------------
                          0.570000   slack (MET)

senbazuru: input to register
No paths found.
senbazuru: end
"""


def _pair_netlist(tiny):
    delays = Delays("tiny", tiny.texts)
    reference = fo4(tiny.library, delays, DONT_USE)
    design = convert(Pair(LinkConfig()), "pair")
    top = map_for_speed(design, tiny, reference, default_tool())
    return netlist_of(design, top, tiny, delays), reference


def _stub(tmp_path, text):
    program = tmp_path / "sta"
    (tmp_path / "said").write_text(text)
    program.write_text(f"#!/bin/sh\n[ $1 = -version ] && echo 9.9 || cat {tmp_path}/said\n")
    program.chmod(0o755)
    return str(program)


def test_paths_of_opensta_get_the_names_of_the_design(tiny, tmp_path):
    netlist, reference = _pair_netlist(tiny)
    number = {(each.name, each.cell.name): f"c{n}" for n, each in enumerate(netlist.cells)}
    used = {cell: name for (_, cell), name in number.items() if cell == "nor2"}
    text = SAID.format(
        first=number["first.b", "dff"], second=number["second.b", "dff"], inv=used["nor2"]
    )
    version, paths = opensta.paths(_stub(tmp_path, text), netlist, tiny, reference, 1.0)
    assert version == "OpenSTA 9.9"
    (path,) = paths
    assert (path.kind, path.start, path.end) == ("register to register", "first.b", "second.b")
    assert (path.ns, path.setup, path.cells) == (pytest.approx(0.43), 0.05, 1)
    assert [step.arrival for step in path.steps] == [0.32, 0.38]
    assert [step.is_rising for step in path.steps] == [False, True]
    with pytest.raises(SynthesisError, match="OpenSTA: Error: 7 bad"):
        opensta.paths(_stub(tmp_path, "Error: 7 bad\n"), netlist, tiny, reference, 1.0)
    with pytest.raises(SynthesisError, match="OpenSTA: exit status 0"):
        opensta.paths(_stub(tmp_path, ""), netlist, tiny, reference, 1.0)


def test_the_script_of_opensta(tiny):
    netlist, reference = _pair_netlist(tiny)
    text = opensta.script(netlist, ["0.lib"], reference, 2.5)
    assert "create_clock -name clk -period 2.500000000 [get_ports clk]" in text
    assert text.index("read_liberty 0.lib") < text.index("set_cmd_units -time ns")
    for kind in ("register to register", "input to register", "register to output"):
        assert f'puts "senbazuru: {kind}"' in text
    assert "signed" not in opensta.verilog(netlist)


@pytest.mark.skipif(shutil.which("sta") is None, reason="OpenSTA is not installed")
def test_the_estimate_is_what_opensta_says(tiny):
    block = StreamFifo(StreamFifoConfig(width=8, depth=4, storage="flipflop"))
    own = time_block(block, "stream_fifo", tiny, 1.0, timer="estimate")
    block = StreamFifo(StreamFifoConfig(width=8, depth=4, storage="flipflop"))
    other = time_block(block, "stream_fifo", tiny, 1.0, timer="opensta")
    assert other.timer.startswith("OpenSTA")
    assert {p.kind: pytest.approx(p.ns, abs=2e-6) for p in own.paths} == {
        p.kind: p.ns for p in other.paths
    }


def test_a_damaged_netlist_is_mapped_again(tiny):
    first = time_block(Pair(LinkConfig()), "pair", tiny, 1.0, timer="estimate")
    (kept,) = Path("build").rglob("netlist.json")
    for text in ("", "{", '{"modules": {}}'):
        kept.write_text(text)
        again = time_block(Pair(LinkConfig()), "pair", tiny, 1.0, timer="estimate")
        assert again == first
    assert kept.stat().st_size > 100


def test_tables_need_a_library(capsys, monkeypatch):
    """The command says, without a library, how to get one, and OpenSTA."""
    assert tables.main([]) == 0
    shown = capsys.readouterr().out
    assert "apt-get install opensta" in shown
    assert "make timing LIBERTY=NAME=FILE" in shown
    monkeypatch.setenv("PATH", str(Path().resolve()))
    assert tables.main([]) == 0
    assert capsys.readouterr().out.endswith("sta: not on PATH\n")
    for text in ("tiny", "=tiny.lib", "tiny=a,,b"):
        assert tables.main(["--set", text]) == 2
        assert f"--set must be NAME=FILE[,FILE...], not {text!r}" in capsys.readouterr().err
    with pytest.raises(SystemExit) as status:
        tables.main(["--page"])
    assert status.value.code == 2
    assert capsys.readouterr().err.endswith("--page needs --set: the tables are of libraries\n")


def test_tables_of_one_block(tiny, capsys, monkeypatch):
    monkeypatch.setattr(
        tables, "GROUPS",
        {"timing": (("stream_register", "width=2"),), "other": (("stream_register", "width=3"),)},
    )  # fmt: skip
    assert tables.main(["--set", "tiny=tiny.lib"]) == 0
    shown = capsys.readouterr().out
    assert "| stream_register width=2 | tiny |" in shown
    assert "| stream_register width=3 | tiny |" in shown
    assert "| register to register |" in shown
    assert tables.main(["--set", "tiny=tiny.lib", "--only", "other"]) == 0
    shown = capsys.readouterr().out
    assert "width=2" not in shown
    assert "| stream_register width=3 | tiny |" in shown


def test_every_block_of_million_has_its_rows_on_the_page():
    """The page has rows of both libraries in both of its tables."""
    text = tables.PAGE.read_text()
    rows = text[text.index("<!-- generated: timing_million -->") :]
    timed = set(MILLION)
    assert {name for name, *_ in tables.GROUPS["timing_million"]} == timed
    for name in timed:
        for library in ("Sky130 HD", "ASAP7 RVT"):
            found = [line for line in rows.splitlines()
                     if line.startswith(f"| {name} --config=small | {library} |")]  # fmt: skip
            assert len(found) >= 2, f"{name}: {library}"
