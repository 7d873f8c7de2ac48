"""``tests.same_netlist``: a renamed or reordered copy is the same circuit, one other gate is not.

Planted in the tool: with the parameters left out of a cell's colour ``[edge]`` passes for the same
circuit. With the input bits left out ``[arms]`` and ``[constant]`` do.
"""

import random
import re
import shutil
from pathlib import Path

import pytest

from hdl.back.verilog import convert
from hdl.registry import find
from tests.same_netlist import _KEYWORDS, _TOKEN, _renamed_top, compare_designs, main

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def verilog():
    block = find("index_reducer")
    return _renamed_top(
        convert(block.component(block.configs["small"]), "index_reducer").verilog, "index_reducer"
    )


def scrambled(verilog: str) -> str:
    """Another name for every signal, instance and inner module, and assignments in any order."""
    chosen = random.Random(1)
    ports = set(re.findall(r"^  (?:input|output) (?:\[\d+:0\] )?(\S+?) ?;$", verilog, re.M))
    names: dict[str, str] = {}

    def renamed(match) -> str:
        word = match[0]
        plain = word.lstrip("\\")
        if match.lastgroup != "name" or word in _KEYWORDS or plain in {*ports, "compared_top"}:
            return word
        return names.setdefault(plain, f"s{chosen.getrandbits(40):x}_{len(names)}")

    modules = []
    for module in re.split(r"(?<=endmodule\n)", verilog):
        lines = module.splitlines(keepends=True)
        places = [n for n, line in enumerate(lines) if re.match(r"  assign .*;\n", line)]
        moved = [lines[n] for n in places]
        chosen.shuffle(moved)
        for n, line in zip(places, moved, strict=True):
            lines[n] = line
        modules.append("".join(lines))
    return "".join(renamed(match) for match in _TOKEN.finditer("".join(modules)))


def test_same_text(verilog):
    assert compare_designs(verilog, verilog).how == "text"
    inner = re.search(r"^module (fixed_to_float_\w+)", verilog, re.M)[1]
    assert compare_designs(verilog, verilog.replace(inner, "other")).how == "text"


@pytest.mark.parametrize("flatten", [False, True])
def test_scrambled_copy_is_the_same(verilog, flatten):
    copy = scrambled(verilog)
    assert copy != verilog
    assert compare_designs(verilog, copy, flatten=flatten).how == "netlist"


@pytest.mark.parametrize(
    ("pattern", "replacement", "place"),
    [
        (r" & ", " | ", 0),  # a gate
        (r" & ", " | ", -1),
        (r"(?<= \? )(\S+)( +): (\S+)( *);", r"\3\2: \1\4;", 3),  # arms of a multiplexer
        (r"5'h00", "5'h01", 0),  # a constant
        (r"posedge clk", "negedge clk", -1),
        (r"(?<=\.i__payload\()(.*?)(?=\),)", r"~(\1)", 0),  # the connection of an inner module
    ],
    ids=["gate", "last_gate", "arms", "constant", "edge", "connection"],
)
def test_one_change_is_found(verilog, pattern, replacement, place):
    match = list(re.finditer(pattern, verilog))[place]
    planted = verilog[: match.start()] + match.expand(replacement) + verilog[match.end() :]
    assert planted != verilog
    for copy in (planted, scrambled(planted)):
        result = compare_designs(verilog, copy)
        assert result.how == ""
        assert len(result.differ) == 1


def test_renamed_port_of_the_top_is_found(verilog):
    head, name, top = verilog.rpartition("module compared_top(")
    other = re.sub(r"(?<![.\\])\bo__valid\b", "out_valid", top)
    assert other != top
    assert compare_designs(verilog, head + name + other).how == ""


@pytest.fixture
def tree(tmp_path):
    for package in ("golden", "hdl", "senbazuru"):
        shutil.copytree(ROOT / package, tmp_path / package,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    return tmp_path


def test_command(tree, capsys, monkeypatch):
    monkeypatch.setattr("tests.same_netlist.CACHE", tree / "cache")
    assert main([str(ROOT), str(tree), "stream_skid"]) == 0
    source = tree / "hdl" / "stream" / "skid.py"
    text = re.sub(r"\bskid_valid\b", "filled", source.read_text())
    source.write_text(text.replace('"stream_skid"', '"stream_pair"'))
    assert main([str(ROOT), str(tree), "stream_skid"]) == 1
    renamed = ["--renamed", "stream_skid=stream_pair"]
    assert main([str(ROOT), str(tree), "stream_skid", *renamed]) == 0
    text = source.read_text()
    assert "~" in text
    source.write_text(text.replace("~", "", 1))
    capsys.readouterr()
    assert main([str(ROOT), str(tree), "stream_skid", *renamed]) == 1
    assert "stream_skid -> stream_pair@default: DIFFERENT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(ROOT), "missing"], "missing is no source tree: it has no hdl/registry.py"),
        ([str(ROOT), str(ROOT), "stream_skip"], "no block is called 'stream_skip' in either tree"),
        ([str(ROOT), str(ROOT), "--renamed", "a"], "--renamed must be OLD=NEW, not 'a'"),
    ],
)
def test_one_line_for_a_mistake(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"tests.same_netlist: {message}\n"
