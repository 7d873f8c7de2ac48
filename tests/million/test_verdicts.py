"""golden.million.verdicts against tables written by hand, and against the order of Status.

Shown to fail:

- the faults of V left out;
- a code beyond the entries before a NaN;
- a wrong code that spoils one query;
- the highest status for the first;
- the status of a refused ATTEND from its reads;
- a number of the paged memory's status as this one's.
"""

import itertools

import pytest

from golden.index.format import CodebookFault
from golden.million.format import Status
from golden.million.verdicts import (
    Part,
    attend_status,
    first_of,
    load_status,
    paged,
    part_bad,
    part_status,
)


@pytest.mark.parametrize(
    ("faults", "status"),
    [
        (0, Status.OK), (1, Status.NONFINITE), (2, Status.BAD_REQUEST), (3, Status.NONFINITE),
        (4, Status.BAD_REQUEST), (5, Status.NONFINITE), (6, Status.BAD_REQUEST),
        (7, Status.NONFINITE),
    ],
)  # fmt: skip
def test_load_status(faults, status):
    assert load_status(CodebookFault(faults)) == status


def test_parts_by_hand():
    assert part_status(Part(0, 0, 0, (False, False))) == Status.OK
    assert part_bad(Part(0, 0, 0, (False, False)), 4) == 0
    assert part_status(Part(0, 0b10, 0b100, (False, False))) == Status.OVERFLOW
    assert part_bad(Part(0b1, 0b10, 0b100, (False, False)), 4) == 0b111
    for codes in ((True, False), (False, True), (True, True)):
        assert part_status(Part(0, 0b10, 0, codes)) == Status.BAD_CODE
        assert part_bad(Part(0, 0b10, 0, codes), 4) == 0b1111
        assert part_status(Part(0b1, 0, 0, codes)) == Status.NONFINITE


def test_the_first_status_of_any_order():
    for count in range(4):
        for statuses in itertools.product(Status, repeat=count):
            ranks = [list(Status).index(status) for status in statuses if status != Status.OK]
            wanted = list(Status)[sorted(ranks)[0]] if ranks else Status.OK
            assert first_of(statuses) == wanted


def test_paged_by_hand():
    wanted = {0: 0, 2: 2, 3: 3, 6: 6, 11: 9, 12: 10, 13: 11}
    assert [int(paged(n)) for n in range(16)] == [wanted.get(n, 1) for n in range(16)]


def test_attends_by_hand():
    fine, nan = Part(0, 0, 0, (False, False)), Part(1, 0, 0, (False, True))
    over = Part(0, 0, 2, (False, False))
    assert attend_status(Status.OK, [fine, fine], [0, 0, 0, 0]) == Status.OK
    assert attend_status(Status.EMPTY, [], []) == Status.EMPTY
    assert attend_status(Status.BAD_REQUEST, [nan], [12]) == Status.BAD_REQUEST
    assert attend_status(Status.OK, [over, fine, nan], [0, 13]) == Status.NONFINITE
    assert attend_status(Status.OK, [over, fine], [13, 12]) == Status.SLAVE_ERROR
    assert attend_status(Status.OK, [fine, over], [0, 0]) == Status.OVERFLOW
