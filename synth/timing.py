"""Longest paths of a block in a library with delay tables: by OpenSTA, or by the model here.

The model is OpenSTA's: NLDM tables, the worst slew of every net, an ideal clock. It has no wires,
unless it is given those of a placement (``synth.placed``).
"""

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hdl.back.verilog import convert
from hdl.block import Block
from synth import opensta
from synth.area import DONT_USE, Libraries, SynthesisError
from synth.delays import FALL, RISE, Arc, Delays, Fo4, fo4
from synth.netlist import STARTS, Netlist, Step, TimedPath, map_for_speed, netlist_of
from synth.yosys import default_tool

ESTIMATE = "own estimate"
_NEVER = -math.inf


@dataclasses.dataclass(frozen=True)
class TimingReport:
    """The limits of a block's clock."""

    name: str
    library: str
    timer: str  # "opensta ..." or ESTIMATE
    clock_ns: float
    fo4: Fo4
    um2: float  # of the netlist that was timed
    nand2_um2: float
    flip_flops: int
    paths: tuple[TimedPath, ...]  # at most one per kind, the worst first

    @property
    def kge(self) -> float:
        return self.um2 / self.nand2_um2 / 1000

    @property
    def limit(self) -> TimedPath | None:
        """The worst path between registers: what no other block can change."""
        return next((path for path in self.paths if path.kind == "register to register"), None)

    @property
    def mhz(self) -> float | None:
        return 1000 / self.limit.ns if self.limit else None

    def depth(self, path: TimedPath) -> float:
        """FO4 delays."""
        return path.ns / self.fo4.ns

    def to_json(self) -> dict[str, Any]:
        limit = self.limit
        return {
            "library": self.library,
            "timer": self.timer,
            "clock_ns": self.clock_ns,
            "fo4": {"cell": self.fo4.cell, "ns": round(self.fo4.ns, 6)},
            "maximum_mhz": round(self.mhz, 3) if self.mhz else None,
            "fo4_depth": round(self.depth(limit), 3) if limit else None,
            "um2": round(self.um2, 4),
            "kge": round(self.kge, 4),
            "flip_flops": self.flip_flops,
            "paths": [
                dataclasses.asdict(path)
                | {
                    "kind": path.kind,
                    "cells": path.cells,
                    "fo4_depth": round(self.depth(path), 3),
                    "slack_ns": round(self.clock_ns - path.ns, 6),
                }
                for path in self.paths
            ],
        }


@dataclasses.dataclass(frozen=True)
class _Edge:
    """The cause of the arrival of one edge of one net."""

    cell: int
    pin: str
    net: int
    edge: int  # of that net


@dataclasses.dataclass(frozen=True)
class Wire:
    """The wire of a net, lumped.

    Its driver sees ``pf`` more load. All its readers see the edge later by Elmore's delay

        kohm (pf / 2 + pF of the readers' pins)   in ns

    which is that of a reader at the far end, after the whole resistance (Elmore, 1948). The slew
    is the same at both ends.
    """

    kohm: float
    pf: float


class Times:
    """Slew and arrival of both edges of every net at its readers, by kind of start.

    wires : net -> its wire; a net without one is ideal
    """

    def __init__(self, netlist: Netlist, fo4: Fo4, wires: Mapping[int, Wire] | None = None):
        self.netlist = netlist
        self.loads: dict[int, list[float]] = {}
        self.fanout: dict[int, int] = {}
        for instance in netlist.cells:
            for pin, net in instance.nets.items():
                description = instance.cell.pins.get(pin)
                if description is not None and description.is_input:
                    self._load(net, *description.capacitance)
        for net, _, _ in netlist.sinks:
            self._load(net, fo4.load_pf, fo4.load_pf)
        self.later: dict[int, tuple[float, float]] = {}  # ns of a wire: falling, rising
        for net, wire in (wires or {}).items():
            load = self.loads.setdefault(net, [0.0, 0.0])
            self.later[net] = (
                wire.kohm * (wire.pf / 2 + load[FALL]),
                wire.kohm * (wire.pf / 2 + load[RISE]),
            )
            load[FALL] += wire.pf
            load[RISE] += wire.pf
        self.slew: dict[int, list[float]] = {}
        self.arrival: dict[str, dict[int, list[float]]] = {kind: {} for kind in STARTS}
        self.origin: dict[str, dict[tuple[int, int], _Edge]] = {kind: {} for kind in STARTS}
        self.start: dict[int, str] = {}  # net of a port or RAM pin -> name
        self._propagate()

    def _load(self, net: int, falling: float, rising: float) -> None:
        load = self.loads.setdefault(net, [0.0, 0.0])
        load[FALL] += falling
        load[RISE] += rising
        self.fanout[net] = self.fanout.get(net, 0) + 1

    def _propagate(self) -> None:
        for net, kind, name in self.netlist.sources:
            self.slew[net] = [0.0, 0.0]
            self.arrival[kind][net] = list(self.later.get(net, (0.0, 0.0)))
            self.start[net] = name
        for number in self.order():
            instance = self.netlist.cells[number]
            for name, pin in instance.cell.pins.items():
                if pin.arcs and name in instance.nets:
                    for arc in pin.arcs:
                        self._through(number, arc, instance.nets[name])

    def _through(self, number: int, arc: Arc, output: int) -> None:
        source = self.netlist.cells[number].nets.get(arc.source)
        if source is None:
            return
        load = self.loads.get(output, (0.0, 0.0))
        later = self.later.get(output, (0.0, 0.0))
        slews = self.slew.setdefault(output, [0.0, 0.0])
        before = (0.0, 0.0) if arc.is_clock else self.slew.get(source)
        if before is None:
            return
        for edge in (FALL, RISE):
            delay, transition = arc.delay[edge], arc.slew[edge]
            if delay is None:
                continue
            if arc.is_clock:
                inputs: tuple[int, ...] = (RISE,)
            else:
                inputs = (edge,) if arc.sense > 0 else (1 - edge,) if arc.sense < 0 else (0, 1)
            for old in inputs:
                time = delay.at(before[old], load[edge]) + later[edge]
                if transition is not None:
                    slews[edge] = max(slews[edge], transition.at(before[old], load[edge]))
                for kind, arrivals in self.arrival.items():
                    if arc.is_clock:
                        since = 0.0 if kind == "register" else _NEVER
                    else:
                        since = arrivals.get(source, (_NEVER, _NEVER))[old]
                    if since == _NEVER:
                        continue
                    at = arrivals.setdefault(output, [_NEVER, _NEVER])
                    if since + time > at[edge]:
                        at[edge] = since + time
                        self.origin[kind][output, edge] = _Edge(number, arc.source, source, old)

    def order(self) -> list[int]:
        """Cells after the cells that drive them; flip-flops first."""
        readers: dict[int, list[int]] = {}
        waits: list[int] = []
        driven = {
            net
            for instance in self.netlist.cells
            for name, net in instance.nets.items()
            if name in instance.cell.pins and not instance.cell.pins[name].is_input
        }
        ready = []
        for number, instance in enumerate(self.netlist.cells):
            sources = {
                arc.source
                for pin in instance.cell.pins.values()
                for arc in pin.arcs
                if not arc.is_clock
            }
            inputs = {instance.nets[pin] for pin in sources if pin in instance.nets} & driven
            waits.append(len(inputs))
            for net in inputs:
                readers.setdefault(net, []).append(number)
            if not inputs:
                ready.append(number)
        order = []
        left: dict[int, int] = {}  # drivers of a net: one in this flow
        while ready:
            number = ready.pop()
            order.append(number)
            instance = self.netlist.cells[number]
            for name, net in instance.nets.items():
                pin = instance.cell.pins.get(name)
                if pin is None or pin.is_input or net in left:
                    continue
                left[net] = 0
                for reader in readers.get(net, ()):
                    waits[reader] -= 1
                    if not waits[reader]:
                        ready.append(reader)
        if len(order) != len(self.netlist.cells):
            raise SynthesisError("the mapped netlist has a loop of gates")
        return order


def _ends(times: Times) -> Iterator[tuple[str, str, int, Callable[[int], float | None]]]:
    """(kind, name, net, edge -> setup or None) of every end of paths."""
    for net, kind, name in times.netlist.sinks:
        yield kind, name, net, lambda edge: 0.0
    for instance in times.netlist.cells:
        for pin, net in instance.nets.items():
            description = instance.cell.pins.get(pin)
            if description is None or not description.setup or net not in times.slew:
                continue

            def setup(edge: int, net: int = net, tables: Any = description.setup) -> float | None:
                slew = times.slew[net][edge]
                found = [pair[edge].at(slew, 0.0) for pair in tables if pair[edge] is not None]
                return max(found, default=None)

            yield "register", instance.name, net, setup


def _trace(times: Times, kind: str, net: int, edge: int) -> tuple[str, list[Step]]:
    """(name of the start, steps up to ``net``)."""
    steps = []
    while True:
        arrival = times.arrival[kind][net][edge]
        name, fanout = times.netlist.names.get(net, ""), times.fanout.get(net, 0)
        origin = times.origin[kind].get((net, edge))
        if origin is None:
            start = times.start[net]
            steps.append(Step("", start, name, edge == RISE, fanout, arrival))
            return start, steps[::-1]
        instance = times.netlist.cells[origin.cell]
        pin = next(pin for pin, each in instance.nets.items()
                   if each == net and not instance.cell.pins[pin].is_input)  # fmt: skip
        steps.append(Step(instance.cell.name, pin, name, edge == RISE, fanout, arrival))
        if any(arc.is_clock and arc.source == origin.pin for arc in instance.cell.pins[pin].arcs):
            return instance.name, steps[::-1]
        net, edge = origin.net, origin.edge


def estimate(
    netlist: Netlist, fo4: Fo4, wires: Mapping[int, Wire] | None = None
) -> list[TimedPath]:
    """The worst path of every kind, by the tables of the library; without ``wires`` all are 0."""
    times = Times(netlist, fo4, wires)
    worst: dict[tuple[str, str], tuple[float, float, str, int, int]] = {}
    for end_kind, end, net, setup_of in _ends(times):
        for start_kind in STARTS:
            arrivals = times.arrival[start_kind].get(net)
            if arrivals is None:
                continue
            for edge in (FALL, RISE):
                setup = setup_of(edge)
                if arrivals[edge] == _NEVER or setup is None:
                    continue
                found = (arrivals[edge] + setup, setup, end, net, edge)
                key = (start_kind, end_kind)
                if key not in worst or found[0] > worst[key][0]:
                    worst[key] = found
    paths = []
    for (start_kind, end_kind), (ns, setup, end, net, edge) in worst.items():
        start, steps = _trace(times, start_kind, net, edge)
        paths.append(
            TimedPath(
                start_kind,
                end_kind,
                start,
                netlist.module_of(start),
                end,
                netlist.module_of(end),
                ns,
                setup,
                tuple(steps),
            )
        )
    return sorted(paths, key=lambda path: -path.ns)


def program_of(timer: str | None) -> str | None:
    """Path of ``sta``, or None for the estimate. SynthesisError: OpenSTA is not installed."""
    program = shutil.which("sta") if timer != "estimate" else None
    if timer == "opensta" and program is None:
        raise SynthesisError("no program `sta` on PATH: `make timing` says how to install OpenSTA")
    return program


def delays_of(libraries: Libraries) -> tuple[Delays, Fo4]:
    """LibraryError where the library has no delay tables, or no inverter."""
    delays = Delays(libraries.library.name, libraries.texts)
    return delays, fo4(libraries.library, delays, DONT_USE)


def time_block(
    block: Block,
    name: str,
    libraries: Libraries,
    clock_ns: float,
    *,
    timer: str | None = None,
    tool: str | None = None,
) -> TimingReport:
    """Map ``block`` for speed and time it by ``timer``: "opensta", "estimate" or None (either).

    LibraryError: the library has no delay tables. SynthesisError: the flow refuses the design.
    """
    delays, reference = delays_of(libraries)
    program = program_of(timer)
    design = convert(block, name)
    top = map_for_speed(design, libraries, reference, tool or default_tool())
    netlist = netlist_of(design, top, libraries, delays)
    if program is None:
        used, paths = ESTIMATE, estimate(netlist, reference)
    else:
        used, paths = opensta.paths(program, netlist, libraries, reference, clock_ns)
    library = libraries.library
    return TimingReport(
        name, library.name, used, clock_ns, reference, netlist.um2, library.nand2.area,
        netlist.flip_flops, tuple(paths),
    )  # fmt: skip
