"""The kinds of the figures of a point: where they come from.

| kind | where a figure comes from |
|---|---|
| measured | our own RTL, synthesis or run |
| counted | formats and configurations: no constant is in it |
| paper | a publication or a data sheet |
| fitted | constants that were fitted |
| assumed | a number that nobody states |
| scaled | a chip with other lanes, ports or bandwidth than its file |
| extrapolated | outside what was measured, as the simulator says |

A figure is made of several numbers. Its kind is the one of theirs that comes last in the table.
"""

from collections.abc import Iterable

from sim.constant import Constant
from sim.engine import Engine
from sim.engines.pair import Pair
from sim.explore.figures import AREAS, KINDS, Record, is_number
from sim.explore.grid import Setup

_ENERGY = ("memory.energy", "memory.static")
_STORED = ("outliers",)  # constants that the bits of K and V depend on
_HELD = ("buffer", "on_chip")  # constants that are bytes on the chip


def constants(engine: Engine) -> dict[str, Constant]:
    """All constants of a chip and of its memory; of a pair, those of both parts by their names."""
    made: dict[str, Constant] = {}
    if isinstance(engine, Pair):
        for part in (engine.weights, engine.cache):
            own = part.hardware.constants
            made |= {f"{part.hardware.name}.{name}": each for name, each in own.items()}
    else:
        made |= engine.hardware.constants
    return made | {f"memory.{name}": each for name, each in engine.memory.constants.items()}


def _uses(engine: Engine) -> dict[str, set[str]]:
    """The constants of ``constants`` that energy, areas, bits and bytes are made of, by figure."""
    parts = [engine.weights, engine.cache] if isinstance(engine, Pair) else [engine]
    made: dict[str, set[str]] = {"energy": set(_ENERGY), "bits": set(), "bytes": set()}
    for part in parts:
        before = f"{part.hardware.name}." if part is not engine else ""
        known = part.hardware.constants
        made["energy"] |= {f"{before}{name}" for name in part.energies}
        made["bits"] |= {f"{before}{name}" for name in _STORED if name in known}
        made["bytes"] |= {f"{before}{name}" for name in _HELD if name in known}
        for figure, names in part.areas.items():
            made.setdefault(f"area {figure}", set()).update(f"{before}{name}" for name in names)
    return made


def used_by(engine: Engine) -> dict[str, str]:
    """Each constant of a chip to the figures that it is in, as a text."""
    uses, made = _uses(engine), {}
    for name in constants(engine):
        found = [figure for figure, names in uses.items() if name in names]
        made[name] = ", ".join(found) or "time"
    return made


def _last(kinds: Iterable[str]) -> str:
    """The kind that comes last in KINDS."""
    return max(kinds, key=KINDS.index, default="counted")


def kinds(engine: Engine, setup: Setup, record: Record) -> dict[str, str]:
    """The kind of ``time``, ``energy``, ``area``, ``bits`` and ``bytes`` of a point."""
    known, uses = constants(engine), _uses(engine)
    apart = {name for figure, names in uses.items() if figure != "bytes" for name in names}
    said = {
        "time": {name for name in known if name not in apart},
        "energy": uses["energy"] | {name for name in known if name not in apart},
        "bits": uses["bits"],
        "bytes": uses["bytes"],
    }
    made = {
        figure: _last(known[name].kind for name in names if name in known)
        for figure, names in said.items()
    }
    by = next((each for each in AREAS if is_number(record.get(f"area_{each}_mm2"))), "")
    made["area"] = _last(known[name].kind for name in uses.get(f"area {by}", ()) if name in known)
    is_changed = (setup.lanes, setup.ports, setup.bandwidth) != (None, None, None)
    for figure in ("time", "energy"):
        extra = ["scaled"] if is_changed else []
        extra += ["extrapolated"] if record["extrapolated"] else []
        made[figure] = _last((made[figure], *extra))
    return made
