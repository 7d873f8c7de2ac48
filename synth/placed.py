"""Clocks with wires: the mapped netlist of a block, placed, its nets timed with their wires.

    length of a net = ROUTED x half the perimeter of the box around its pins
    kohm, pF of its wire = length x those of a um (``synth.technology``)

``synth.timing`` adds the wires to its loads and delays. Nothing repairs the netlist afterwards: no
gate is resized, no buffer is added and no clock tree is built. Pins of RAMs are ports, as in the
netlist, so they are on the boundary too, and RAMs take no area.
"""

import dataclasses
import hashlib
import json
import math
import time
from typing import Any

import filelock
import numpy as np

from golden.files import kept_json, replacing
from hdl.back.verilog import Design, convert
from hdl.block import Block
from synth import placement
from synth.area import CACHE, Libraries
from synth.delays import Fo4
from synth.netlist import Netlist, TimedPath, map_for_speed, netlist_of
from synth.placement import Die, Nets, Site, place
from synth.technology import Technology, technology_of
from synth.timing import Wire, delays_of, estimate
from synth.yosys import default_tool

UTILISATION = 0.65
# Routed length over half perimeters, measured once: fp16_fma pipelined in osu018, which qflow
# placed (graywolf) and routed (qrouter), has 130.6 mm of wires and half perimeters of 119.6 mm.
ROUTED = 1.09


@dataclasses.dataclass(frozen=True)
class PlacedReport:
    """A placed block, and its worst paths with and without wires.

    utilisation : share of the sites of the die that cells take
    length_um : half perimeters of all nets; ``routed`` times as much is timed
    without, paths : the worst path of each kind, without and with wires, the worst first
    seconds : of the placement, when it was made
    """

    name: str
    library: str
    technology: Technology
    fo4: Fo4
    seed: int
    die: Die
    utilisation: float
    cells: int
    ports: int
    nets: int
    um2: float
    nand2_um2: float
    length_um: float
    longest_um: float
    routed: float
    without: tuple[TimedPath, ...]
    paths: tuple[TimedPath, ...]
    seconds: float

    @property
    def kge(self) -> float:
        return self.um2 / self.nand2_um2 / 1000

    def limit(self, with_wires: bool = True) -> TimedPath | None:
        """The worst path between registers."""
        paths = self.paths if with_wires else self.without
        return next((path for path in paths if path.kind == "register to register"), None)

    def mhz(self, with_wires: bool = True) -> float | None:
        limit = self.limit(with_wires)
        return 1000 / limit.ns if limit else None

    def to_json(self) -> dict[str, Any]:
        def plain(path: TimedPath) -> dict[str, Any]:
            return dataclasses.asdict(path) | {"kind": path.kind, "cells": path.cells}

        def clock(with_wires: bool) -> dict[str, Any]:
            mhz = self.mhz(with_wires)
            return {
                "maximum_mhz": round(mhz, 3) if mhz else None,
                "paths": [plain(path) for path in (self.paths if with_wires else self.without)],
            }

        return {
            "library": self.library,
            "technology": self.technology.name,
            "source": self.technology.source,
            "seed": self.seed,
            "die_um": [round(self.die.width, 3), round(self.die.height, 3)],
            "rows": self.die.rows,
            "utilisation": round(self.utilisation, 4),
            "cells": self.cells,
            "ports": self.ports,
            "nets": self.nets,
            "kge": round(self.kge, 4),
            "length_um": round(self.length_um, 1),
            "longest_um": round(self.longest_um, 1),
            "routed": self.routed,
            "without_wires": clock(False),
            "with_wires": clock(True),
        }


@dataclasses.dataclass(frozen=True)
class Problem:
    """The arguments of ``synth.placement.place``: sites of the cells, nets, number of ports.

    numbers : the netlist's number of each net
    """

    widths: np.ndarray
    nets: Nets
    numbers: list[int]
    ports: int


def problem_of(netlist: Netlist, libraries: Libraries, site: Site) -> Problem:
    """The placement of ``netlist``; its ports and pins of RAMs follow the cells, in their order.

    A cell takes its Liberty area, in whole sites. Nets that reach clock pins have no wires: the
    clock is ideal.
    """
    cells = netlist.cells
    area = [libraries.library.cells[each.cell.name].area for each in cells]
    widths = [max(1, round(um2 / site.width / site.height)) for um2 in area]
    points: dict[int, dict[int, None]] = {}
    clocks = set()
    for number, instance in enumerate(cells):
        for pin, net in instance.nets.items():
            known = instance.cell.pins.get(pin)
            if known is not None and known.is_clock:
                clocks.add(net)
            points.setdefault(net, {})[number] = None
    ports = [net for net, _, _ in (*netlist.sources, *netlist.sinks)]
    for number, net in enumerate(ports, len(cells)):
        points.setdefault(net, {})[number] = None
    joined = {net: list(each) for net, each in points.items()
              if len(each) > 1 and net not in clocks}  # fmt: skip
    return Problem(
        np.array(widths, dtype=np.int64), Nets.of(joined.values()), list(joined), len(ports)
    )


@dataclasses.dataclass(frozen=True)
class _Lengths:
    """The part of a placement that is kept: the length of each net, and its die."""

    um: list[float]
    rows: int
    columns: int
    seconds: float


def _read(kept: Any, nets: int) -> _Lengths | None:
    """``kept`` of the cache; None: missing, damaged, or of another problem."""
    fields = {field.name for field in dataclasses.fields(_Lengths)}
    if not isinstance(kept, dict) or set(kept) != fields or not isinstance(kept["um"], list):
        return None
    numbers = (*kept["um"], kept["rows"], kept["columns"], kept["seconds"])
    if len(kept["um"]) != nets or not all(isinstance(each, int | float) for each in numbers):
        return None
    return _Lengths(**kept)


def lengths_of(problem: Problem, site: Site, utilisation: float, seed: int) -> _Lengths:
    """Place ``problem``, or find its lengths under build/synth/placed.

    The key is the hash of all arguments of ``place`` and of its version. ValueError: the
    utilisation is out of range.
    """
    placement.check_utilisation(utilisation)  # refused before a folder is made
    identity = hashlib.sha256(
        f"{placement.VERSION} {site} {utilisation} {seed} {problem.ports}\n".encode()
    )
    for array in (problem.widths, problem.nets.first, problem.nets.points):
        identity.update(array.tobytes() + b"\n")
    file = CACHE / "placed" / f"{identity.hexdigest()[:20]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{file}.lock"):
        found = _read(kept_json(file), len(problem.nets))
        if found is None:
            start = time.perf_counter()
            made = place(problem.widths, problem.nets, problem.ports, site, utilisation, seed)
            um = problem.nets.lengths(made.x, made.y)
            seconds = round(time.perf_counter() - start, 1)
            found = _Lengths(
                [round(each, 4) for each in um.tolist()], made.die.rows, made.die.columns, seconds
            )
            with replacing(file) as part:
                part.write_text(json.dumps(dataclasses.asdict(found)))
    return found


def wires_of(
    numbers: list[int], um: list[float], technology: Technology, routed: float
) -> dict[int, Wire]:
    """Net -> its wire, ``routed`` times as long as the half perimeter ``um``."""
    return {
        net: Wire(length * routed * technology.kohm_per_um, length * routed * technology.pf_per_um)
        for net, length in zip(numbers, um, strict=True)
    }


def check(libraries: Libraries) -> Technology:
    """Refuse ``libraries`` before a block is mapped; the technology of those that are not refused.

    LibraryError: no delay tables, or an unknown row height.
    """
    delays_of(libraries)
    return technology_of(libraries.library)


@dataclasses.dataclass(frozen=True)
class Mapped:
    """A block mapped for speed in ``libraries``."""

    name: str
    libraries: Libraries
    design: Design
    netlist: Netlist
    fo4: Fo4

    @property
    def kge(self) -> float:
        return self.netlist.um2 / self.libraries.library.nand2.area / 1000


def map_block(block: Block, name: str, libraries: Libraries, tool: str | None = None) -> Mapped:
    """The netlist that ``synth.timing`` times. SynthesisError: the flow refuses the design."""
    delays, reference = delays_of(libraries)
    design = convert(block, name)
    top = map_for_speed(design, libraries, reference, tool or default_tool())
    netlist = netlist_of(design, top, libraries, delays)
    return Mapped(name, libraries, design, netlist, reference)


def place_mapped(
    mapped: Mapped,
    *,
    utilisation: float = UTILISATION,
    seed: int = 1,
    routed: float = ROUTED,
) -> PlacedReport:
    """Place a mapped block, and time it with and without wires.

    LibraryError: its row height is unknown. ValueError: ``utilisation`` is not in 0.1..0.9, or
    ``routed`` is below 0.
    """
    libraries, netlist, reference = mapped.libraries, mapped.netlist, mapped.fo4
    if not routed >= 0:
        raise ValueError(f"the factor of wires must be at least 0, not {routed:g}")
    technology = technology_of(libraries.library)
    problem = problem_of(netlist, libraries, technology.site)
    lengths = lengths_of(problem, technology.site, utilisation, seed)
    die = Die(technology.site, lengths.rows, lengths.columns)
    wires = wires_of(problem.numbers, lengths.um, technology, routed)
    return PlacedReport(
        name=mapped.name,
        library=libraries.library.name,
        technology=technology,
        fo4=reference,
        seed=seed,
        die=die,
        utilisation=float(problem.widths.sum() / (die.rows * die.columns)),
        cells=len(netlist.cells),
        ports=problem.ports,
        nets=len(problem.nets),
        um2=netlist.um2,
        nand2_um2=libraries.library.nand2.area,
        length_um=math.fsum(lengths.um),
        longest_um=max(lengths.um, default=0.0),
        routed=routed,
        without=tuple(estimate(netlist, reference)),
        paths=tuple(estimate(netlist, reference, wires)),
        seconds=lengths.seconds,
    )
