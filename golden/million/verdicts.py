"""The ends of LOADs, groups of queries and ATTENDs. Pure Python."""

import dataclasses
from collections.abc import Iterable

from golden.index.format import CodebookFault
from golden.million.format import Status, paged


def load_status(faults: CodebookFault) -> Status:
    """Judges a LOAD in whose codebooks the stores of K and V have found ``faults``."""
    if CodebookFault.NONFINITE in faults:
        return Status.NONFINITE
    return Status.BAD_REQUEST if faults else Status.OK


@dataclasses.dataclass(frozen=True)
class Part:
    """The findings of the parts in one group of queries; masks have a bit per query."""

    nonfinite: int  # queries with a NaN or an infinity, or with such a slope
    scoreless: int  # queries whose tables or scores lie beyond FP16
    weightless: int  # queries whose weights have no sum
    codes: tuple[bool, bool]  # K, V: a code lies beyond the entries


def part_bad(part: Part, queries: int) -> int:
    """Mask of the queries without a result: after a wrong code, all of ``queries``."""
    if any(part.codes):
        return (1 << queries) - 1
    return part.nonfinite | part.scoreless | part.weightless


def part_status(part: Part) -> Status:
    """The first of NONFINITE, BAD_CODE and OVERFLOW that applies to a query of the group."""
    if part.nonfinite:
        return Status.NONFINITE
    if any(part.codes):
        return Status.BAD_CODE
    return Status.OVERFLOW if part.scoreless | part.weightless else Status.OK


def first_of(statuses: Iterable[Status]) -> Status:
    """The lowest status that is not OK; OK if there is none."""
    return min((status for status in statuses if status), default=Status.OK)


def attend_status(refused: Status, parts: Iterable[Part], reads: Iterable[int]) -> Status:
    """Judges an ATTEND.

    refused : why it is refused, OK: it is not
    parts : of its groups; reads: statuses of its reads, as the paged memory gives them
    """
    return refused or first_of([*map(part_status, parts), *map(paged, reads)])
