"""A claim, the variants that it is tried on, and the status that follows.

The variants of a claim were written down before any of them was computed.

| status | when |
|---|---|
| reproduced | every variant is within 10 % of the claim, ``near`` |
| consistent with | the claim lies in the interval of the variants, 5 % wider on each side |
| not reproduced | it does not |
| fitted | the number is one of those that constants were fitted on |
| not testable | nothing here can compute it; ``reason`` says why |

A trend is a claim of 1, true, that each variant answers by 1 or 0. It is reproduced where all
answer 1, and consistent with some where a part does.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from golden.config import ConfigError

__all__ = ["STATUSES", "Claim", "Judged", "geomean", "judge"]

STATUSES = ("reproduced", "consistent with", "not reproduced", "fitted", "not testable")
_WIDER = 1.05

Measure = Callable[[str], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """paper, figure: where it is. what: in one line. claimed: the number.

    variants : what it is tried on, each a text that ``measure`` understands
    measure : the number of a variant; None: not testable
    near : factor within which a variant reproduces the claim; nearer 1 for sums of a table
    is_fitted : whether constants of the chip were fitted on this very number
    reason : why the status is what it is, or what it means
    trend : whether ``claimed`` is 1 for true
    """

    paper: str
    figure: str
    what: str
    claimed: float
    unit: str = "x"
    variants: Sequence[str] = ()
    measure: Measure | None = None
    near: float = 1.1
    is_fitted: bool = False
    reason: str = ""
    trend: bool = False


@dataclasses.dataclass(frozen=True)
class Judged:
    """values: of each variant; NaN where it has none, and ``missing`` says why."""

    claim: Claim
    values: dict[str, float]
    missing: dict[str, str]
    status: str

    @property
    def interval(self) -> tuple[float, float] | None:
        found = [value for value in self.values.values() if math.isfinite(value)]
        return (min(found), max(found)) if found else None


def _status(claim: Claim, found: Sequence[float]) -> str:
    if not found:
        return "not testable"
    if claim.is_fitted:
        return "fitted"
    if claim.trend:
        if all(found):
            return "reproduced"
        return "consistent with" if any(found) else "not reproduced"
    low, high = min(found), max(found)
    if all(claim.claimed / claim.near <= value <= claim.claimed * claim.near for value in found):
        return "reproduced"
    inside = low / _WIDER <= claim.claimed <= high * _WIDER
    return "consistent with" if inside else "not reproduced"


def judge(claim: Claim) -> Judged:
    """Compute all variants. A variant that a chip refuses counts as missing, not as a number."""
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    for variant in claim.variants if claim.measure else ():
        assert claim.measure is not None
        try:
            values[variant] = float(claim.measure(variant))
        except ConfigError as error:
            values[variant], missing[variant] = math.nan, str(error)
    found = [value for value in values.values() if math.isfinite(value)]
    return Judged(claim, values, missing, _status(claim, found))


def geomean(values: Sequence[float]) -> float:
    """Of one or more positive values."""
    return math.exp(sum(map(math.log, values)) / len(values))
