"""Routed netlists at the pins of a board, with golden words.

Shown to fail:

- operands that are there only while a byte comes;
- a write address of distributed RAM in the order of its number;
- a LUT bit that is turned round.
"""

import json

import pytest

from hdl.back.verilog import convert
from hdl.kit.kits import vectors
from hdl.registry import configuration_of, find
from synth.fpga.board import place
from tb.board.check import checked
from tb.board.play import Played, check_playable

CASES = {
    "carry and multiplier": ("fp16_fma", ("--config=pipelined",)),
    "block RAM": ("stream_fifo", ("--config=ram",)),
    "distributed RAM": ("million_score_engine", ("--config=small",)),
}


def made(case, folder):
    name, arguments = CASES[case]
    config = configuration_of(name, arguments)
    design = convert(find(name).component(config), name)
    return design, place(design, folder), vectors(name, config)


@pytest.mark.telling("carry and multiplier", "block RAM")
@pytest.mark.parametrize("case", CASES)
def test_routed_netlist_is_golden(case, tmp_path):
    design, placed, words = made(case, tmp_path)
    cells = json.loads((tmp_path / "routed.json").read_text())["modules"]["top"]["cells"]
    types = {each["type"] for each in cells.values()}
    wanted = {"carry and multiplier": "MULT18X18D", "block RAM": "DP16KD"}
    assert wanted.get(case, "TRELLIS_RAMW") in types
    assert (tmp_path / "top.bit").stat().st_size > 10_000
    played, cycles, _ = checked(design, placed, words, None)
    assert not played.differ, played.first
    expected = [len(each.words[name]) for each in words.episodes for name in each.words]
    assert played.sent + played.compared == sum(expected)
    assert cycles > 250 * sum(expected)  # a byte takes 250 cycles
    if case == "carry and multiplier":
        # Some bits of a LUT are of inputs that these words do not have.
        assert any(checked(design, placed, words, turned)[0].differ for turned in range(5))


def test_played_notes_what_differs():
    played = Played()
    played.note("a", 5, 7, 0b101)
    played.note("b", 5, 4)
    played.note("c", None, 4)
    assert (played.compared, played.differ, played.first) == (3, 2, "b: got 0x5, golden 0x4")


@pytest.mark.parametrize(
    ("name", "text"),
    [("oaken_kv_engine", "a board has no memory for axi"), ("nothing", "has no words for it")],
)
def test_blocks_without_a_memory_alone(name, text):
    words = None
    if name != "nothing":
        words = vectors(name, configuration_of(name, ("--config=small",)))
    with pytest.raises(ValueError, match=text):
        check_playable({"name": name}, words)
