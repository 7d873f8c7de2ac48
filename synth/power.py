"""Power of a mapped block from its recorded cycles: dynamic energy of every edge, and leakage.

A net with load C (pF) that changes takes C V**2 / 2 (pJ). Each edge of a pin takes the energy of
the library's table at the slew and the load of the timing estimate. No glitches: the cycles are
those of a simulation without delays. No wires, no clock tree, no RAM.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from synth.area import SynthesisError
from synth.delays import FALL, RISE, Fo4
from synth.energy import CellEnergy, Energies, Internal
from synth.formula import compiled
from synth.gates import Recorded, clock_of, waves
from synth.netlist import Netlist
from synth.timing import Times

# Where dynamic energy goes. "inputs": the pins that the ports and the RAMs drive.
GROUPS = ("clock", "registers", "logic", "inputs")


@dataclasses.dataclass(frozen=True)
class Stream:
    """Transfers of a stream, or cycles in which a port of one bit is 1."""

    name: str
    transfers: int


@dataclasses.dataclass(frozen=True)
class Power:
    """Energy per cycle of a run, and what it was made of.

    internal, switching : group -> pJ per cycle
    modules : module -> (pJ per cycle, mW of leakage); logic belongs to the module of the first
        register or port that it drives
    """

    cycles: int  # transitions from a cycle to the next one, both out of reset
    volts: float
    clock_ns: float
    internal: dict[str, float]
    switching: dict[str, float]
    leakage_mw: float
    modules: dict[str, tuple[float, float]]
    toggles: int  # of all nets but the clock
    streams: tuple[Stream, ...]

    def group_pj(self, group: str) -> float:
        return self.internal[group] + self.switching[group]

    @property
    def dynamic_pj(self) -> float:
        return sum(map(self.group_pj, GROUPS))

    @property
    def cycle_pj(self) -> float:
        """The energy of a clock period, leakage included."""
        return self.dynamic_pj + self.leakage_mw * self.clock_ns

    @property
    def milliwatts(self) -> float:
        return self.cycle_pj / self.clock_ns

    def each_pj(self, transfers: int, operations: int = 1) -> float | None:
        """pJ per operation of a run with so many transfers; None where there are none."""
        return self.cycle_pj * self.cycles / (transfers * operations) if transfers else None

    def to_json(self) -> dict[str, Any]:
        return {
            "cycles": self.cycles,
            "volts": self.volts,
            "clock_ns": self.clock_ns,
            "mw": round(self.milliwatts, 9),
            "pj_per_cycle": round(self.cycle_pj, 9),
            "leakage_mw": round(self.leakage_mw, 12),
            "toggles_per_cycle": round(self.toggles / self.cycles, 3),
            "groups": {
                group: {
                    "internal_pj": round(self.internal[group], 9),
                    "switching_pj": round(self.switching[group], 9),
                }
                for group in GROUPS
            },
            "modules": {
                name: {"pj_per_cycle": round(dynamic, 9), "leakage_mw": round(leakage, 12)}
                for name, (dynamic, leakage) in self.modules.items()
            },
            "streams": {
                each.name: {
                    "transfers": each.transfers,
                    "pj_per_transfer": round(self.each_pj(each.transfers) or 0.0, 9) or None,
                }
                for each in self.streams
            },
        }


class _Meter:
    """Counts of edges and of states over the cycles that count."""

    def __init__(
        self, netlist: Netlist, energies: Energies, times: Times, recorded: Recorded, counted: int
    ):
        self.netlist, self.energies, self.times = netlist, energies, times
        self.states = recorded.states
        self.waves = waves(netlist, energies, times, recorded)
        self.clock = clock_of(netlist)
        self.every = (1 << recorded.cycles) - 1
        # Bit t: the transition from cycle t to cycle t + 1 counts.
        self.counted = counted
        self.cycles = counted.bit_count()

    def edges(self, net: int) -> tuple[int, int]:
        """Transitions that fall, and that rise."""
        wave = self.waves.get(net, 0)
        changed = (wave ^ wave >> 1) & self.counted
        return changed & wave, changed & ~wave

    def internal(self, number: int) -> dict[str, float]:
        """pin -> pJ of all its edges."""
        instance = self.netlist.cells[number]
        cell = self.energies[instance.cell.name]
        by_pin: dict[tuple[str, str], list[Internal]] = collections.defaultdict(list)
        for each in cell.internal:
            if each.pin in instance.nets:
                by_pin[each.pin, each.rail].append(each)
        found: dict[str, float] = collections.defaultdict(float)
        for (pin, _), entries in by_pin.items():
            net = instance.nets[pin]
            is_clock = net == self.clock
            edges = (self.counted, self.counted) if is_clock else self.edges(net)
            for edge in (FALL, RISE):
                if edges[edge]:
                    # The clock rises in the state before the edge; all else is seen after it.
                    later = not (is_clock and edge == RISE)
                    found[pin] += self._of_edges(
                        number, cell, pin, entries, edge, edges[edge], later=later
                    )
        return found

    def _of_edges(
        self, number: int, cell: CellEnergy, pin: str, entries: Sequence[Internal], edge: int,
        events: int, *, later: bool,
    ) -> float:  # fmt: skip
        masks = self._matches(number, cell, entries, events, later=later)
        if pin in cell.outputs:
            counts = [0.0] * len(entries)
            for half in zip(*masks, strict=True):
                for place, count in enumerate(_shares(half, events)):
                    counts[place] += count
        else:
            counts = [sum(mask.bit_count() for mask in halves) for halves in masks]
        return sum(
            count * self._table(number, each, edge)
            for count, each in zip(counts, entries, strict=True)
            if count
        ) / len(masks[0])

    def _table(self, number: int, entry: Internal, edge: int) -> float:
        table = entry.energy[edge]
        if table is None:
            return 0.0
        instance = self.netlist.cells[number]
        net = instance.nets[entry.pin]
        if not entry.related:
            return table.at(self._slew(net, edge), 0.0)
        source = instance.nets.get(entry.related)
        sense = next((arc.sense for arc in instance.cell.pins[entry.pin].arcs
                      if arc.source == entry.related), 0)  # fmt: skip
        if source is None or source == self.clock:
            slew = 0.0
        elif sense:
            slew = self._slew(source, edge if sense > 0 else 1 - edge)
        else:
            slew = (self._slew(source, FALL) + self._slew(source, RISE)) / 2
        return table.at(slew, self.times.loads.get(net, (0.0, 0.0))[edge])

    def _slew(self, net: int, edge: int) -> float:
        return 0.0 if net == self.clock else self.times.slew.get(net, (0.0, 0.0))[edge]

    def _values(self, number: int, cell: CellEnergy, *, later: bool) -> dict[str, int]:
        instance = self.netlist.cells[number]
        values = {pin: self.waves.get(net, 0) for pin, net in instance.nets.items()}
        values |= {pin: self.every * value for pin, value in instance.ties.items()}
        values |= {pin: 0 for pin in (*cell.inputs, *cell.outputs) if pin not in values}
        values["state"] = self.states.get(number, 0)
        if later:
            values = {pin: wave >> 1 for pin, wave in values.items()}
        return values

    def _holds(self, cell: CellEnergy, values: dict[str, int], when: str) -> list[int]:
        """Cycles in which ``when`` holds, in each half of the clock of a flip-flop."""
        names = ("state", *cell.inputs, *cell.outputs)
        function = compiled(when, names)
        halves = [{cell.clock: 0}, {cell.clock: self.every}] if cell.clock else [{}]
        return [
            function(*(half.get(name, values[name]) for name in names)) & self.every
            for half in halves
        ]

    def _matches(
        self, number: int, cell: CellEnergy, entries: Sequence[Any], events: int, *, later: bool
    ) -> list[list[int]]:
        """Says which of ``events`` each entry is for, in each half of the clock of a flip-flop."""
        values = self._values(number, cell, later=later)
        nets = self.netlist.cells[number].nets
        halves = 2 if cell.clock else 1
        holds = [self._holds(cell, values, each.when) if each.when else None for each in entries]
        named: dict[str, list[int]] = {}  # by related pin: states that an entry names
        for each, cycles in zip(entries, holds, strict=True):
            if cycles is not None:
                known = named.setdefault(getattr(each, "related", ""), [0] * halves)
                for half, of_half in enumerate(cycles):
                    known[half] |= of_half
        masks = []
        for each, cycles in zip(entries, holds, strict=True):
            related = getattr(each, "related", "")
            cause = events
            if related and nets.get(related) != self.clock:
                fallen, risen = self.edges(nets[related]) if related in nets else (0, 0)
                cause &= fallen | risen
            if cycles is None:
                others = named.get(related, [0] * halves)
                cycles = [self.every & ~other for other in others]
            masks.append([cause & of_half for of_half in cycles])
        return masks

    def leakage(self, number: int) -> float:
        """mW, the mean over the cycles that count."""
        cell = self.energies[self.netlist.cells[number].cell.name]
        masks = self._matches(number, cell, cell.leakage, self.counted, later=True)
        halves = [
            mask.bit_count() * each.mw
            for each, of_entry in zip(cell.leakage, masks, strict=True)
            for mask in of_entry
        ]
        return sum(halves) / (2 if cell.clock else 1) / self.cycles


def _shares(masks: Sequence[int], events: int) -> list[float]:
    """Counts the events that each entry is for.

    An event of k entries counts 1/k for each of them.

    An event without an entry, which no single input causes, counts for all.
    """
    number = len(masks)
    exactly = [events] + [0] * number  # events that so many entries are for
    for mask in masks:
        for k in range(number, 0, -1):
            exactly[k] = exactly[k] & ~mask | exactly[k - 1] & mask
        exactly[0] &= ~mask
    each = exactly[0].bit_count() / number
    present = [(k, events_of) for k, events_of in enumerate(exactly) if k and events_of]
    return [
        each + sum((mask & events_of).bit_count() / k for k, events_of in present) for mask in masks
    ]


def _owners(netlist: Netlist, times: Times, top: str) -> list[str]:
    """Module of each cell: its own, or that of the first register or port that it drives."""
    readers: dict[int, list[int]] = {}
    for number, instance in enumerate(netlist.cells):
        for pin, net in instance.nets.items():
            if pin in instance.cell.pins and instance.cell.pins[pin].is_input:
                readers.setdefault(net, []).append(number)
    ports = {net: name for net, _, name in netlist.sinks}
    owners = [top] * len(netlist.cells)
    for number in reversed(times.order()):
        instance = netlist.cells[number]
        if any(pin.is_clock for pin in instance.cell.pins.values()):
            owners[number] = netlist.module_of(instance.name)
            continue
        for pin, net in instance.nets.items():
            description = instance.cell.pins.get(pin)
            if description is None or description.is_input:
                continue
            if net in ports:
                owners[number] = netlist.module_of(ports[net])
            elif net in readers:
                first = readers[net][0]
                reader = netlist.cells[first]
                is_register = any(each.is_clock for each in reader.cell.pins.values())
                owners[number] = netlist.module_of(reader.name) if is_register else owners[first]
            break
    return owners


def _ports(top: dict[str, Any], found: dict[int, int], every: int) -> dict[str, int]:
    """Waves of the ports of one bit."""
    values = {}
    for name, entry in top["ports"].items():
        if len(entry["bits"]) == 1:
            bit = entry["bits"][0]
            values[name] = found.get(bit, 0) if isinstance(bit, int) else every * (bit == "1")
    return values


def measure(
    top: dict[str, Any],
    netlist: Netlist,
    energies: Energies,
    fo4: Fo4,
    recorded: Recorded,
    clock_ns: float,
    name: str,
    steps: Sequence[str] = (),
    times: Times | None = None,
) -> Power:
    """Power of ``netlist`` over ``recorded``. ``steps``: further ports whose cycles are counted.

    A transition counts where ``rst`` is 0 before and after it. times: those of ``netlist``, if
    they are known.
    """
    times = times or Times(netlist, fo4)
    every = (1 << recorded.cycles) - 1
    reset = 0
    if "rst" in top["ports"]:
        (net,) = top["ports"]["rst"]["bits"]
        reset = recorded.nets.get(net, 0) if net in times.loads else 0  # else it resets nothing
    counted = ~(reset | reset >> 1) & every >> 1
    if not counted:
        raise SynthesisError("the bench has run no two cycles out of reset")
    meter = _Meter(netlist, energies, times, recorded, counted)
    owners = _owners(netlist, times, name)
    volts = energies.volts
    internal = dict.fromkeys(GROUPS, 0.0)
    switching = dict.fromkeys(GROUPS, 0.0)
    modules: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    # Pins inside the block: what a port drives outside is another block's.
    loads: dict[int, float] = collections.defaultdict(float)
    for instance in netlist.cells:
        for pin, net in instance.nets.items():
            if pin in instance.cell.pins and instance.cell.pins[pin].is_input:
                loads[net] += sum(instance.cell.pins[pin].capacitance) / 2

    def toggles(net: int) -> int:
        fallen, risen = meter.edges(net)
        return fallen.bit_count() + risen.bit_count()

    leakage = 0.0
    for number, instance in enumerate(netlist.cells):
        cell = energies[instance.cell.name]
        group = "registers" if cell.clock else "logic"
        owner = modules[owners[number]]
        for pin, energy in meter.internal(number).items():
            internal["clock" if instance.nets[pin] == meter.clock else group] += energy
            owner[0] += energy
        for pin in cell.outputs:
            if pin in instance.nets:
                net = instance.nets[pin]
                energy = toggles(net) * loads[net] * volts**2 / 2
                switching[group] += energy
                owner[0] += energy
        if cell.clock:
            net = instance.nets[cell.clock]
            energy = meter.cycles * sum(instance.cell.pins[cell.clock].capacitance) / 2 * volts**2
            switching["clock"] += energy
            owner[0] += energy
        mw = meter.leakage(number)
        leakage += mw
        owner[1] += mw
    for net in {net for net, _, _ in netlist.sources} - {meter.clock}:
        energy = toggles(net) * loads[net] * volts**2 / 2
        switching["inputs"] += energy
        modules[name][0] += energy
    ports = _ports(top, meter.waves, every)
    counts = []
    for port, wave in ports.items():
        stream = port.removesuffix("__valid")
        if stream != port and f"{stream}__ready" in ports:
            moved = wave & ports[f"{stream}__ready"]
            counts.append(Stream(stream, (moved & counted).bit_count()))
        elif port in steps:
            counts.append(Stream(port, (wave & counted).bit_count()))
    cycles = meter.cycles
    return Power(
        meter.cycles, volts, clock_ns,
        {group: energy / cycles for group, energy in internal.items()},
        {group: energy / cycles for group, energy in switching.items()},
        leakage,
        {each: (dynamic / cycles, mw) for each, (dynamic, mw) in sorted(modules.items())},
        sum(toggles(net) for net in meter.waves if net != meter.clock),
        tuple(counts),
    )  # fmt: skip
