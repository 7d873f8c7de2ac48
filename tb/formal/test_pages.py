"""Cheap cases of the page table's proof, and that its properties can fail.

``python -m tb.formal PageTable --long`` runs all cases and the covers.
"""

import dataclasses

import pytest
from amaranth.hdl import Fragment

from tb.formal import __main__ as command
from tb.formal import prove
from tb.formal.aiger import Aiger
from tb.formal.pages import DEFECTS, LONG, MOST, PROOFS
from tb.formal.prove import Result, check, decide

QUICK = ("reset", "WRITE_TABLES")


def named(name):
    (proof,) = (proof for proof in (*PROOFS, *DEFECTS) if proof.name == name)
    return proof


@pytest.mark.telling
def test_quick_cases():
    """The two fastest of the cases that ``python -m tb.formal PageTable-most`` runs."""
    most = named("PageTable-most")
    assert set(QUICK) < set(most.only)
    result = check(dataclasses.replace(most, name="PageTable-quick", only=QUICK))
    assert result.status == "PASS", result.detail


def test_planted_defect_is_found():
    """An abort that forgets a page. ``python -m tb.formal PageTable`` plants the other defects."""
    result = check(named("defect-pages-abort"))
    assert result.status == "FAIL"
    assert "was asserted" in result.detail


def test_aiger_input_becomes_constant():
    # o = i0 & i1, a latch that takes o, an output of the latch's inverse.
    text = b"aig 4 2 1 2 1\n8\n8\n7\n" + bytes([8 - 4, 4 - 2])
    assert Aiger(text).substitute({}) == text
    # i0 = 1, and i1 = 0 with i0 left as it is.
    assert Aiger(text).substitute({0: 1}) == text[:-2] + bytes([8 - 4, 4 - 1])
    assert Aiger(text).substitute({1: 0}) == text[:-2] + bytes([8 - 2, 2 - 0])


@pytest.mark.parametrize("constraints", [0, 1])
def test_a_graph_without_its_assumptions_is_an_error(constraints, monkeypatch, tmp_path):
    """One input, a bad state that is 0, and that input as a constraint or none at all.

    The guard once searched ABC's log for a word that ABC's warning of no constraints holds too.
    """
    graph = b"aig 1 1 0 0 0 1 %d 0 0\n0\n" % constraints + b"2\n" * constraints
    (tmp_path / "spec.aig").write_bytes(graph)
    (tmp_path / "spec.aim").write_text("input 0 0 x\n")
    monkeypatch.setattr(prove, "run_yosys", lambda *_, **__: None)
    status, detail = prove._cases(tmp_path, {"x": {}}, {}, 2)
    assert status == ("PASS" if constraints else "ERROR"), detail
    assert detail == ("" if constraints else "no constraints in spec.aig: the assumptions are lost")


# Outputs of a graph with inputs i0 and i1: 0, 1 and i0 & i1 as literals.
ZERO, ONE, AND = 0, 1, 6


@pytest.mark.parametrize(
    ("outputs", "verdict"),
    [((ZERO,), "PASS"), ((ZERO, AND), "FAIL"), ((ZERO, ONE), "FAIL"), ((), "ERROR")],
)
def test_verdict_is_that_of_every_output(tmp_path, outputs, verdict):
    """ABC's counts leave out an output that is always 1; the verdict once came from the counts."""
    rows = b"".join(b"%d\n" % output for output in outputs)
    graph = b"aig 3 2 0 %d 1\n" % len(outputs) + rows + bytes([6 - 4, 4 - 2])
    (tmp_path / "graph.aig").write_bytes(graph)
    assert decide(tmp_path, "graph") == verdict


def test_what_is_left_is_split(monkeypatch, tmp_path):
    """No solver: constants alone decide i0 & i1, and (i0 & i1) & (!i0 & i1)."""
    monkeypatch.setattr(prove, "_CONFLICTS", ())
    (tmp_path / "one.aig").write_bytes(b"aig 3 2 0 1 1\n6\n" + bytes([2, 2]))
    (tmp_path / "never.aig").write_bytes(b"aig 5 2 0 1 3\n10\n" + bytes([2, 2, 4, 1, 2, 2]))
    assert decide(tmp_path, "one") == "UNKNOWN"
    assert decide(tmp_path, "one", splits={"one": [0]}) == "UNKNOWN"
    assert decide(tmp_path, "one", splits={"one": [0], "one.1": [1]}) == "FAIL"
    assert decide(tmp_path, "one", splits={"one": [1, 0]}) == "FAIL"
    assert decide(tmp_path, "never") == "UNKNOWN"
    assert decide(tmp_path, "never", splits={"never": [0]}) == "PASS"
    assert (tmp_path / "never.1.left.aig").exists()


def test_every_case_is_run_or_named_as_left_out(monkeypatch, capsys):
    """``make formal`` once ran 2 of the 16 cases and did not name the others."""
    spec = named("PageTable-most").spec()
    spec.invariants = True
    Fragment.get(spec, "formal")
    assert sorted(MOST + LONG) == sorted(spec.cases)
    assert {name.partition(".")[0] for name in spec.splits} <= set(spec.cases)
    sound = {True: "FAIL", False: "PASS"}
    monkeypatch.setattr(
        command, "check", lambda proof: Result(proof, sound[bool(proof.defect)], "PASS", "", 0.0)
    )
    assert command.main(["PageTable"]) == 0
    said = capsys.readouterr().out
    assert "PageTable-most" in said
    assert f"not run without --long: PageTable-long ({', '.join(LONG)})" in said
    assert command.main(["PageTable", "--long"]) == 0
    assert "not run" not in capsys.readouterr().out
