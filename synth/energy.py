"""Energies of Liberty files: leakage, internal power by pin and edge, and what a cell computes.

Energies are in pJ and leakage is in mW, whatever the file has. A Liberty file gives the energy in
units of its load times the square of its voltage.
"""

import dataclasses

from synth.delays import Delays, Edges, Group, Source
from synth.formula import formula
from synth.liberty import LibraryError

_WATTS = {"": 1e3, "m": 1.0, "u": 1e-3, "n": 1e-6, "p": 1e-9, "f": 1e-12}  # in mW


@dataclasses.dataclass(frozen=True)
class Leakage:
    """mW while ``when`` holds; an empty ``when`` is of the states that no other entry names."""

    when: str
    mw: float


@dataclasses.dataclass(frozen=True)
class Internal:
    """pJ of a falling or a rising edge of ``pin``, over its slew and the load.

    related : the input that causes the edge of an output; empty for an input's own energy
    when : a formula over the pins; empty: the states that no other entry names
    rail : the supply that delivers it; empty where the file has one supply
    """

    pin: str
    related: str
    when: str
    rail: str
    energy: Edges


@dataclasses.dataclass(frozen=True)
class CellEnergy:
    """A cell: formulas (``synth.formula``) over its inputs and ``state``, and its energies.

    outputs : output -> formula
    next_state : formula of what a flip-flop takes at the rising edge of ``clock``; else empty
    """

    name: str
    inputs: tuple[str, ...]
    outputs: dict[str, str]
    clock: str
    next_state: str
    leakage: tuple[Leakage, ...]
    internal: tuple[Internal, ...]


class Energies:
    """Cells with their energies, read when requested.

    LibraryError: a file has no ``nom_voltage``, or a cell no energy at all.
    """

    def __init__(self, delays: Delays):
        self._delays = delays
        self._cells: dict[str, CellEnergy] = {}
        voltages = {source.header.simple.get("nom_voltage", "") for source in delays.sources}
        try:
            (self.volts,) = {float(text) for text in voltages}
        except ValueError:
            raise LibraryError(
                f"{delays.name}: power needs one nom_voltage, not {sorted(voltages)}"
            ) from None
        if not 0 < self.volts < 100:
            raise LibraryError(f"{delays.name}: nom_voltage must be positive, not {self.volts:g}")

    def __getitem__(self, name: str) -> CellEnergy:
        if name not in self._cells:
            self._cells[name] = self._cell(name, *self._delays.group(name))
        return self._cells[name]

    def _cell(self, name: str, group: Group, source: Source) -> CellEnergy:
        states, next_state, clock = self._flip_flop(name, group)
        inputs: list[str] = []
        outputs: dict[str, str] = {}
        grounds = {
            pin.arguments[0]
            for pin in group.all("pg_pin")
            if pin.arguments and pin.simple.get("pg_type", "").endswith("ground")
        }
        internal: list[Internal] = []
        for pin in group.all("pin"):
            for each in pin.arguments:
                if pin.simple.get("direction") == "input":
                    inputs.append(each)
                elif "function" in pin.simple:
                    outputs[each] = formula(pin.simple["function"], states)
                internal += self._internal(each, pin, grounds, source)
        if not internal:
            raise LibraryError(
                f"{self._delays.name}: {name} has no internal_power; --liberty needs power tables"
            )
        pins = {pin: pin for pin in (*inputs, *outputs)}
        # A state may be named by the flip-flop's own name too.
        names = pins | {state: text for state, text in states.items() if state not in pins}
        internal = [dataclasses.replace(each, when=formula(each.when, names)) for each in internal]
        return CellEnergy(
            name, tuple(inputs), outputs, clock, next_state,
            tuple(self._leakage(group, grounds, names, source)), tuple(internal),
        )  # fmt: skip

    def _flip_flop(self, name: str, group: Group) -> tuple[dict[str, str], str, str]:
        """({state: formula}, next state, clock)"""
        found = group.all("ff")
        if not found:
            return {}, "", ""
        flip_flop = found[0]
        clock = flip_flop.simple.get("clocked_on", "").strip("() ")
        if not clock.isidentifier() or {"clear", "preset"} & set(flip_flop.simple):
            raise LibraryError(f"{self._delays.name}: {name}: power needs plain rising flip-flops")
        states = dict(zip(flip_flop.arguments, ("state", "(~state)"), strict=False))
        return states, formula(flip_flop.simple.get("next_state", ""), states), clock

    def _internal(self, name: str, pin: Group, grounds: set[str], source: Source) -> list[Internal]:
        unit = source.load * source.volts**2  # pJ
        found = []
        for power in pin.all("internal_power"):
            rail = power.simple.get("related_pg_pin", "")
            if rail in grounds:
                continue  # the charge that the supply's table has already
            common = self._delays.table(power, "power", source, unit)
            falling, rising = (
                self._delays.table(power, f"{edge}_power", source, unit) or common
                for edge in ("fall", "rise")
            )
            for related in power.simple.get("related_pin", "").split() or [""]:
                found.append(
                    Internal(name, related, power.simple.get("when", ""), rail, (falling, rising))
                )
        return found

    def _leakage(
        self, group: Group, grounds: set[str], names: dict[str, str], source: Source
    ) -> list[Leakage]:
        text = source.header.simple.get("leakage_power_unit", "1nW").strip()
        number = text.rstrip("Wmunpf") or "1"
        unit = float(number) * _WATTS.get(text[len(number) :].removesuffix("W"), 1e-6)
        found = [
            Leakage(formula(each.simple.get("when", ""), names), float(each.simple["value"]) * unit)
            for each in group.all("leakage_power")
            if each.simple.get("related_pg_pin", "") not in grounds and "value" in each.simple
        ]
        if not any(not each.when for each in found) and "cell_leakage_power" in group.simple:
            found.append(Leakage("", float(group.simple["cell_leakage_power"]) * unit))
        return found
