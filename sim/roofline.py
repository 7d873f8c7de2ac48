"""Time of an operation whose resources work side by side: the largest of their times."""

from collections.abc import Mapping

from sim.cost import Spent
from sim.work import Work


def operation(
    work: Work,
    limits: Mapping[str, float],
    traffic: Mapping[str, float],
    overhead: float = 0.0,
) -> Spent:
    """``count * (max over resources of limits + overhead)``.

    limits, traffic, overhead: of one execution: seconds by resource, bytes by what they are, and
    seconds in which no resource works, such as a launch.
    """
    count = work.count
    return Spent(
        work.name,
        count * (max(limits.values(), default=0.0) + overhead),
        {name: count * seconds for name, seconds in limits.items()},
        {name: count * amount for name, amount in traffic.items()},
        float(count * work.macs),
    )


def spilled(work: Work, element: float, table: float, buffer: float) -> float:
    """Bytes of activations that an operation reads from memory and writes to it.

    They are those that find no room on chip. ``embed`` reads a row of the table for each token.

    element, table : bytes of an activation, and of an element of the table of words
    buffer : bytes of activations that stay on chip
    """
    if work.name == "embed":
        return work.vectors / 2 * table
    return max(0.0, work.vectors * element - buffer)
