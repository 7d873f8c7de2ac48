"""5,000 requests of the soak (docs/paging-soak.md), and that it finds a planted fault.

Shown to fail: ``python -m senbazuru.runs.soak --fault NAME`` for each name in
senbazuru/runs/soak/faults.py.
"""

import pytest

from golden.paging.format import Status
from hdl.paging.page_table import PagingPageTable
from senbazuru.runs.soak.check import Mismatch
from senbazuru.runs.soak.faults import FAULTS
from senbazuru.runs.soak.run import soak, soak_config
from tb.faults.plant import plant

REQUESTS = 5000


@pytest.mark.telling("forks")
@pytest.mark.parametrize("forks", [True, False], ids=["forks", "plain"])
def test_soak(forks, seed):
    figures = soak(REQUESTS, seed, config=soak_config(forks))
    assert figures.requests >= REQUESTS
    if forks:
        assert figures.statuses["FORK"].keys() >= {"OK", "OUT_OF_PAGES", "TABLE_FULL"}
        assert figures.pages_shared > figures.statuses["FORK"]["OK"] / 4
    assert figures.write_errors > 0
    assert figures.read_errors > 0
    assert figures.drains > 1
    found = {status for each in figures.statuses.values() for status in each}
    rare = {"THRESHOLDS", "NONFINITE", "MALFORMED", "LENGTH_LIMIT", "BEYOND_LENGTH", "TABLE_FULL"}
    assert found >= {status.name for status in Status} - rare
    assert figures.most_pages > 48


@pytest.mark.telling
def test_a_planted_fault_is_found():
    with pytest.raises(Mismatch, match=r"free pages|OUT_OF_PAGES, expected OK"):
        soak(REQUESTS, 1, block=FAULTS["abort_leaks"].block())


@pytest.mark.telling
def test_a_planted_fault_of_forks_is_found():
    with pytest.raises(Mismatch, match="FORK: "):
        soak(REQUESTS, 1, block=FAULTS["copy_to_source"].block())


def test_faults_stand_in_the_generators():
    assert len(FAULTS) >= 3
    for fault in FAULTS.values():
        assert issubclass(plant(fault.part, fault.method, fault.old, fault.new), fault.part)
    with pytest.raises(ValueError, match="0 times"):
        plant(PagingPageTable, "elaborate", "no such text", "")
