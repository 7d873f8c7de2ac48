"""synth.tables.vqllm: where two areas cross, and the look-ups of a matrix beat by beat.

Shown to fail: a line through the other ends; beats across rows; codes beyond a row that count.
"""

import collections

import pytest

from golden.sram import ram
from golden.vqllm.access import reordered
from hdl.block import Block
from synth.area import AreaReport, MacroArea, ModuleArea, load_libraries
from synth.tables.look_ups import look_beats, tiers
from synth.tables.vqllm import Areas, crossing, exchange_tables
from tests.vqllm.matrices import SHAPES, matrix_of

STEPS = (1, 3, 7, 15)
LIBRARY = load_libraries().library
MACRO = MacroArea("bank", "Memory1R1W", 64, 32, 2)


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ((9, 9, 9, 9), "below 1"),
        ((19, 29, 39, 49), "above 15"),
        ((12, 21, 29, 30), "5.0"),
        ((12, 19, 25, 30), "2.3"),
        ((10, 19, 25, 30), "1.0"),
        ((12, 22, 32, 36), "9.7"),
    ],
)
def test_crossing(second, text):
    assert crossing(STEPS, (10, 20, 30, 40), second) == text


def report(flip_flops: int, inverters: int, macros=()) -> AreaReport:
    kinds = {LIBRARY.flip_flop.name: flip_flops, "inverter": inverters}
    inverter = next(name for name in LIBRARY.cells if "inv" in name)
    kinds[inverter] = kinds.pop("inverter")
    um2 = sum(LIBRARY.cells[name].area * count for name, count in kinds.items())
    module = ModuleArea("top", 1, flip_flops + inverters, flip_flops, um2)
    return AreaReport(
        "top", {}, "", LIBRARY.nand2.area, LIBRARY.flip_flop.area, "", False, (module,), macros,
        kinds, 0.0,
    )  # fmt: skip


def test_areas():
    found = Areas.of(report(4, 0, (MACRO,)), LIBRARY)
    assert found.logic == pytest.approx(4 * 2.65)
    assert found.gates == pytest.approx(0, abs=1e-9)
    assert found.bits == 2 * 64 * 32
    assert found.whole["CACTI"] == pytest.approx(found.logic + 2 * ram("1r1w", 64, 32).um2)
    assert found.whole["middle"] == pytest.approx(found.logic + 4.14 * found.bits, rel=1e-2)
    more = Areas.of(report(4, 10), LIBRARY)
    assert more.gates == pytest.approx(more.logic - found.logic)


def test_exchange_tables():
    """Each row has the blocks of its own shape; the buffer alone has SRAM."""
    asked: list[tuple[str, Block]] = []

    def map_block(block: Block, name: str) -> AreaReport:
        block._MustUse__silence = True
        asked.append((name, block))
        macros = (MACRO,) if name == "vq_buffer" else ()
        return report(10 * block.config.shape.pieces, 7, macros)

    made = exchange_tables(map_block, LIBRARY)
    rows = [line.strip("| ").split(" | ") for line in made["vq_exchange"].splitlines()[2:]]
    assert [row[:2] for row in rows[:4]] == [
        ["2 to 1", "1"], ["4 to 1", "3"], ["8 to 1", "7"], ["16 to 1", "15"],
    ]  # fmt: skip
    assert [row[5] for row in rows[:4]] == ["20", "40", "80", "160"]
    assert {row[8] for row in rows} == {"4,096"}
    assert len(made["vq_crossing"].splitlines()) == 2 + 6
    counts = collections.Counter(name for name, _ in asked)
    assert set(counts.values()) == {len(rows)}
    for name, block in asked:
        assert getattr(block.config, "in_place", False) == (name == "vq_in_place")
        assert getattr(block.config, "variable", False) == (name == "vq_variable")


@pytest.mark.parametrize("name", ["two stages", "ragged tiles"])
def test_tiers(name):
    """Against loops over rows, beats and banks."""
    matrix, lookups, banks, registers = reordered(matrix_of(name)), 4, 4, 3
    stages, shape = SHAPES[name].vq.stages, SHAPES[name]
    beats = cycles = hot = 0
    for tile in shape.tiles:
        for row in matrix.codes[tile.rows, tile.vectors].flatten(1).tolist():
            for first in range(0, len(row), lookups):
                reads = collections.Counter()
                for lane, code in enumerate(row[first : first + lookups]):
                    hot += code < registers
                    if code >= registers:
                        reads[(code + lane % stages) % banks] += 1
                beats += 1
                cycles += max(1, *reads.values()) if reads else 1
    found = tiers(matrix, lookups, registers, banks)
    assert (found.beats, found.cycles, found.conflicts) == (beats, cycles, cycles - beats)
    assert found.share == pytest.approx(hot / matrix.codes.numel())
    assert sum(int(looks.use.sum()) for looks in look_beats(matrix, lookups)) == (
        matrix.codes.numel()
    )
