"""Devices, and what they have. Pure Python.

Sizes: Lattice FPGA-DS-02012, ECP5 and ECP5-5G family, table 1.1. A slice has two LUTs of 4 inputs
and two flip-flops. Names of cells are those of Project Trellis.
"""

import dataclasses
from collections.abc import Mapping

from golden.config import ConfigError

# Cells of a placed design, by the name that the tables have.
CELLS = {
    "LUT": "TRELLIS_COMB", "FF": "TRELLIS_FF", "block RAM": "DP16KD", "DSP": "MULT18X18D",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Device:
    """flag : of nextpnr-ecp5; cells : how many of each cell it has; speed : its grade"""

    name: str
    flag: str
    package: str
    speed: str
    cells: Mapping[str, int]


def _ecp5(name: str, flag: str, luts: int, rams: int, multipliers: int) -> Device:
    cells = {
        "TRELLIS_COMB": luts, "TRELLIS_FF": luts, "DP16KD": rams, "MULT18X18D": multipliers,
    }  # fmt: skip
    return Device(name, flag, "CABGA381", "6", cells)


DEVICES = {
    each.name: each
    for each in (
        _ecp5("ecp5-25f", "--25k", 24_288, 56, 28),
        _ecp5("ecp5-45f", "--45k", 43_848, 108, 72),
        _ecp5("ecp5-85f", "--85k", 83_640, 208, 156),
    )
}


def device_of(name: str) -> Device:
    """ConfigError: no such device."""
    if name not in DEVICES:
        raise ConfigError(f"device must be one of {', '.join(DEVICES)}, not {name!r}")
    return DEVICES[name]
