"""synth.compare, senbazuru.runs.build_report: tables are printed; only --page rewrites the page.

Shown to fail:

- each run rewrote docs/area.md and docs/build.md;
- a page without a place for a table was found after the mapping;
- ``chip`` took no configuration.
"""

import json
import re
from collections import Counter

import pytest

from golden.llm.methods import parse
from golden.markers import fill
from hdl.arguments import whole
from hdl.registry import configuration
from senbazuru.runs import build_report
from synth import compare
from synth.modules import Mapped, MappedDesign, module_texts
from synth.tables import kllm, lanes
from synth.tables.common import Tables
from tb.faults import mutate


def marked(*sections: str) -> str:
    return "".join(f"<!-- generated: {name} -->\n<!-- end generated -->\n" for name in sections)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The options of each call; the tables are texts, and the page a copy."""
    calls = []

    def make(options):
        calls.append(options)
        return {"kllm_chip": "chip's table\n", "kllm_modules": "modules' table\n"}, 1.0

    sections = ("kllm_chip", "kllm_modules")
    chip = Tables(sections, make, block="kllm_accelerator", named="table1")
    tables = {"chip": chip, "kllm": Tables(sections, make), "libraries": Tables(sections, make)}
    monkeypatch.setattr(compare, "all_tables", lambda: tables)
    monkeypatch.setattr(compare, "PAGE", tmp_path / "area.md")
    (tmp_path / "area.md").write_text(marked(*sections))
    return calls


def test_the_page_is_rewritten_by_its_option_alone(made, tmp_path, capsys):
    page = tmp_path / "area.md"
    before = page.read_text()
    assert compare.main(["kllm"]) == 0
    assert "chip's table\n\nmodules' table\n" in capsys.readouterr().out
    assert page.read_text() == before
    assert compare.main(["--page", "chip"]) == 0
    assert "chip's table\n<!-- end generated -->" in page.read_text()
    assert capsys.readouterr().out.endswith("area.md: kllm_chip, kllm_modules\n")


def test_chip_takes_any_configuration(made):
    assert compare.main(["chip"]) == 0
    assert compare.main(["chip", "--config", "small", "width=8"]) == 0
    assert [options.configuration for options in made] == [
        configuration("kllm_accelerator", "table1", []),
        configuration("kllm_accelerator", "small", ["width=8"]),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kllm", "width=8"], "kllm compares fixed configurations: no field=value, no --config"),
        (["kllm", "--config", "small"], "compares fixed configurations: no field=value, no"),
        (["chip", "width=8", "--page"], "--page: the page has kllm_accelerator at table1"),
        (["chip", "--config", "small", "--page"], "the page has kllm_accelerator at table1"),
        (["chip", "--set", "a=b.lib"], "--set is of libraries alone"),
    ],
)
def test_wrong_together(made, arguments, message, capsys):
    with pytest.raises(SystemExit) as status:
        compare.main(arguments)
    assert status.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chip", "nothing=1"], "KllmAcceleratorConfig has no field 'nothing'"),
        (["chip", "width=8", "width=4"], "KllmAcceleratorConfig.width is given twice"),
        (["chip", "--config", "big"], "kllm_accelerator has no configuration 'big'"),
    ],
)
def test_one_line_for_a_configuration(made, arguments, message, capsys):
    assert compare.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"synth.compare: {message}")
    assert error.count("\n") == 1
    assert not made


@pytest.mark.parametrize("text", ["", "no section\n", marked("kllm_chip")])
def test_a_page_without_a_place_is_refused_first(made, text, tmp_path, capsys):
    page = tmp_path / "area.md"
    page.unlink() if not text else page.write_text(text)
    with pytest.raises(SystemExit) as status:
        compare.main(["chip", "--page"])
    assert status.value.code == 2
    reason = "the page has no section 'kllm_" if text else "No such file or directory"
    assert f": --page: {page}: {reason}" in capsys.readouterr().err
    assert not made


@pytest.mark.parametrize("text", ["a", "=b.lib", "a=", "a=b.lib,"])
def test_a_set_without_files_is_one_line(text, capsys):
    assert compare.main(["libraries", "--set", text]) == 2
    assert f"--set must be NAME=FILE[,FILE...], not {text!r}" in capsys.readouterr().err


@pytest.mark.parametrize("given", [False, True])
def test_hardfloat_without_its_verilog_is_one_line(given, tmp_path, capsys):
    assert compare.main(["hardfloat", *(["--hardfloat", str(tmp_path)] if given else [])]) == 2
    reason = f"be a folder with addRecFN.v, not {tmp_path}" if given else "name a folder"
    assert f"synth.compare: --hardfloat must {reason}" in capsys.readouterr().err


def test_the_folder_of_hardfloat_is_of_no_other_table(tmp_path, capsys):
    with pytest.raises(SystemExit) as status:
        compare.main(["fp16", "--hardfloat", str(tmp_path)])
    assert status.value.code == 2
    assert "--hardfloat is of hardfloat alone" in capsys.readouterr().err


def test_docs_have_a_place_for_all_tables():
    tables = compare.all_tables()
    assert {"chip", "kllm", "select", "rivals", "oaken", "fp16", "libraries"} <= set(tables)
    for each in tables.values():
        text = compare.PAGE.with_name(each.page).read_text()
        fill(text, dict.fromkeys(each.sections, ""))
    text = build_report.PAGE.read_text()
    for sections in build_report._SECTIONS.values():
        fill(text, dict.fromkeys(sections, ""))


def _unmapped(design, libraries, *, on_module):
    """A design mapped to one cell and one flip-flop per module: nothing is synthesized."""
    texts = module_texts(design.verilog)
    modules = {}
    for name, text in texts.items():
        found = Counter(re.findall(r"^  \\?(\S+) +\S+? *\($", text, re.M))
        children = {child: count for child, count in found.items() if child in texts}
        modules[name] = Mapped(
            cells=2, flip_flops=1, um2=3.0, levels=4, children=children, seconds=0.5
        )
    return MappedDesign(design, modules, {}, 1.0, 2.0)


def test_the_chip_of_another_configuration_has_its_table(monkeypatch, capsys):
    """The whole way to the table but for Yosys, with other lanes than table1's."""
    monkeypatch.setattr(kllm, "map_modules", _unmapped)
    monkeypatch.setattr(kllm, "KllmOrizuruConfig", lambda **_: kllm.find("kllm_orizuru").config)
    assert compare.main(["chip", "--config", "small", "width=4"]) == 0
    shown = capsys.readouterr().out
    count = configuration("kllm_accelerator", "small", []).machine.lanes
    assert f"| IdxCounter and MAC | {count} x " in shown
    assert "| **total** |" in shown


def test_lanes_next_to_each_other_take_what_was_measured(tmp_path, monkeypatch):
    """Shown to fail: the figures of another library; perplexity of another text."""
    rows = [
        {"lane": "INT4 x INT4", "library": "Sky130 HD", "ns": 4.0, "pj_per_mac": 1.5},
        {"lane": "INT4 x INT4", "library": "other", "ns": 1.0, "pj_per_mac": 0.5},
        {"lane": "select", "library": "Sky130 HD", "ns": None, "pj_per_mac": None},
    ]
    power, accuracy = tmp_path / "lanes.json", tmp_path / "rows.json"
    power.write_text(json.dumps({"lanes": rows}))
    method = {"method": "kllm-w4a4", "seed": 0}
    found = [("C4", 82.55), ("WikiText-2", 39.0)]
    measured = [{**method, "text": text, "perplexity": each} for text, each in found]
    accuracy.write_text(json.dumps({"rows": measured}))
    monkeypatch.setattr(lanes, "_POWER", power)
    monkeypatch.setattr(lanes, "_ACCURACY", accuracy)
    names = ("select", "INT4 x INT4", "INT8 x INT8")
    head = "| head |\n| --- |\n"
    areas = "".join(f"| {name} | 1 | 2 | 8.0 | 3 |\n" for name in names)
    cycles = "".join(f"| {name} | 4 | 36 | 256 | 688 | 9.9 |\n" for name in names)
    page = tmp_path / "area.md"
    page.write_text(
        fill(
            marked("rivals", "rivals_cycles"),
            {"rivals": head + areas, "rivals_cycles": head + cycles},
        )
    )
    monkeypatch.setattr(lanes, "_PAGE", page)
    text = lanes.scheme_table()
    shown = [line.strip("|").split("|") for line in text.splitlines()[2:]]
    shown = [[cell.strip() for cell in row] for row in shown]
    numbers, none = ["4", "36", "256", "688"], "not measured"
    assert shown[0] == ["select", "8.0", none, none, none, *numbers, "`kllm-w4a4`", "82.550"]
    scheme = "`quarot-w4a4:rounding=gptq`"
    assert shown[1] == ["INT4 x INT4", "8.0", "4.000", "250", "1.500", *numbers, scheme, none]
    assert shown[2] == ["INT8 x INT8", "8.0", none, none, none, *numbers, "", none]
    monkeypatch.setattr(lanes, "_POWER", tmp_path / "missing.json")
    assert lanes.scheme_table().count(none) == 11


def test_schemes_of_lanes_are_methods():
    """The evaluation knows each of them."""
    known = configuration("kllm_pe_lane", "table1", [])
    assert known.product == "rounded"
    labels = [f"select, {each}" for each in lanes._FORMATS] + ["select, no integer mode"]
    for spelling in [*lanes._SCHEMES.values(), *map(lanes._own_scheme, labels)]:
        assert parse(spelling)
    assert lanes._own_scheme("select") == "kllm-w4a4"
    spelling = lanes._own_scheme("select, fixed16, antisymmetric")
    assert spelling == "kllm-plain-w4a4:antisymmetric=true,product=fixed16"


def test_build_report_prints_and_rewrites_with_its_option(tmp_path, monkeypatch, capsys):
    page = tmp_path / "build.md"
    page.write_text(marked("build_blocks"))
    monkeypatch.setattr(build_report, "PAGE", page)
    monkeypatch.setattr(build_report, "block_tables", lambda: {"build_blocks": "the table\n"})
    before = page.read_text()
    assert build_report.main(["blocks"]) == 0
    assert "the table" in capsys.readouterr().out
    assert page.read_text() == before
    assert build_report.main(["--page", "blocks"]) == 0
    assert "the table" in page.read_text()
    monkeypatch.setattr(build_report, "block_tables", None)
    with pytest.raises(SystemExit) as status:
        build_report.main(["blocks", "chip", "--page"])
    assert status.value.code == 2
    assert "the page has no section 'build_chip'" in capsys.readouterr().err


def test_mutate_refuses_a_page_without_a_place_first(tmp_path, monkeypatch, capsys):
    """Shown to fail: ValueError after hours."""
    monkeypatch.setattr(mutate, "PAGE", tmp_path / "mutation.md")
    monkeypatch.setattr(mutate, "examine", None)
    (tmp_path / "mutation.md").write_text(marked("mutation"))
    with pytest.raises(SystemExit) as status:
        mutate.main(["stream_skid", "--page"])
    assert status.value.code == 2
    assert "the page has no section 'survivors'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["x", "", "0", "9", "1.5", "9" * 5000])
def test_whole_numbers_have_a_range(text):
    with pytest.raises(Exception, match=re.escape(f"must be 1..8, not {text!r}")):
        whole(1, 8)(text)
    assert [whole(1, 8)("1"), whole(1, 8)("8"), whole()("99")] == [1, 8, 99]
