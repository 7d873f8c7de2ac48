"""A quick part of the proofs of the swap networks, and that their properties can fail."""

import pytest

from tb.formal.prove import check
from tb.formal.swap import DEFECTS, PROOFS

QUICK = ("Swap-2-2-2", "Restored-1-1-4", "Restored-2-1-3", "Restored-3-1-2", "Unswap-3-1-2")
PLANTED = ("defect-swap-ties", "defect-restored-map")


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


def test_every_level_is_proved():
    for name in ("Swap", "Restored", "Unswap"):
        levels = {proof.name.split("-")[1] for proof in PROOFS if proof.name.startswith(name)}
        assert sorted(levels) == list("012345")
    assert all(proof.defect for proof in DEFECTS)
