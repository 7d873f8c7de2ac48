"""KLLM's Table I: area and power of the chip's rows at 28 nm and 500 MHz, each number in its unit.

The rows of a PE lane have areas and no power. Sixteen times their sum is the area of the row of PE
lanes, 8.25 mm2.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable

from sim.constant import Quantity

LANES = 16


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table. power: None where the paper states none."""

    area: Quantity
    power: Quantity | None = None


def _row(mm2: float, watts: float | None = None) -> Row:
    return Row(Quantity(mm2, "mm2"), None if watts is None else Quantity(watts, "W"))


TABLE_1 = {
    "PE Lane": _row(8.25, 5.73),  # all of them
    "Concat Unit": _row(8.68e-2),  # of a lane, as the next three
    "Wgt Buffer": _row(6.75e-2),
    "IdxCounter": _row(2.71e-1),
    "MAC": _row(9.05e-2),
    "Out Buffer": _row(4.61, 0.570),
    "Act Idx Buffer": _row(2.16, 0.540),
    "Act Codebook Buffer": _row(8.44e-3, 2.11e-3),
    "Clustering Unit": _row(0.211, 0.710),
    "Orizuru": _row(0.739, 0.273),
    "Functional Unit": _row(0.889, 0.563),
}
LANE_PARTS = ("Concat Unit", "Wgt Buffer", "IdxCounter", "MAC")
CHIP = tuple(name for name in TABLE_1 if name not in LANE_PARTS)  # rows whose sum is the chip


def area_of(names: Iterable[str]) -> Quantity:
    """The sum of rows."""
    return functools.reduce(operator.add, (TABLE_1[name].area for name in names))


def power_of(names: Iterable[str]) -> Quantity:
    """The sum of rows that have a power. ValueError: one has none."""
    found = [TABLE_1[name].power for name in names]
    if any(each is None for each in found):
        raise ValueError("Table I states no power of a lane's parts")
    return functools.reduce(operator.add, (each for each in found if each is not None))
