"""tb.faults.mutate: faults are shared out, selected and named as the report says."""

import functools
import importlib
import json
import re

import pytest

from hdl.back.deliver import package
from hdl.back.verilog import convert
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.registry import all_blocks, find
from synth.yosys import run
from tb.faults import mutate
from tb.fp16.support.formats import COMPLETE, has_bench


def test_every_block_has_tests_to_judge_it():
    for name in all_blocks():
        assert mutate.test_file(name).exists()


def test_faults_are_shared_by_weight_within_limits():
    assert mutate._shares({"top": 3.0, "child": 1.0}, {"top": 99, "child": 99}, 8) == {
        "top": 6,
        "child": 2,
    }
    assert mutate._shares({"top": 3.0, "child": 1.0}, {"top": 2, "child": 99}, 8)["child"] == 6
    assert mutate._shares({"top": 1.0}, {"top": 3}, 8) == {"top": 3}
    counts = mutate.allocate(["a", "b"], 9, {"a": 1, "b": 2})
    assert counts == {"a": 3, "b": 6}


def test_a_block_is_kept_while_no_source_has_changed(tmp_path, monkeypatch):
    """Shown to fail: ``keep`` that does not compare the keys."""
    monkeypatch.setattr(mutate, "REPORT_DIR", tmp_path)
    monkeypatch.setattr(mutate, "results_key", lambda: "now")
    assert mutate.Setting("now", 1, 1, True).keep("a", 8, {"seconds": 1})
    assert not mutate.Setting("before", 1, 1, True).keep("b", 8, {})
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")]
    assert files == ["kept/now/a-8-1.json"]


def test_ctrl_c_while_tests_are_collected_ends_the_run(reports, monkeypatch, capsys):
    """Shown to fail: the block counted as not examined, and the run went on."""
    monkeypatch.setattr(mutate, "test_file", lambda name: reports / f"test_{name}.py")
    monkeypatch.setattr(pytest, "main", lambda *_, **__: pytest.ExitCode.INTERRUPTED)
    assert mutate.main(["stream_skid", "stream_fork", "--mutants", "2"]) == 130
    assert capsys.readouterr().err == "tb.faults.mutate: interrupted; the same command resumes\n"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"seconds": 1, "mutants": [{"block": "a"}]}', '{"mutants": []}']
)
def test_a_damaged_block_is_not_kept(text, tmp_path, monkeypatch):
    """Shown to fail: JSONDecodeError, KeyError and TypeError."""
    monkeypatch.setattr(mutate, "REPORT_DIR", tmp_path)
    monkeypatch.setattr(mutate, "results_key", lambda: "now")
    setting = mutate.Setting("now", 1, 1, True)
    setting.keep("a", 8, {"seconds": 1, "mutants": []})
    file = setting.kept_file("a", 8)
    assert mutate.read_kept(file) == ([], 1.0)
    file.write_text(text)
    assert mutate.read_kept(file) is None


def test_the_key_says_whether_abc_is_installed(monkeypatch):
    keys = set()
    for abc in (None, "yosys-abc"):
        monkeypatch.setattr(mutate, "native_abc", lambda abc=abc: abc)
        keys.add(mutate.results_key())
    assert len(keys) == 2


def test_the_added_port_becomes_a_register_set_by_a_plusarg():
    verilog = (
        "module dut(clk, i, o, mutant_select);\n"
        "  input [2:0] mutant_select;\n"
        "  wire [2:0] mutant_select;\n"
        "endmodule\n"
    )
    text = mutate._select_by_plusarg(verilog, 3)
    assert "module dut(clk, i, o);" in text
    assert '$value$plusargs("mutant=%d", mutant_select)' in text
    assert len(re.findall("reg ", text)) == 1
    assert "input" not in text


def test_collected_simulations_are_those_that_must_pass():
    # test_add.py also holds a test of a deliberately wrong word, which is to fail
    recordings = mutate.collect("fp16_add", 1)
    assert recordings
    assert not any("wrong" in recording.test for recording in recordings)
    assert all(recording.module == "tb.fp16.check_operator" for recording in recordings)


def test_a_module_of_tests_is_collected_more_than_once():
    """Shown to fail: one that binds ``build_model`` as it is imported, here or in a collection."""
    importlib.import_module("tb.kllm.test_quantizer")
    first, second = (mutate.collect("kllm_quantizer", seed, "default") for seed in (1, 2))
    assert [each.design for each in first] == [each.design for each in second]
    assert {each.arguments["seed"] for each in second} == {2}


@pytest.mark.parametrize("number", [0, 1])
def test_tables_count_every_fault(number):
    fault = mutate.Mutant("b", "t", 1, "m", True, "inv or Y[0]", "w[0]", "assign a|b", "mutate")
    fault.outcome = ("killed", "survived")[number]
    assert mutate.summary([fault]) == [("b", [1, 1 - number, 0, number], [0, 0, 0, 0])]
    tables = mutate.page_tables([fault], 1, 60)
    assert ("`m`" in tables["survivors"]) is bool(number)


def test_further_seeds_run_on_what_is_left(monkeypatch):
    """Shown to fail: faults that are dead run again, tests of another design."""

    class Part:
        config = 7

    class Other:
        config = 8

    ran = []

    class Judges:
        def __init__(self, first, recordings, verilog):
            assert first is recordings[0]
            self.seed = first.arguments["seed"]

        def judge(self, number):
            ran.append((self.seed, number))
            return ("late" if (self.seed, number) == (4, 2) else "", 1.0)

        def close(self):
            pass

    def collect(name, seed):
        blocks = (Other(), Part()) if seed != 5 else (Other(),)
        return [mutate.Recording("t", block, "m", {"seed": seed}) for block in blocks]

    monkeypatch.setattr(mutate, "_Judges", Judges)
    faults = [mutate.Mutant("b", "t", n, "m", True, "inv", "", "", "", "survived") for n in (1, 2)]
    mutate._judge_later(
        faults, collect("b", 1)[1], range(4, 7), "", 1, functools.partial(collect, "b")
    )
    assert ran == [(4, 1), (4, 2), (6, 1)]
    assert [fault.later for fault in faults] == ["", "seed 4: late"]
    tables = mutate.page_tables(faults, 1, 60, 3)
    assert "the next 3 seeds: 1 killed: 50.0%" in tables["mutation"]
    assert "| seed 4 |" in tables["survivors"]
    tables = mutate.page_tables(faults, 1, 60)
    assert not any("seed 4" in each or "next" in each for each in tables.values())


def test_seeds_end_within_the_range(capsys):
    with pytest.raises(SystemExit):
        mutate.main(["stream_skid", "--seed", "2147483646", "--more-seeds", "2"])
    assert capsys.readouterr().err == "tb.faults.mutate: seed + more-seeds must be 0..2147483647\n"


@pytest.fixture
def reports(tmp_path, monkeypatch):
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "PAGE", tmp_path / "mutation.md")
    monkeypatch.setattr(mutate, "REPORT_DIR", tmp_path / "reports")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "reports"


def test_an_interrupted_run_resumes_and_two_seeds_are_two_reports(reports, monkeypatch, capsys):
    """Shown to fail: a kept block of another seed or number of faults, a broken block kept."""
    examined = []

    def examine(name, count, seed, jobs, report, *, prove, more_seeds):
        examined.append((name, count, seed))
        if examined[-1] in interruptions:
            interruptions.remove(examined[-1])
            raise KeyboardInterrupt
        if name == "stream_join":
            raise RuntimeError("does not build")
        for number in range(count):
            report(mutate.Mutant(name, "t", number, "m", True, "inv", "", "", "", "killed"))

    monkeypatch.setattr(mutate, "examine", examine)
    command = ["stream_skid", "stream_join", "stream_fork", "--mutants", "6", "--seed", "3", "4"]
    interruptions = [("stream_fork", 2, 3), ("stream_skid", 2, 4)]
    assert [mutate.main(command) for _ in range(4)] == [130, 130, 1, 1]
    names = ("stream_skid", "stream_join", "stream_fork")
    first, second = ([(name, 2, seed) for name in names] for seed in (3, 4))
    again = [("stream_join", 2, seed) for seed in (3, 4)]
    assert examined == [*first, *first[1:], *second[:1], again[0], *second, *again]
    for seed in (3, 4):
        found = json.loads((reports / f"report-{seed}.json").read_text())
        assert (found["faults"], found["killed"]) == (4, 4)
        assert found["not_examined"] == {"stream_join": "does not build"}
    examined.clear()
    mutate.main(["stream_skid", "--mutants", "3", "--seed", "3"])
    assert examined == [("stream_skid", 3, 3)]
    assert "as kept" in capsys.readouterr().out


def test_models_are_built_for_several_faults_each():
    recordings = [mutate.Recording(f"t{n}", None, "m", {}) for n in range(10)]
    for count, number in ((1, 1), (7, 1), (8, 2), (99, 4)):
        assert len(mutate.spread(recordings, count, 5)) == number
    assert len(mutate.spread(recordings[:1], 99, 5)) == 1
    seen = {each.test for seed in range(10) for each in mutate.spread(recordings, 4, seed)}
    assert len(seen) == 10


def test_a_block_whose_tests_fail_without_a_fault_is_named(reports, monkeypatch, capsys):
    """It failed before: the line of such a block was "0 of 0 killed" and no other said more."""

    def examine(name, count, seed, jobs, report, *, prove, more_seeds):
        raise RuntimeError(f"{name}: test_x fails without a fault: full_rate")

    monkeypatch.setattr(mutate, "examine", examine)
    assert mutate.main(["stream_skid", "stream_fork"]) == 1
    printed = capsys.readouterr().out
    assert "0 of 0" not in printed
    assert "stream_skid: NOT EXAMINED" in printed
    assert "not examined: stream_skid, stream_fork" in printed


def test_operators_have_their_faults_in_the_room_of_their_bench():
    """Shown to fail: ``_modules`` of all blocks."""
    softmax = all_blocks()["attention_softmax"]
    design = package(convert(softmax.component(softmax.configs["small"]), "top"))
    operators = {name for name, block in design.blocks.items() if type(block) in COMPLETE}
    assert operators
    assert set(mutate._modules(design, softmax.component)) == set(design.blocks) - operators
    add = all_blocks()["fp16_add"]
    alone = package(convert(add.component(add.config), "top"))
    assert mutate._modules(alone, add.component) == list(alone.blocks)


def test_a_fixed_point_word_needs_a_bench_as_wide():
    """Shown to fail: widths that are not compared."""
    for width, found in ((80, True), (81, False)):
        config = FixedToFloatConfig(width=width, grid_exponents=(-24,))
        assert has_bench(FixedToFloat, config) is found
    assert not has_bench(FixedToFloat, FixedToFloatConfig(width=8, grid_exponents=(-23,)))


HIERARCHY = """
module leaf(input [3:0] a, output y);
  assign y = a[0] ^ a[2];
endmodule
module box(input clk, input [7:0] i, output reg o);
  wire y; leaf inner(.a(i[5:2]), .y(y));
  always @(posedge clk) o <= y & i[7];
endmodule
module top(input clk, input [7:0] i, output o);
  box child(.clk(clk), .i(~i), .o(o));
endmodule
"""


def test_places_that_a_black_box_does_not_read_have_no_faults(tmp_path):
    """Shown to fail: bits of ``leaf`` taken for read, and all bits of ``box``."""
    (tmp_path / "design.v").write_text(HIERARCHY)
    run("read_verilog design.v\nhierarchy -top top\nwrite_rtlil base.il\n", tmp_path)
    places = [f"mutate -mode inv -cell child -port i -portbit {bit}" for bit in range(8)]
    others = ["mutate -mode inv -cell $not$1 -port A -portbit 0"]
    is_read = mutate._reads(tmp_path, "top", ["box", "leaf"])
    kept = list(filter(is_read, [*places, *others]))
    assert kept == [places[2], places[4], places[7], *others]
    assert list(filter(mutate._reads(tmp_path, "top", []), places)) == places


def test_an_asynchronous_read_has_no_enable_to_break():
    """Seen to fail: Yosys ended with an assertion at ``const0`` of such a RD_EN."""
    netlist = """
  cell $mem_v2 \\a.words
    parameter \\RD_PORTS 2
    parameter \\RD_CLK_ENABLE 2'01
  end
  cell $mem_v2 \\c.words
    parameter \\RD_CLK_ENABLE 1
  end
  cell $and \\b
"""
    is_fixed = mutate._fixed(netlist)

    def line(cell: str, port: str, bit: int) -> str:
        return f"mutate -mode const0 -module dut -cell {cell} -port {port} -portbit {bit}"

    assert is_fixed(line("a.words", "RD_EN", 1))
    assert not is_fixed(line("a.words", "RD_EN", 0))
    assert not is_fixed(line("a.words", "RD_ADDR", 1))
    # 32 ports: a plain number.
    assert is_fixed(line("c.words", "RD_EN", 31))
    assert not is_fixed(line("c.words", "RD_EN", 0))
    assert not is_fixed(line("b", "A", 1))


def test_a_large_netlist_is_undecided_at_once(tmp_path, monkeypatch):
    """Shown to fail: without the limit it is read."""
    (tmp_path / "base.il").write_text("no netlist\n")
    monkeypatch.setattr(mutate, "PROOF_BYTES", 10)
    mutant = mutate.Mutant("a", "t", 1, "dut", True, "inv", "", "", "mutate -cell $not$1")
    recording = mutate.Recording("t", find("stream_skid").component, "", {})
    assert mutate.compare(tmp_path, mutant, None, recording) == "undecided"
