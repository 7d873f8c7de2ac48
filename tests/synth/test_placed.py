"""Placement, wires and layout kits: legal rows, lengths and delays by hand, refusals.

Shown to fail:

- columns without regard to the widths of cells, and columns that are not limited to the row;
- a spreading that cuts rows by halves where one part has more rows;
- a full row's cell moved to a row that is full too;
- random numbers without the seed;
- a placement whose linear systems are left out;
- the whole perimeter of one side of the box;
- ports at half of their distances;
- an exchange of places without rows, and lengths that an exchange does not note;
- Elmore's delay with the whole capacitance of the wire, of either edge;
- a wire's delay left out of nets that a port drives, or below 0;
- a wire whose load the driver does not see;
- the factor of wires applied to the resistance alone;
- nets of the clock among the wires, and pins of RAMs left off the boundary;
- a kept placement used for another seed, and a damaged one that is used;
- a utilisation without its range, in the command or in ``place``;
- a library without a technology that gets one, and a kit for a technology without a PDK;
- the clock with wires shown as that without;
- RAMs left in the Verilog of the layout;
- ``DIE_AREA`` without the margins, and a period of the path between registers alone;
- a block above the limit that is placed.
"""

import dataclasses
import json
import re
from pathlib import Path

import fastjsonschema
import numpy as np
import pytest

from hdl.back.verilog import convert
from hdl.registry import configuration, find
from synth import placed, report
from synth.area import CACHE, load_libraries
from synth.layout import MARGIN, layout_files
from synth.liberty import LibraryError
from synth.netlist import map_for_speed, netlist_of
from synth.placed import map_block, place_mapped, problem_of, wires_of
from synth.placement import Die, Nets, Site, place, random_placement
from synth.placement.analytic import fit_rows, spread
from synth.placement.die import legal_columns
from synth.placement.swaps import Swaps
from synth.tables import placed as tables
from synth.tables import timing
from synth.technology import TECHNOLOGIES, Technology, technology_of
from synth.timing import Times, Wire, delays_of, estimate
from synth.yosys import default_tool
from tests.synth.test_timing import CAPACITANCE, FALL, RISE, SETUP, LinkConfig, Pair, liberty

SITE = Site(0.46, 2.72)
TINY = Technology("tiny", "nand2", SITE, 1e-4, 1e-3, "none", "tinyA", "tiny_cells")
_FALLS, _RISES = 0, 1  # edges of synth.delays

# LibreLane 3.0.10: names and types of the variables as in its librelane/config/flow.py, and in
# librelane/steps: openroad.py and pyosys.py. Only the variables that a kit sets.
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["DESIGN_NAME", "PDK", "VERILOG_FILES", "CLOCK_PORT", "CLOCK_PERIOD"],
    "properties": {
        "DESIGN_NAME": {"type": "string", "pattern": "^[_a-zA-Z][_a-zA-Z0-9]+$"},
        "PDK": {"type": "string", "pattern": "^[_a-zA-Z][_a-zA-Z0-9]+$"},
        "STD_CELL_LIBRARY": {"type": "string"},
        "VERILOG_FILES": {"$ref": "#/definitions/files"},
        "EXTRA_VERILOG_MODELS": {"$ref": "#/definitions/files"},
        "CLOCK_PORT": {"type": ["string", "null"]},
        "CLOCK_PERIOD": {"type": "number", "exclusiveMinimum": 0},
        "PNR_SDC_FILE": {"$ref": "#/definitions/file"},
        "SIGNOFF_SDC_FILE": {"$ref": "#/definitions/file"},
        "FP_SIZING": {"enum": ["absolute", "relative"]},
        "DIE_AREA": {
            "type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4,
        },
        "FP_CORE_UTIL": {"type": "number", "minimum": 1, "maximum": 100},
        "PL_TARGET_DENSITY_PCT": {"type": "number", "minimum": 1, "maximum": 100},
    },
    "definitions": {
        "file": {"type": "string", "pattern": "^dir::[^/]+$"},
        "files": {"type": "array", "items": {"$ref": "#/definitions/file"}, "minItems": 1},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    """The cache lies under the working folder: nothing is found in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("synth.technology.TECHNOLOGIES", (*TECHNOLOGIES, TINY))


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "tiny.lib").write_text(liberty())
    return load_libraries([Path("tiny.lib")])


def _grid(side):
    """(widths, nets, ports): ``side`` x ``side`` cells, each with its neighbours, four ports."""
    number = np.arange(side * side).reshape(side, side)
    nets = [[int(a), int(b)] for a, b in zip(number[:, :-1].flat, number[:, 1:].flat, strict=True)]
    nets += [[int(a), int(b)] for a, b in zip(number[:-1].flat, number[1:].flat, strict=True)]
    corners = (number[0, 0], number[0, -1], number[-1, -1], number[-1, 0])
    nets += [[int(cell), side * side + port] for port, cell in enumerate(corners)]
    widths = 3 + np.random.default_rng(3).integers(0, 7, side * side)
    return widths, Nets.of(nets), len(corners)


def _check_legal(made, widths):
    """Every cell once, in a row, inside of the die, over no other."""
    taken = np.zeros((made.die.rows, made.die.columns), dtype=int)
    assert len(made.row) == len(made.column) == len(widths)
    for row, column, width in zip(made.row, made.column, widths, strict=True):
        assert 0 <= row < made.die.rows
        assert 0 <= column
        assert column + width <= made.die.columns
        taken[row, column : column + width] += 1
    assert taken.max() == 1
    assert taken.sum() == widths.sum()
    cells = len(widths)
    assert made.x[:cells] == pytest.approx((made.column + widths / 2) * made.die.site.width)
    assert made.y[:cells] == pytest.approx((made.row + 0.5) * made.die.site.height)


@pytest.mark.parametrize(("side", "utilisation"), [(1, 0.9), (2, 0.9), (7, 0.9), (12, 0.3)])
def test_a_placement_is_legal(side, utilisation):
    widths, nets, ports = _grid(side)
    for seed in (1, 2):
        _check_legal(place(widths, nets, ports, SITE, utilisation, seed), widths)
        _check_legal(random_placement(widths, ports, SITE, utilisation, seed), widths)


def test_the_die_has_the_utilisation():
    widths, nets, ports = _grid(14)
    made = place(widths, nets, ports, SITE, 0.65)
    assert made.utilisation == pytest.approx(0.65, abs=0.01)
    assert made.die.width == pytest.approx(made.die.height, rel=0.1)
    for utilisation in (0.05, 0.95, float("nan")):
        with pytest.raises(ValueError, match=r"utilisation must be in 0\.1\.\.0\.9"):
            place(widths, nets, ports, SITE, utilisation)


def test_ports_are_on_the_boundary():
    die = Die(Site(1.0, 2.0), 4, 12)  # 12 x 8 um
    x, y = die.boundary(10)
    expected = [(0, 0), (4, 0), (8, 0), (12, 0), (12, 4), (12, 8), (8, 8), (4, 8), (0, 8), (0, 4)]
    assert list(zip(x.tolist(), y.tolist(), strict=True)) == expected


def test_a_seed_gives_one_placement():
    widths, nets, ports = _grid(12)
    first, again, *others = (place(widths, nets, ports, SITE, 0.65, seed) for seed in (1, 1, 2, 3))
    assert (first.row == again.row).all()
    assert (first.column == again.column).all()
    assert any((first.column != other.column).any() for other in others)


def test_a_placement_is_a_fifth_of_a_random_one():
    """A grid of 18 x 18 cells; a random placement's nets are longer by a factor above 5."""
    widths, nets, ports = _grid(18)
    made = place(widths, nets, ports, SITE, 0.65)
    other = random_placement(widths, ports, SITE, 0.65)
    ratio = nets.lengths(other.x, other.y).sum() / nets.lengths(made.x, made.y).sum()
    assert ratio > 5


def test_half_perimeters_by_hand():
    nets = Nets.of([[0, 1], [0, 1, 2], [3, 2]])
    x, y = np.array([1.0, 4.0, 2.0, 2.0]), np.array([1.0, 3.0, 9.0, 9.0])
    assert nets.lengths(x, y).tolist() == [3 + 2, 3 + 8, 0]
    assert Nets.of([]).lengths(x, y).tolist() == []


def test_spreading_fills_rows_equally():
    """400 equal cells in a clump go to 20 rows of about 20 cells, in the order of y."""
    random = np.random.default_rng(5)
    x, y = random.normal(30, 0.1, 400), random.normal(30, 0.1, 400)
    widths = np.full(400, 4)
    die = Die(SITE, 20, 130)
    at, row = spread(widths, x, y, die)
    assert np.bincount(row, minlength=20) == pytest.approx(20, abs=5)
    assert 0 < at.min()
    assert at.max() < die.width
    above, below = row >= 10, row < 10
    assert np.median(y[above]) > np.median(y[below])
    unequal = dataclasses.replace(die, rows=3)
    _, row = spread(widths, x, y, unequal)
    assert np.bincount(row, minlength=3) == pytest.approx(400 / 3, abs=8)


def test_a_full_row_gives_to_the_nearest():
    """Row 1 has 12 sites of cells for 10; row 0 is full, so the last cell goes to row 2."""
    die = Die(SITE, 4, 10)
    widths = np.array([4, 4, 4, 5, 5, 3])
    row = fit_rows(widths, np.array([1, 1, 1, 0, 0, 3]), die)
    assert row.tolist() == [1, 1, 2, 0, 0, 3]
    full = fit_rows(np.array([6, 6]), np.array([0, 0]), dataclasses.replace(die, rows=1))
    assert full.tolist() == [0, 0]


def test_columns_by_hand():
    """Three cells that want one place are around it; two at the ends of the row stay in it."""
    die = Die(Site(1.0, 2.0), 1, 30)
    widths = np.array([4, 2, 4, 3, 3])
    x = np.array([10.0, 10.1, 10.2, -5.0, 99.0])
    column = legal_columns(widths, x, np.zeros(5, dtype=np.int64), die)
    assert column.tolist() == [5, 9, 11, 0, 27]


def test_exchanges_never_make_it_longer():
    """Each sweep shortens the nets, and the noted lengths are those of the places."""
    widths, nets, ports = _grid(12)
    start = random_placement(widths, ports, SITE, 0.8)
    swaps = Swaps(widths, nets, ports, start.die, start.row, start.column)
    before = nets.lengths(start.x, start.y).sum()
    swaps.improve(np.random.default_rng(1))
    after = nets.lengths(np.array(swaps.x), np.array(swaps.y))
    assert after.tolist() == pytest.approx(swaps.length)
    assert after.sum() < 0.8 * before
    row, column = np.array(swaps.row), np.array(swaps.column)
    _check_legal(dataclasses.replace(start, row=row, column=column, x=np.array(swaps.x),
                                     y=np.array(swaps.y)), widths)  # fmt: skip


def _pair(tiny):
    delays, reference = delays_of(tiny)
    design = convert(Pair(LinkConfig()), "pair")
    top = map_for_speed(design, tiny, reference, default_tool())
    return netlist_of(design, top, tiny, delays), reference


_WITH_RAM = ("width=3", "depth=8", "storage=memory")


def _fifo(*assignments):
    return find("stream_fifo").component(configuration("stream_fifo", None, list(assignments)))


def _gate(line, slew, load):
    a, b, c = line
    return a + b * slew + c * load


def test_elmore_by_hand(tiny):
    """A wire on the first register's net, one on that of the gate, and one on the input's."""
    netlist, reference = _pair(tiny)
    first = next(cell.nets["Q"] for cell in netlist.cells if cell.name == "first.b")
    second = next(cell.nets["D"] for cell in netlist.cells if cell.name == "second.b")
    wires = {first: Wire(2.0, 0.004), second: Wire(5.0, 0.006)}
    timing_of = {path.kind: path for path in estimate(netlist, reference, wires)}
    path = timing_of["register to register"]
    later = {first: 2.0 * (0.004 / 2 + CAPACITANCE), second: 5.0 * (0.006 / 2 + CAPACITANCE)}
    q = {edge: _gate(line, 0, CAPACITANCE + 0.004) for edge, line in
         (("rise", RISE), ("fall", FALL))}  # fmt: skip
    ways = [
        q[edge] + later[first] + _gate(line, q[edge], CAPACITANCE + 0.006) + later[second] + SETUP
        for edge, line in (("fall", RISE), ("rise", FALL))
    ]
    assert path.ns == pytest.approx(max(ways))
    (net,) = (net for net, _, name in netlist.sources if name == "a")
    plain, wired = (Times(netlist, reference, {net: Wire(kohm, 0.5)}) for kohm in (0, 3))
    assert plain.arrival["input"][net] == [0.0, 0.0]
    expected = 3 * (0.25 + CAPACITANCE * wired.fanout[net])
    assert wired.arrival["input"][net] == pytest.approx([expected, expected])


def test_a_factor_of_0_is_no_wire(tiny):
    netlist, reference = _pair(tiny)
    problem = problem_of(netlist, tiny, SITE)
    um = [float(10 + number) for number in range(len(problem.numbers))]
    plain = estimate(netlist, reference)
    assert estimate(netlist, reference, {}) == plain
    assert estimate(netlist, reference, wires_of(problem.numbers, um, TINY, 0)) == plain
    wires = wires_of(problem.numbers, um, TINY, 1.5)
    assert wires[problem.numbers[2]] == Wire(12 * 1.5 * 1e-3, 12 * 1.5 * 1e-4)


def test_longer_wires_never_make_a_path_faster(tiny):
    mapped = map_block(_fifo("width=3"), "stream_fifo", tiny)
    before: dict[str, float] = {}
    for routed in (0, 0.5, 1, 2, 4, 8):
        made = place_mapped(mapped, routed=routed)
        found = {path.kind: path.ns for path in made.paths}
        for kind, ns in before.items():
            assert found[kind] > ns
        before = found
        if routed == 0:
            assert made.paths == made.without
            assert made.mhz() == made.mhz(False)
    with pytest.raises(ValueError, match="at least 0, not -1"):
        place_mapped(mapped, routed=-1)


def test_the_problem_of_a_netlist(tiny):
    """Widths are areas, the clock has no wire, and pins of RAMs are on the boundary."""
    netlist = map_block(_fifo(*_WITH_RAM), "stream_fifo", tiny).netlist
    kinds = {kind for _, kind, _ in (*netlist.sources, *netlist.sinks)}
    assert kinds == {"input", "output", "RAM"}
    problem = problem_of(netlist, tiny, SITE)
    assert problem.ports == len(netlist.sources) + len(netlist.sinks)
    cells = tiny.library.cells
    for cell, width in zip(netlist.cells, problem.widths, strict=True):
        assert width * SITE.width * SITE.height == pytest.approx(cells[cell.cell.name].area)
    clocks = {cell.nets["CLK"] for cell in netlist.cells if "CLK" in cell.nets}
    assert len(clocks) == 1
    assert not clocks & set(problem.numbers)
    driven = {net for cell in netlist.cells for pin, net in cell.nets.items()
              if not cell.cell.pins[pin].is_input}  # fmt: skip
    rams = [(number, net) for number, (net, kind, _) in enumerate(netlist.sinks)
            if kind == "RAM" and net in driven]  # fmt: skip
    assert rams
    first = problem.nets.first
    for number, net in rams:
        at = problem.numbers.index(net)
        joined = problem.nets.points[first[at] : first[at + 1]]
        assert len(netlist.cells) + len(netlist.sources) + number in joined


def test_placements_are_kept(tiny, monkeypatch):
    calls = []
    real = placed.place

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(placed, "place", counted)
    mapped = map_block(Pair(LinkConfig()), "pair", tiny)
    first = place_mapped(mapped)
    assert place_mapped(mapped) == first
    assert len(calls) == 1
    (kept,) = (CACHE / "placed").glob("*.json")
    text = kept.read_text()
    damaged = re.sub(r'"rows": \d+', '"rows": "x"', text), text.replace('"um": [', '"um": [1.0, ')
    for text in ("", "{", '{"um": []}', *damaged):
        kept.write_text(text)
        again = place_mapped(mapped)
        assert dataclasses.replace(again, seconds=first.seconds) == first
    assert len(calls) == 6
    place_mapped(mapped, seed=2)
    place_mapped(mapped, utilisation=0.5)
    assert len(calls) == 8


def test_libraries_that_are_known(tiny):
    assert technology_of(tiny.library) == TINY
    for each in TECHNOLOGIES:
        assert each.source.count(" commit ") == 1
    other = dataclasses.replace(tiny.library, cells={
        name: dataclasses.replace(cell, name=f"x_{name}")
        for name, cell in tiny.library.cells.items()
    })  # fmt: skip
    with pytest.raises(LibraryError, match=r"row height and wires.*sky130hd, asap7"):
        technology_of(other)


_ARGUMENTS = ["stream_fifo", "width=2", "--liberty", "tiny.lib"]


def test_command_line(tiny, capsys):
    assert report.main([*_ARGUMENTS, "--placed", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["placed"]
    assert made["seed"] == 1
    assert made["routed"] == placed.ROUTED
    assert 0.5 < made["utilisation"] <= placed.UTILISATION + 0.01
    wired, plain = made["with_wires"], made["without_wires"]
    assert wired["maximum_mhz"] < plain["maximum_mhz"]
    worst = next(each for each in wired["paths"] if each["kind"] == "register to register")
    assert wired["maximum_mhz"] == pytest.approx(1000 / worst["ns"], abs=1e-3)
    assert report.main([*_ARGUMENTS, "--placed", "--clock-ns", "1", "--timer", "estimate"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "seed 1" in shown
    assert "no resizing, no clock tree, no RAM on the die" in shown
    assert f"{worst['start']} (stream_fifo) -> {worst['end']} (stream_fifo)" in shown
    assert f"at most {plain['maximum_mhz']:,.0f} MHz between registers" in shown
    assert f" {wired['maximum_mhz']:,.0f} " in shown
    options = ["--wire-factor", "0", "--seed", "5", "--utilisation", "0.4", "--json"]
    assert report.main([*_ARGUMENTS, "--placed", *options]) == 0
    again = json.loads(capsys.readouterr().out)["placed"]
    assert again["seed"] == 5
    assert again["utilisation"] < 0.5
    assert again["with_wires"] == again["without_wires"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--placed", "--utilisation", "95"],
         "argument --utilisation: must be in 0.1..0.9, not '95'"),
        (["--placed", "--utilisation", "x"],
         "argument --utilisation: must be in 0.1..0.9, not 'x'"),
        (["--placed", "--wire-factor", "-1"], "argument --wire-factor: must be in 0..10, not '-1'"),
        (["--placed", "--seed", "-1"],
         "argument --seed: must be a whole number from 0 on, not '-1'"),
        (["--seed", "3"], "--seed needs --placed or --kit"),
        (["--kit", ""], "argument --kit: must name a folder, not ''"),
    ],
)  # fmt: skip
def test_refused_options(arguments, line, tiny, capsys):
    with pytest.raises(SystemExit) as status:
        report.main([*_ARGUMENTS, *arguments])
    assert status.value.code == 2
    assert capsys.readouterr().err == f"synth.report: {line}\n"
    assert not Path("build").exists()


def test_refused_libraries_and_blocks(tiny, capsys, monkeypatch):
    def refused(*arguments):
        assert report.main(list(arguments)) == 2
        out = capsys.readouterr()
        assert out.err.count("\n") == 1
        assert not Path("build").exists()
        return out.err

    assert "no delay table; a clock needs --liberty" in refused("stream_fifo", "--placed")
    assert "no block is called 'no_such'" in refused("no_such", "--placed", "--liberty", "tiny.lib")
    assert "x.lib: no such Liberty file" in refused("stream_fifo", "--placed", "--liberty", "x.lib")
    no_kit = dataclasses.replace(TINY, pdk="")
    monkeypatch.setattr("synth.technology.TECHNOLOGIES", (no_kit,))
    expected = "synth.report: --kit: LibreLane has no process design kit of tiny\n"
    assert refused(*_ARGUMENTS, "--kit", "kit") == expected
    monkeypatch.setattr("synth.technology.TECHNOLOGIES", TECHNOLOGIES)
    assert "a placement needs a row height and wires" in refused(*_ARGUMENTS, "--placed")


def test_a_kit_without_rams(tiny, capsys):
    assert report.main([*_ARGUMENTS, "--kit", "kit"]) == 0
    assert "kit: config.json, stream_fifo.sdc, stream_fifo.v in kit\n" in capsys.readouterr().out
    assert sorted(each.name for each in Path("kit").iterdir()) == [
        "config.json", "stream_fifo.sdc", "stream_fifo.v",
    ]  # fmt: skip
    made = json.loads(Path("kit/config.json").read_text())
    fastjsonschema.compile(SCHEMA)(made)
    with pytest.raises(fastjsonschema.JsonSchemaException):
        fastjsonschema.compile(SCHEMA)(made | {"CLOCK_PERIODS": 1})
    assert made["CLOCK_PORT"] == "clk"
    result = json.loads(Path("build/stream_fifo/synth.json").read_text())["placed"]
    worst = max(path["ns"] for path in result["with_wires"]["paths"])
    assert MARGIN * worst <= made["CLOCK_PERIOD"] <= MARGIN * worst + 0.011
    # 12 sites and 4 rows around the core.
    width, height = result["die_um"]
    assert made["DIE_AREA"][2] == pytest.approx(width + 24 * 0.46, abs=1)
    assert made["DIE_AREA"][3] == pytest.approx(height + 8 * 2.72, abs=1)
    assert made["FP_CORE_UTIL"] == round(100 * result["utilisation"])
    sdc = Path("kit/stream_fifo.sdc").read_text()
    assert sdc.startswith(f"set clock_period {made['CLOCK_PERIOD']:g}\n")
    assert "create_clock -name clk -period $clock_period [get_ports {clk}]" in sdc
    assert "module stream_fifo" in Path("kit/stream_fifo.v").read_text()


def test_a_kit_with_rams(tiny):
    mapped = map_block(_fifo(*_WITH_RAM), "stream_fifo", tiny)
    placement = place_mapped(mapped)
    files = layout_files(mapped.design, placement)
    made = json.loads(files["config.json"])
    fastjsonschema.compile(SCHEMA)(made)
    longer = dataclasses.replace(placement.limit(), start_kind="RAM", ns=9.0)
    slow = dataclasses.replace(placement, paths=(longer, *placement.paths))
    other = json.loads(layout_files(mapped.design, slow)["config.json"])
    assert other["CLOCK_PERIOD"] == 9 * MARGIN
    assert made["EXTRA_VERILOG_MODELS"] == ["dir::stream_fifo_rams.v"]
    head, row = files["stream_fifo_rams.csv"].splitlines()
    found = dict(zip(head.split(","), row.split(","), strict=True))
    assert (found["width"], found["depth"], found["instances"]) == ("4", "8", "1")
    module = found["module"]
    assert f"module {module}" not in files["stream_fifo.v"]
    assert f"(* blackbox *)\nmodule {module}" in files["stream_fifo_rams.v"]


def test_tables(tiny, tmp_path, capsys, monkeypatch):
    """A block above the limit has a row that says so, with the size that the page has."""
    page = tmp_path / "timing.md"
    head = "| block | library | kGE |\n| --- | ---: | ---: |\n"
    page.write_text(
        f"<!-- generated: timing -->\n{head}| stream_register width=3 | tiny | 7.5 |\n"
        "<!-- end generated -->\n<!-- generated: timing_placed -->\n<!-- end generated -->\n"
    )
    monkeypatch.setattr(timing, "PAGE", page)
    rows = (("stream_register", "width=2"), ("stream_register", "width=3"))
    monkeypatch.setattr(timing, "GROUPS", {"timing": rows})
    assert tables.main(["--set", "tiny=tiny.lib", "--most", "5", "--page"]) == 0
    filled = page.read_text()
    assert "| stream_register width=2 | tiny | 0." in filled
    assert "| stream_register width=3 | tiny | 7.50 |  |  | not placed: 8 kGE |" in filled
    assert "not placed: 8 kGE" in capsys.readouterr().out
    assert tables.main(["--set", "tiny=tiny.lib", "--most", "5", "--also", "stream_register"]) == 0
    assert "not placed" not in capsys.readouterr().out
    with pytest.raises(SystemExit) as status:
        tables.main([])
    assert status.value.code == 2
    assert capsys.readouterr().err.startswith("synth.tables.placed: --set is needed")
    assert tables.main(["--set", "tiny=none.lib"]) == 2
    assert capsys.readouterr().err == "synth.tables.placed: none.lib: no such Liberty file\n"
