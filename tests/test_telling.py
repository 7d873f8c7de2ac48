"""Tests of what make test leaves out: marks, faults in sources, and the rooms that are due.

Shown to fail:

- ``_is_told`` that is always true;
- a planter that counts and never builds in;
- ``reach`` without the testbenches that run in the simulator;
- ``left[turn::4]``.
"""

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import conftest
from tb import due
from tb.faults import source, telling

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """\
class ThingConfig:
    def __post_init__(self):
        assert self.width + 1 < 3

class Thing:
    def __init__(self, config):
        self.n = config.n + 1

    def elaborate(self, platform):
        count = Signal(range(self.n))
        m.d.comb += self.o.eq(Mux(a & ~b, x[0], y))
        with m.If(count == 3):
            m.d.sync += count.eq(count + 1)
"""


def test_faults_have_their_places():
    """One for each place in the hardware, none in a configuration or a constructor."""
    assert source.sites(SOURCE) == [
        (10, "half the range"), (11, "dropped"), (11, "exchanged"), (11, "BitAnd"),
        (11, "not inverted"), (11, "one more"), (12, "Eq"), (12, "one more"), (13, "dropped"),
        (13, "Add"), (13, "one more"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (0, "count = Signal(range(max(self.n // 2, 1)))"),
        (1, "pass"),
        (2, "m.d.comb += self.o.eq(Mux(a & ~b, y, x[0]))"),
        (3, "m.d.comb += self.o.eq(Mux(a | ~b, x[0], y))"),
        (4, "m.d.comb += self.o.eq(Mux(a & b, x[0], y))"),
        (5, "m.d.comb += self.o.eq(Mux(a & ~b, x[1], y))"),
        (6, "with m.If(count != 3):"),
        (7, "with m.If(count == 4):"),
        (9, "m.d.sync += count.eq(count - 1)"),
        (10, "m.d.sync += count.eq(count + 2)"),
    ],
)
def test_a_fault_changes_one_line(number, line):
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    faulty = ast.unparse(source.planted(SOURCE, number)).splitlines()
    changed = [new for old, new in zip(plain, faulty, strict=True) if old != new]
    assert [each.strip() for each in changed] == [line]


def _run(fault: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tb.faults.source",
         "-p", "no:cacheprovider", "tb/stream/test_skid.py"],
        cwd=ROOT, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", source.VARIABLE: fault},
    ).returncode  # fmt: skip


def test_a_bench_meets_the_fault(tmp_path):
    """A fault makes the bench of the skid buffer fail; without one it passes."""
    text = (ROOT / "hdl/stream/skid.py").read_text()
    kinds = [kind for _, kind in source.sites(text)]
    assert _run(f"hdl/stream/skid.py:{len(kinds)}") == 0  # no such fault
    assert _run(f"hdl/stream/skid.py:{kinds.index('dropped')}") == 1


def _item(function: str, case: str, *named: str) -> SimpleNamespace:
    mark = SimpleNamespace(args=named) if named else None
    return SimpleNamespace(
        nodeid=f"{function}[{case}]", callspec=SimpleNamespace(id=case),
        get_closest_marker=lambda _: mark,
    )  # fmt: skip


def test_a_mark_names_the_cases_that_run():
    assert conftest._is_told(_item("f", "a"))
    assert conftest._is_told(_item("f", "a", "a", "c"))
    assert conftest._is_told(_item("f", "a-seed12", "a", "c"))
    assert not conftest._is_told(_item("f", "b", "a", "c"))


def test_a_mark_of_no_case_leaves_out_the_function():
    mark = SimpleNamespace(args=())
    item = SimpleNamespace(nodeid="f", get_closest_marker=lambda _: mark)
    conftest._check_telling([item])
    assert not conftest._is_told(item)


def test_a_mark_names_no_other_case():
    conftest._check_telling([_item("f", "a", "a", "c"), _item("f", "c", "a", "c")])
    with pytest.raises(pytest.UsageError, match=r"f: telling must name its cases, not \['c'\]"):
        conftest._check_telling([_item("f", "a", "a", "c"), _item("f", "b", "a", "c")])


def test_the_sources_of_a_bench_are_of_no_other():
    """A part with a bench of its own is not among those of the block that has it inside."""
    found = {path.name for path in telling.sources_of("tb/paging/test_mmu.py")}
    assert "mmu.py" in found
    assert "mmu_reader.py" in found
    assert "page_table.py" not in found
    with pytest.raises(telling.ConfigError, match="is not the bench of a registered block"):
        telling.sources_of("tb/stream/test_planted.py")


def test_faults_are_the_same_for_the_same_seed():
    file = "tb/stream/test_fork.py"
    first, again, other = (telling.faults_of(file, 4, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 4
    assert len(set(telling.faults_of(file, 1000, 1))) < 1000


@pytest.mark.parametrize(
    ("change", "reached", "not_reached"),
    [
        ("hdl/oaken/quant_engine.py", {"tb/oaken"}, {"tb/kllm", "tb/million"}),
        ("golden/paging/config.py", {"tb/paging", "tb/oaken"}, {"tb/qet"}),
        ("tb/kllm/tb_pe_lane.py", {"tb/kllm"}, {"tb/oaken"}),  # the simulator imports it
        ("docs/oaken.md", set(), {"tb/kllm", "tb/oaken"}),
    ],
)
def test_a_change_reaches_the_rooms_that_import_it(change, reached, not_reached):
    benches = ["tb/kllm/test_pe_lane.py", "tb/oaken/test_kv_engine.py", "tb/paging/test_mmu.py",
               "tb/million/test_window.py", "tb/qet/test_swap.py"]  # fmt: skip
    assert (ROOT / change).exists()
    found = due.due([change], "00000000", benches)
    by_change = {room for room, why in found.items() if "reaches" in why}
    assert reached <= by_change
    assert not not_reached & by_change


def test_a_bench_directly_in_tb_is_no_room():
    """``make test-all ROOMS=tb`` would run all rooms. Shown to fail: the parent of each bench."""
    benches = ["tb/test_registered.py", "tb/qet/test_swap.py", "senbazuru/talk/test_talk.py"]
    found = set(due.due(None, "00000000", benches))
    assert found == {"tb/test_registered.py", "tb/qet", "senbazuru/talk", due.FORMAL}
    assert set(benches) <= set(telling.marked())


def test_every_room_has_its_turn():
    """Three in a row reach all rooms, each once; a change that is unknown or of all reaches all."""
    benches = ["tb/axi/test_read_port.py", "tb/index/test_table.py", "tb/kllm/test_pe_lane.py",
               "tb/paging/test_mmu.py", "tb/qet/test_swap.py"]  # fmt: skip
    rooms = {*(str(Path(bench).parent) for bench in benches), due.FORMAL}
    turns = [list(due.due([], f"0000000{n}", benches)) for n in range(3)]
    assert sorted(room for turn in turns for room in turn) == sorted(rooms)
    for unknown in (None, ["conftest.py"]):
        assert set(due.due(unknown, "00000000", benches)) == rooms


def test_without_git_it_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(due, "ROOT", tmp_path)
    assert due.main([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tb.due: git gives no changes: ")
    assert error.count("\n") == 1
