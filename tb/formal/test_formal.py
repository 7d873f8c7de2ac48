"""A quick part of the proofs, and that they can fail; ``python -m tb.formal`` runs all."""

import pytest

from tb.formal.prove import check
from tb.formal.streams import DEFECTS, PROOFS

QUICK = (
    "SkidBuffer-7-False",
    "RamFifo-7-3-memory-True",
    "Fork-7-3",
    "Widen-7-3",
    "Arbiter-7-3-round_robin-True",
    "Arbiter-7-3-round_robin-False",
)
PLANTED = ("defect-fifo", "defect-fork")


def named(proofs, names):
    chosen = [proof for proof in proofs if proof.name in names]
    assert len(chosen) == len(names)
    return chosen


@pytest.mark.parametrize("proof", named(PROOFS, QUICK), ids=lambda proof: proof.name)
def test_proof(proof):
    result = check(proof)
    assert (result.status, result.covers) == ("PASS", "PASS"), result.detail


@pytest.mark.parametrize("proof", named(DEFECTS, PLANTED), ids=lambda proof: proof.name)
def test_planted_defect_is_found(proof):
    result = check(proof)
    assert result.status == "FAIL"
    assert "Assert failed" in result.detail


def test_every_block_is_proved_and_seen_to_fail():
    blocks = {"SkidBuffer", "Fifo", "RamFifo", "Fork", "Join", "Widen", "Narrow", "Arbiter"}
    blocks |= {"Register", "BareRepack"}
    assert {proof.name.partition("-")[0] for proof in PROOFS} == blocks
    assert len({proof.name for proof in (*PROOFS, *DEFECTS)}) == len(PROOFS) + len(DEFECTS)
    assert all(proof.defect for proof in DEFECTS)
