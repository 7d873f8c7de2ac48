"""Two blocks of each room in one folder, with and without a prefix, compile together and lint.

All blocks: ``python -m tb.together``. Shown to fail: without guards Yosys and Verilator find two
definitions; without ``hdl.back.waivers.wrapper_waivers`` the wrapped block has findings.
"""

import re
from pathlib import Path

import pytest

from hdl.back.deliver import deliver, write
from hdl.build import main
from hdl.registry import find, rooms
from tb import together
from tb.together import PREFIX, SMALL, emit_all, icarus, smallest, verilator, yosys

ROOT = Path(__file__).resolve().parent.parent


def chosen() -> list[str]:
    """The first and the last block of each room, none of them a whole chip."""
    names = []
    for room in rooms().values():
        chip = room.chip[0] if room.chip else ""
        own = [name for name in sorted(room.blocks) if name != chip]
        names += [own[0], own[-1]]
    return list(dict.fromkeys(names))


@pytest.mark.telling
def test_blocks_of_every_room(tmp_path):
    made = [each for pair in emit_all(chosen(), tmp_path) for each in pair]
    assert yosys(tmp_path) == ""
    assert verilator(tmp_path, [each.stem for each in made]) == ""
    assert not icarus(tmp_path)
    assert len({name for each in made for name in each.modules}) < sum(
        len(each.modules) for each in made
    )


def test_two_configurations_of_each_block(tmp_path):
    """The default and the smallest of a block share modules of equal text only.

    Shown to fail: the same top for both.
    """
    names = ["stream_fifo", "kllm_select_column", "fp16_fma"]
    made = [each for some in emit_all(names, tmp_path, defaults=True) for each in some]
    assert sorted(each.name for each in made) == sorted(
        prefix + name for name in names for prefix in ("", SMALL, PREFIX + SMALL)
    )
    assert yosys(tmp_path) == ""
    assert verilator(tmp_path, [each.stem for each in made]) == ""


@pytest.mark.parametrize("name", ["kllm_scaler", "axi_write_port", "fp16_add"])
def test_wrapped_blocks(name, tmp_path):
    block = find(name)
    made = deliver(block.component(smallest(block)), name, wrap="axi")
    write([(tmp_path, made)])
    assert verilator(tmp_path, [made.stem]) == ""
    assert yosys(tmp_path) == ""


def test_the_chip_of_the_readme(tmp_path):
    """Every command that README.md shows for a chip, one after the other, into one folder."""
    lines = re.findall(
        r"^\.venv/bin/python -m hdl\.build (.*)$", (ROOT / "README.md").read_text(), re.M
    )
    assert len(lines) == 3
    for line in lines:
        assert main([str(tmp_path) if word == "build/chip" else word for word in line.split()]) == 0
    stems = sorted(file.stem for file in tmp_path.glob("*.v"))
    assert stems == ["deep", "oaken_kv_engine", "oaken_quant_engine", "shallow"]
    assert yosys(tmp_path) == ""
    assert verilator(tmp_path, stems) == ""


def test_a_folder_of_other_files_is_refused(tmp_path, capsys):
    """Shown to fail: ``-o .`` removed the tree."""
    (tmp_path / "old.v").write_text("")
    (tmp_path / "thesis.tex").write_text("")
    assert together.main(["stream_register", "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"tb.together: {tmp_path}/thesis.tex is no file of this command: choose another folder\n"
    )
    assert len(list(tmp_path.iterdir())) == 2
