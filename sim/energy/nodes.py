"""Energy of a gate from one node of CMOS to another, as an interval. Pure Python.

    energy(node, V) = a2 V**2 + a1 V + a0

Source: A. Stillmaker and B. Baas, Scaling equations for the accurate prediction of CMOS device
performance from 180 nm to 7 nm, Integration 58 (2017) 74-81, Table 5. The coefficients are those
that github.com/wromaszkan/nodeScale (a912c60) has of it; the corrigendum's example, 65 nm to 32 nm,
agrees. HP and LP: devices of high performance and of low power.
"""

import dataclasses
import math

from golden.config import ConfigError
from sim.constant import Interval

# (node in nm, devices) -> (a2, a1, a0)
COEFFICIENTS = {
    (180, ""): (0.0, 24.64, -17.98),
    (130, ""): (7.171, -6.709, 2.904),
    (32, "HP"): (0.8367, -0.4341, 0.1701),
    (32, "LP"): (0.9559, -0.7823, 0.471),
    (20, "HP"): (0.373, -0.1582, 0.04104),
    (20, "LP"): (0.2632, -0.14, 0.06841),
    (7, "HP"): (0.1776, -0.09097, 0.02447),
    (7, "LP"): (0.09365, -0.03409, 0.02043),
}


def energy(node: int, devices: str, volts: float) -> float:
    """The energy of ``node`` at ``volts``, in the unit of the source's table."""
    a2, a1, a0 = COEFFICIENTS[node, devices]
    return a2 * volts**2 + a1 * volts + a0


def at_28(devices: str, volts: float) -> float:
    """The energy at 28 nm, on a line between the logarithms of 32 nm and of 20 nm."""
    share = math.log(32 / 28) / math.log(32 / 20)
    upper, lower = (energy(node, devices, volts) for node in (32, 20))
    return math.exp((1 - share) * math.log(upper) + share * math.log(lower))


# Supplies of 28 nm: 0.9 V, and a tenth less and more.
_LOW, _USUAL, _HIGH = 0.8, 0.9, 1.0
_TARGETS = [(devices, volts) for devices in ("HP", "LP") for volts in (_LOW, _USUAL, _HIGH)]


@dataclasses.dataclass(frozen=True)
class Node:
    """The node of a library: the entry that it is scaled from, and one on the other side."""

    usual: tuple[int, str, float]
    other: tuple[int, str, float]
    text: str

    @property
    def to_28(self) -> Interval:
        """Energy at 28 nm over energy here.

        value: HP devices at 0.9 V. low and high: HP or LP at 0.8 to 1 V, from either entry.
        """
        sources = [energy(*self.usual), energy(*self.other)]
        targets = [at_28(*each) for each in _TARGETS]
        return Interval(
            min(targets) / max(sources), at_28("HP", _USUAL) / sources[0],
            max(targets) / min(sources),
        )  # fmt: skip


# Sky130: transistors of 150 nm at 1.8 V, between the nodes of 130 and 180 nm. The polynomial of
# 130 nm was fitted at lower supplies.
NODES = {
    "Sky130 HD": Node((130, "", 1.8), (180, "", 1.8), "130 nm and 180 nm at 1.8 V"),
    "ASAP7 RVT": Node((7, "HP", 0.7), (7, "LP", 0.7), "7 nm HP and LP at 0.7 V"),
}


def node_of(library: str) -> Node:
    """ConfigError: no node is known for the library."""
    if library not in NODES:
        raise ConfigError(f"library must be one of {', '.join(NODES)}, not {library!r}")
    return NODES[library]
