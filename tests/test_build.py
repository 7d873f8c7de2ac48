"""``python -m hdl.build``: files, summary, and one line for every mistake."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hdl.build import main
from hdl.registry import all_blocks


def test_writes_verilog_and_description(tmp_path, capsys):
    assert main(["index_reducer", "macs=4", "wide_slots=0", "-o", str(tmp_path)]) == 0
    verilog = (tmp_path / "index_reducer.v").read_text()
    description = json.loads((tmp_path / "index_reducer.json").read_text())
    assert "module index_reducer (" in verilog
    assert description["configuration"]["macs"] == 4
    ports = {port["name"]: port for port in description["ports"]}
    assert ports["clk"]["direction"] == ports["rst"]["direction"] == "input"
    assert ports["o__payload"] == {
        "name": "o__payload",
        "direction": "output",
        "width": 32,
        "role": "stream payload",
        "meaning": "the sum, rounded once to binary32",
        "type": "struct",
        "element_width": 32,
        "fields": [
            {
                "name": "y",
                "offset": 0,
                "width": 32,
                "meaning": "FP32 word",
                "type": "float",
                "format": "FP32",
                "element_width": 32,
            }
        ],
    }
    assert {"latency", "throughput", "versions", "modules"} <= set(description)
    out = capsys.readouterr().out
    assert "latency" in out
    assert "o__payload" in out


def test_named_configuration_and_nested_field(tmp_path):
    arguments = ["kllm_lane_array", "--config", "small", "lane.columns=2", "-o", str(tmp_path)]
    assert main(arguments) == 0
    description = json.loads((tmp_path / "kllm_lane_array.json").read_text())
    assert description["configuration"]["lane"]["columns"] == 2


def test_a_tree_in_a_path_with_a_space_and_a_home_that_cannot_be_written(tmp_path):
    """Yosys keeps its machine code under HOME. Failed before: a traceback, "Not a directory"."""
    root, tree = Path(__file__).parent.parent, tmp_path / "a tree"
    for room in ("golden", "hdl", "senbazuru"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / room, tree / room, ignore=ignored)
    # What Yosys has compiled is found: compiling it again takes half a minute.
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    usual = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    (temporary / f"senbazuru-cache-{os.getuid()}").symlink_to(usual)
    environment = {**os.environ, "HOME": "/dev/null/none", "TMPDIR": str(temporary)}
    environment.pop("XDG_CACHE_HOME", None)
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(
        [sys.executable, "-m", "hdl.build", "stream_register", "-o", "a folder"],
        cwd=tree, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "module stream_register (" in (tree / "a folder" / "stream_register.v").read_text()


def test_ports_are_printed_and_nothing_is_written(tmp_path, capsys):
    assert main(["stream_fork", "--ports", "outputs=2", "-o", str(tmp_path / "x")]) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert ["input", "33", "i__payload", "Words in."] in lines
    assert ["[31:0]", ".data", "bits", "that pass unchanged"] in lines
    assert ["output", "33", "o_1__payload", "Every word of i, once (fields: i__payload)"] in lines
    assert not (tmp_path / "x").exists()


def test_wrapped_ports_are_printed_and_nothing_is_written(tmp_path, capsys):
    """Failed before: the ports without the wrapper. They are those of the description."""
    arguments = ["stream_fork", "outputs=2", "--wrap", "axi"]
    assert main([*arguments, "--ports", "-o", str(tmp_path / "x")]) == 0
    assert not (tmp_path / "x").exists()
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    printed = [tuple(line[:3]) for line in lines if line[0] in ("input", "output")]
    assert main([*arguments, "-o", str(tmp_path)]) == 0
    ports = json.loads((tmp_path / "stream_fork.json").read_text())["ports"]
    assert printed == [(port["direction"], str(port["width"]), port["name"]) for port in ports]
    assert ["input", "32", "s_axis_i_tdata", "Words in."] in lines
    assert ["input", "1", "aresetn", "synchronous, active low"] in lines


def test_wrapped_fields_have_their_texts(capsys):
    assert main(["index_reducer", "--wrap", "axi", "--ports"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["[31:0]", ".y", "FP32 word"] in lines


def test_lists_every_block(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(all_blocks())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list", "nosuch"], "--list shows all blocks: it takes no name, not 'nosuch'"),
        (["index_reducer", "-o", ""], "argument -o: must name a folder, not ''"),
        ([], "a block's name is needed (python -m hdl.build --list shows all)"),
    ],
)
def test_no_argument_is_dropped(arguments, message, monkeypatch, tmp_path, capsys):
    """Shown to fail: ``--list nosuch`` listed all, and ``-o ""`` wrote into the working folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as status:
        main(arguments)
    assert status.value.code == 2
    assert capsys.readouterr().err.endswith(f": {message}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kllm_pe_lan"], "no block is called 'kllm_pe_lan'; nearest: kllm_pe_lane"),
        (["index_reducer", "macs=3"], "Config.macs must be a power of two in 1..256, not 3"),
        (["index_reducer", "mac=3"], "IndexReducerConfig has no field 'mac'"),
        (["index_reducer", "macs=8", "macs=16"], "IndexReducerConfig.macs is given twice"),
        (["index_reducer", "macs"], "'macs' must be field=value"),
        (["index_reducer", "--config", "big"], "index_reducer has no configuration 'big'"),
        (["kllm_lane_array", "lane.macs=5"], "KllmPeLaneConfig.macs must be a power of two"),
        (["index_reducer", "-o", "pyproject.toml/x"], "Not a directory"),
        (["stream_skid", "--prefix", "be", "--as", "gin"], "not 'begin', a keyword"),
        (["stream_skid", "--as", "i__valid"], "--as must not be 'i__valid', a port of stream_skid"),
        (["stream_skid", "--as", "x" * 201], "must have 1..200 letters, not 201"),
        (
            "million_attention cache.sequences=8 cache.layers=32 cache.head.heads=32".split(),
            "sequences * layers * heads windows must have at most 1048576 words",
        ),
        (["million_attention", "cache.pages=7"], "pages must be 8..1048576, not 7"),
    ],
)
def test_one_line_for_a_mistake(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("hdl.build: ")
    assert message in captured.err


def test_a_link_to_nowhere_is_refused_before_the_block_is_converted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hdl.build.deliver", None)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert main(["stream_skid", "-o", str(tmp_path / "link")]) == 2
    assert capsys.readouterr().err == f"hdl.build: [Errno 20] Not a directory: '{tmp_path}/link'\n"


def test_a_folder_in_the_place_of_a_file_changes_nothing(tmp_path, capsys):
    """Seen to fail: the description was removed before the folder was met."""
    assert main(["stream_skid", "-o", str(tmp_path)]) == 0
    (tmp_path / "stream_skid.vlt").unlink()
    (tmp_path / "stream_skid.vlt").mkdir()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    assert main(["stream_skid", "width=8", "-o", str(tmp_path)]) == 2
    assert str(tmp_path / "stream_skid.vlt") in capsys.readouterr().err
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
