"""A claim, the variants that it is tried on, and the status that follows.

The variants of a claim were written down before any of them was computed.

| status | when |
|---|---|
| reproduced | every variant is within 10 % of the claim, ``near`` |
| consistent with | the claim lies in the interval of the variants, 5 % wider on each side |
| not reproduced | it does not |
| fitted | a constant of its chips was fitted on this paper's numbers, or is one of this table |
| not testable | nothing here can compute it; ``reason`` says why |

"Fitted" comes first, and nobody types it: ``source`` of each constant of each chip that a variant
names says what it comes from. So a quotient of two fitted numbers is fitted, and what lies between
them.

A trend is a claim of 1, true, that each variant answers by 1 or 0. It is reproduced where all
answer 1, and consistent with some where a part does.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence

from golden.config import ConfigError
from sim.constant import UNITS, Constant, Quantity, dimension
from sim.engine import Engine, engine_of
from sim.engines.pair import Pair
from sim.hardware import known

STATUSES = ("reproduced", "consistent with", "not reproduced", "fitted", "not testable")
_WIDER = 1.05

Measure = Callable[[str], float | Quantity]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """paper, figure: where it is. what: in one line. claimed: the number.

    variants : what it is tried on, each a text that ``measure`` understands
    measure : the number of a variant, a Quantity where ``unit`` is one; None: not testable
    near : factor within which a variant reproduces the claim; nearer 1 for sums of a table
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


@functools.cache
def parts_of(variant: str) -> tuple[Engine, ...]:
    """The chips that a variant names, a pair's two apart."""
    found: list[Engine] = []
    for name in re.split(" / | at ", variant):
        if name in known():
            engine = engine_of(name)
            found += [engine.weights, engine.cache] if isinstance(engine, Pair) else [engine]
    return tuple(found)


def constants_of(variant: str) -> list[Constant]:
    """Those of the chips that a variant names, and of their memories."""
    return [
        constant
        for part in parts_of(variant)
        for group in (part.hardware.constants, part.hardware.memory.constants)
        for constant in group.values()
    ]


def is_fitted(claim: Claim) -> bool:
    """Whether a constant that a variant may use comes from the numbers which are claimed.

    A constant that was fitted on any number of the paper has seen what others of it follow from. A
    constant that was read from the claim's own table is no prediction of that table.
    """
    figure = claim.figure if claim.figure.startswith("Table") else f"Figure {claim.figure}"
    own = re.compile(rf"{re.escape(claim.paper)}\b.*\b{re.escape(figure)}\b")

    def comes_from_it(constant: Constant) -> bool:
        if constant.kind == "fitted":
            return claim.paper in constant.source
        return constant.kind == "paper" and bool(own.search(constant.source))

    return any(comes_from_it(c) for variant in claim.variants for c in constants_of(variant))


def _number(claim: Claim, variant: str) -> float:
    """Measures in the claim's unit. TypeError: no Quantity where the claim has a unit."""
    assert claim.measure is not None
    found = claim.measure(variant)
    if isinstance(found, Quantity):
        return found.to(claim.unit)
    if claim.unit in UNITS and dimension(claim.unit) != "number":
        raise TypeError(f"{claim.paper}, {claim.what}: must be a Quantity in {claim.unit}")
    return float(found)


def _status(claim: Claim, found: Sequence[float]) -> str:
    if not found:
        return "not testable"
    if is_fitted(claim):
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
        try:
            values[variant] = _number(claim, variant)
        except ConfigError as error:
            values[variant], missing[variant] = math.nan, str(error)
    found = [value for value in values.values() if math.isfinite(value)]
    return Judged(claim, values, missing, _status(claim, found))


def geomean(values: Sequence[float]) -> float:
    """The geometric mean of one or more positive values."""
    return math.exp(sum(map(math.log, values)) / len(values))
