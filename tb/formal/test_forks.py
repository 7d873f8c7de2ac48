"""Cheap cases of the proof of forks, and that its properties can fail.

``python -m tb.formal Fork --long`` runs all cases and the covers.
"""

import dataclasses

import pytest
from amaranth.hdl import Fragment

from tb.formal.forks import DEFECTS, LONG, MOST, PROOFS
from tb.formal.prove import check

QUICK = ("reset", "WRITE_TABLES", "BEGIN")


@pytest.mark.telling
def test_quick_cases():
    """Three of the fastest cases that ``python -m tb.formal ForkTable-most`` runs."""
    most, long = PROOFS[:2]
    assert set(QUICK) < set(most.only) == set(MOST)
    assert not set(most.only) & set(long.only)
    result = check(dataclasses.replace(most, name="ForkTable-quick", only=QUICK))
    assert result.status == "PASS", result.detail


def test_all_steps_are_cases():
    spec = PROOFS[0].spec()
    Fragment.get(spec, "formal")
    assert sorted(MOST + LONG) == sorted(spec.cases)
    assert {name.partition(".")[0] for name in spec.splits} <= set(spec.cases)


def test_planted_defect_is_found():
    """The counter of a page's holders. ``python -m tb.formal forks`` plants the other defects."""
    (defect,) = (each for each in DEFECTS if each.name == "defect-forks-count")
    result = check(defect)
    assert result.status == "FAIL"
    assert "was asserted" in result.detail
