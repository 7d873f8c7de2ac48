"""Files of ``hdl.build``: names, guards, prefixes, one circuit, and files that are whole.

Shown to fail, by what was planted:

- no guard: ``test_files_share_their_modules``;
- the text left out of the hash: ``test_a_change_of_text_changes_the_name``;
- a reset that does not override: ``test_the_circuit_is_that_of_yosys``;
- files written in place: ``test_a_write_that_fails``;
- no lock: ``test_two_processes``;
- no waivers: ``test_lint_is_silent``;
- a wrapper, and a header, that ask the block for the texts of its ports again:
  ``test_a_delivery_asks_a_block_once``.
"""

import collections
import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hdl.ports
from golden.config import ConfigError
from hdl.back import deliver
from hdl.back.deliver import check_folder, package, write
from hdl.back.emit import module_name
from hdl.back.render import render
from hdl.back.verilog import convert
from hdl.back.write import read
from hdl.build import main
from hdl.registry import find
from synth.modules import module_texts
from tb.together import PREFIX, smallest, verilator, yosys
from tests.same_logic import different

NAMES = ["stream_fifo", "axi_read_port", "memory_shared"]


@pytest.fixture(scope="module")
def designs():
    blocks = {name: find(name) for name in NAMES}
    return {name: convert(each.component(smallest(each)), name) for name, each in blocks.items()}


def test_the_circuit_is_that_of_yosys(designs):
    """Registers of processes, priorities, partial assignments, fields, memories."""
    old = {name: text for each in designs.values() for name, text in
           module_texts(each.verilog).items()}  # fmt: skip
    emitted = [module for each in designs.values() for module in each.modules]
    new = {
        module.name: "\n".join([*render(module, {}, {}), ""])
        for each in emitted
        for module in read(each.rtlil)
    }
    assert different(old, new) == {}
    broken = {name: text.replace(" & ", " | ", 1) for name, text in new.items()}
    changed = {name for name in new if broken[name] != new[name]}
    assert changed
    some = {name: old[name] for name in changed}
    assert different(some, {name: broken[name] for name in changed}, old).keys() == changed


def test_a_long_chain_and_a_large_look_up():
    """Shown to fail: with Python's own limit of nested calls."""
    number = 600
    cells = "".join(
        f"  wire width 1 ${n}\n  cell $or ${n + number}\n    parameter \\A_SIGNED 0\n"
        "    parameter \\B_SIGNED 0\n    parameter \\A_WIDTH 1\n    parameter \\B_WIDTH 1\n"
        f"    parameter \\Y_WIDTH 1\n    connect \\A \\a [{n - 1}]\n"
        f"    connect \\B {f'${n + 1}' if n + 1 < number else chr(92) + 'a'} [0]\n"
        f"    connect \\Y {f'${n}' if n > 1 else chr(92) + 'x'}\n  end\n"
        for n in range(1, number)
    )
    rows = "".join(
        f"      case 10'{n:010b}\n        assign \\y [0] \\a [{n}]\n" for n in range(number)
    )
    text = (
        "module \\deep\n  wire width 600 input 0 \\a\n  wire width 10 input 1 \\s\n"
        f"  wire width 1 output 2 \\x\n  wire width 1 output 3 \\y\n{cells}"
        f"  process $p\n    assign \\y [0] 1'0\n    switch \\s [9:0]\n{rows}    end\n  end\nend\n"
    )
    (module,) = read(text)
    made = "\n".join(render(module, {}, {}))
    assert made.count("==") == number
    assert made.count("|") == number - 1


def test_files_share_their_modules(designs, tmp_path):
    for design in designs.values():
        write([(tmp_path, package(design)), (tmp_path, package(design, PREFIX))])
    assert yosys(tmp_path) == ""
    file = tmp_path / "axi_read_port.v"
    copy = file.read_text().replace("module axi_read_port ", "module copy ")
    file.with_name("copy.v").write_text(copy)
    assert yosys(tmp_path) == ""
    file.with_name("copy.v").write_text(re.sub(r"^`.*\n", "", copy, flags=re.M))
    assert yosys(tmp_path) != ""


def test_equal_names_have_equal_text(designs):
    texts: dict[str, str] = {}
    for design in designs.values():
        for prefix in ("", "a_", "b_"):
            for name, text in package(design, prefix).modules.items():
                assert texts.setdefault(name, text) == text
    kept = [name for name in texts if name.startswith("memory")]
    assert kept
    block = find("stream_fifo")
    other = package(convert(block.component(block.config), "axi_read_port"))
    assert other.name == "axi_read_port"  # as TOP


def test_a_change_of_text_changes_the_name(designs, monkeypatch):
    """Two versions of the generators share no module but what is equal."""
    before = package(designs["axi_read_port"])
    monkeypatch.setattr(deliver, "_summary", lambda block: "Another summary.")
    after = package(designs["axi_read_port"])
    assert len(before.modules) > 1
    assert set(before.modules) & set(after.modules) == {"axi_read_port"}


def test_a_memory_keeps_its_name(designs):
    """A vendor's SRAM replaces it by name."""
    for module in designs["memory_shared"].modules[:-1]:
        if getattr(type(module.block), "is_memory_macro", False):
            assert module.name == module_name(module.block)
            assert module.name in package(designs["memory_shared"]).modules


def test_the_text_is_for_a_reader(designs):
    for design in designs.values():
        verilog = package(design).verilog
        assert "\\" not in verilog
        assert "initial" not in re.findall(r"^\s*(\w+)", verilog, re.M)
        assert not re.search(r"^\s*reg .* = ", verilog, re.M)
        assert "always @*" not in verilog
        header = verilog[: verilog.index("\n\nmodule")]
        for field in find(design.name).config.describe():
            assert field in header
        assert "Senbazuru" in header


@pytest.mark.parametrize("name", ["axi_read_port", "kllm_scaler"])
def test_a_delivery_asks_a_block_once(name, monkeypatch):
    """Text, shape and kind of each port, for header, description, wrapper and names together."""
    asked: collections.Counter = collections.Counter()
    steps = hdl.ports._steps
    monkeypatch.setattr(
        hdl.ports, "_steps", lambda block, path: asked.update([path]) or steps(block, path)
    )
    each = find(name)
    deliver.deliver(each.component(smallest(each)), name, wrap="axi")
    assert asked
    assert set(asked.values()) == {3}


def test_lint_is_silent(designs, tmp_path):
    made = [package(designs["axi_read_port"]), package(designs["axi_read_port"], PREFIX)]
    write((tmp_path, each) for each in made)
    assert verilator(tmp_path, [each.stem for each in made]) == ""
    for each in made:
        assert each.waived["DECLFILENAME"] == 1
        (tmp_path / f"{each.stem}.vlt").write_text("`verilator_config\n")
    found = verilator(tmp_path, [each.stem for each in made])
    assert set(re.findall(r"%Warning-(\w+)", found)) <= made[0].waived.keys()
    assert "UNUSEDSIGNAL" in found


# -- the command ----------------------------------------------------------------------------------
def test_several_blocks_in_one_call(tmp_path, capsys):
    assert main(["stream_fifo", "stream_register", "-o", str(tmp_path)]) == 0
    assert {file.name for file in tmp_path.iterdir()} == {
        f"{name}.{kind}" for name in ("stream_fifo", "stream_register")
        for kind in ("v", "vlt", "json")
    }  # fmt: skip
    assert "waivers" in capsys.readouterr().out


def test_top_and_prefix(tmp_path):
    arguments = ["stream_fifo", "depth=4", "--as", "little", "--prefix", "my_", "--wrap", "axi"]
    assert main([*arguments, "-o", str(tmp_path)]) == 0
    verilog = (tmp_path / "my_little.v").read_text()
    names = re.findall(r"^module (\w+)", verilog, re.M)
    assert names[:2] == ["my_little_axi", "my_little"]
    assert all(name.startswith("my_") for name in names)
    description = json.loads((tmp_path / "my_little.json").read_text())
    assert description["name"] == "my_little_axi"
    assert set(description["modules"]) == set(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stream_fifo", "--prefix", "3x"], "--prefix must be a letter or _, then"),
        (["stream_fifo", "--prefix", "wire"], "not 'wire', a keyword"),
        (["stream_fifo", "--as", "a-b"], "--as must be a letter or _, then letters"),
        (["stream_fifo", "--as", ""], "--as must be a letter or _, then letters"),
        (["stream_fifo", "--as", "logic"], "not 'logic', a keyword of Verilog or SystemVerilog"),
        (["stream_fifo", "stream_fifo"], "stream_fifo is named 2 times"),
        (["stream_fifo", "stream_skid", "depth=4"], "depth=4 is for one block"),
        (["stream_fifo", "stream_skid", "--as", "x"], "--as is for one block"),
        (["stream_fifo", "stream_skid", "--config", "x"], "--config is for one block"),
        (["stream_fifo", "nosuch"], "no block is called 'nosuch'"),
    ],
)
def test_one_line_for_a_mistake(arguments, message, capsys, tmp_path):
    assert main([*arguments, "-o", str(tmp_path / "x")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "x").exists()


def test_a_name_inside_is_refused_for_the_top(designs):
    inner = next(name for name in package(designs["axi_read_port"]).modules if "fifo" in name)
    block = find("axi_read_port")
    design = convert(block.component(smallest(block)), inner)
    with pytest.raises(ConfigError, match="a module inside is called"):
        package(design)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["stream_register", "-o", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Permission denied" in error
    assert not list(tmp_path.iterdir())
    with pytest.raises(NotADirectoryError):
        check_folder(Path(__file__) / "x")


# -- files that are whole -------------------------------------------------------------------------
def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_write_that_fails(designs, tmp_path, monkeypatch, error, after):
    """The files of the run before stay, and no part is left."""
    write([(tmp_path, package(designs["stream_fifo"]))])
    before = contents(tmp_path)
    real, calls = Path.write_text, []

    def failing(path, text, *rest, **named):
        calls.append(path)
        if len(calls) > after:
            real(path, text[: len(text) // 2])
            raise error
        return real(path, text, *rest, **named)

    changed = package(designs["axi_read_port"])
    monkeypatch.setattr(Path, "write_text", failing)
    with pytest.raises(type(error)):
        write([(tmp_path, package(designs["stream_fifo"], "")), (tmp_path, changed)])
    assert contents(tmp_path) == before


def test_an_end_between_the_renames_leaves_no_description(designs, tmp_path, monkeypatch):
    """Killed there, a run leaves Verilog without a description, never with another's."""
    write([(tmp_path, package(designs["stream_fifo"]))])

    def killed(path, target):
        raise OSError("killed")

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(OSError, match="killed"):
        write([(tmp_path, package(designs["stream_fifo"]))])
    assert {file.name for file in tmp_path.iterdir()} == {"stream_fifo.v", "stream_fifo.vlt"}


_WRITER = """
import json, sys, time
from pathlib import Path
from hdl.back.deliver import Delivery, _locked, write
who, folder = sys.argv[1], Path(sys.argv[2])
made = Delivery("top", "top", f"// {who}\\n", {"who": who}, f"// {who}\\n", {}, {}, {}, {}, {})
replace = Path.replace
def slowly(path, target):
    replace(path, target)
    time.sleep(0.002)
Path.replace = slowly
for _ in range(60):
    write([(folder, made)])
    with _locked(folder):
        found = json.loads((folder / "top.json").read_text())["who"]
        for kind in ("v", "vlt"):
            assert (folder / f"top.{kind}").read_text() == f"// {found}\\n"
"""


def test_two_processes(tmp_path):
    """Whoever holds the folder sees the files of one run."""
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, who, str(tmp_path)], cwd=Path.cwd())
        for who in ("first", "second")
    ]
    for writer in writers:
        assert writer.wait(60) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"top.v", "top.vlt", "top.json"}


def test_a_writer_says_that_it_waits(designs, tmp_path, capsys):
    """Shown to fail: no word while another run has the folder."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    waits = threading.Thread(target=write, args=([(tmp_path, package(designs["stream_fifo"]))],))
    waits.start()
    waits.join(2)
    assert waits.is_alive()
    assert not list(tmp_path.iterdir())
    os.close(handle)
    waits.join(60)
    assert (tmp_path / "stream_fifo.v").exists()
    assert f"another run writes into {tmp_path}: this one waits" in capsys.readouterr().err
