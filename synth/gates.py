"""A mapped netlist that runs: as Verilog of its cells' functions, and over recorded cycles.

The Verilog has the block's ports, so that the block's own bench drives it. It records every port,
every register and every output of a RAM, one line per clock cycle. ``waves`` computes all other
nets from the record. A wave is an integer: bit t is the value in cycle t.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from hdl.back.verilog import Design
from synth.area import SynthesisError, is_macro
from synth.energy import Energies
from synth.formula import compiled
from synth.modules import module_texts
from synth.netlist import Netlist
from synth.timing import Times

RECORD = "record.hex"  # in the folder of a run
_PART = 256  # bits that are written at a time, a multiple of 4
_NAME = re.compile(r"[A-Za-z_]\w*")


def clock_of(netlist: Netlist) -> int:
    """The one net that clocks the flip-flops. SynthesisError: none, or several."""
    clocks = {
        instance.nets[pin]
        for instance in netlist.cells
        for pin in instance.nets
        if pin in instance.cell.pins and instance.cell.pins[pin].is_clock
    }
    if len(clocks) != 1:
        raise SynthesisError(f"power needs one clock; the netlist has {len(clocks)}")
    return clocks.pop()


def _states(netlist: Netlist, energies: Energies) -> list[int]:
    """Numbers of the flip-flops."""
    return [n for n, each in enumerate(netlist.cells) if energies[each.cell.name].next_state]


def _bit(bit: Any) -> str:
    return f"n{bit}" if isinstance(bit, int) else "1'b1" if bit == "1" else "1'b0"


def _joined(bits: list[Any]) -> str:
    return "{" + ", ".join(_bit(bit) for bit in reversed(bits)) + "}"


def verilog(design: Design, top: dict[str, Any], netlist: Netlist, energies: Energies) -> str:
    """Module ``design.name`` of the cells' functions, with ``design``'s RAMs; it writes RECORD."""
    ports, wires, body = [], set(), []
    for name, entry in top["ports"].items():
        bits = entry["bits"]
        ports.append(f"  {entry['direction']} wire [{len(bits) - 1}:0] {name}")
        if entry["direction"] == "output":
            body.append(f"assign {name} = {_joined(bits)};")
        else:
            body += [f"assign n{bit} = {name}[{n}];" for n, bit in enumerate(bits)]
        wires |= {bit for bit in bits if isinstance(bit, int)}
    states = set(_states(netlist, energies))
    clocked = []
    for number, instance in enumerate(netlist.cells):
        cell = energies[instance.cell.name]
        values = {pin: f"n{net}" for pin, net in instance.nets.items()}
        values |= {pin: f"1'b{int(value)}" for pin, value in instance.ties.items()}
        values["state"] = f"s{number}"
        wires |= set(instance.nets.values())

        def over(text: str, values: dict[str, str] = values) -> str:
            return _NAME.sub(lambda found: values[found[0]], text)

        if number in states:
            body.append(f"reg s{number};")
            clocked.append(f"s{number} <= {over(cell.next_state)};")
        for pin, text in cell.outputs.items():
            if pin in instance.nets:
                body.append(f"assign n{instance.nets[pin]} = {over(text)};")
    macros = {module.name for module in design.modules[:-1] if is_macro(module.block)}
    used = set()
    for number, entry in enumerate(top["cells"].values()):
        if entry["type"] in macros:
            used.add(entry["type"])
            pins = ", ".join(f".{p}({_joined(b)})" for p, b in entry["connections"].items())
            body.append(f"{entry['type']} m{number} ({pins});")
            wires |= {b for bits in entry["connections"].values() for b in bits if type(b) is int}
    recorded = [f"n{net}" for net, _, _ in netlist.sources] + [f"s{n}" for n in sorted(states)]
    clock = f"n{clock_of(netlist)}"
    *parts, last = _in_digits(recorded)
    texts = module_texts(design.verilog)
    return "\n".join(
        [
            *(texts[name] for name in sorted(used)),
            f"module {design.name}(",
            ",\n".join(ports),
            ");",
            *(f"wire n{net};" for net in sorted(wires)),
            *body,
            f"always @(posedge {clock}) begin",
            *clocked,
            "end",
            "integer record;",
            f'initial record = $fopen("{RECORD}", "w");',
            f"always @(posedge {clock}) begin",
            *(f'$fwrite(record, "%x", {{{", ".join(part)}}});' for part in parts),
            f'$fwrite(record, "%x\\n", {{{", ".join(last)}}});',
            "end",
            "endmodule",
            "",
        ]
    )


def _in_digits(bits: list[str]) -> list[list[str]]:
    """Parts of at most _PART bits, whose digits joined are those of all bits.

    g++ takes gigabytes for a word of 10,000 bits, each of a variable of its own.
    """
    first = len(bits) % _PART
    parts = [bits[:first]] if first else []
    return parts + [bits[at : at + _PART] for at in range(first, len(bits), _PART)]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Waves of what was recorded: of nets, and of flip-flops by number."""

    cycles: int
    nets: dict[int, int]
    states: dict[int, int]


def read_record(text: str, netlist: Netlist, energies: Energies) -> Recorded:
    """SynthesisError: ``text`` holds no two cycles."""
    lines = text.split()
    states = _states(netlist, energies)
    width = len(netlist.sources) + len(states)
    digits = -(-width // 4)
    if len(lines) > 1 and len(lines[-1]) < digits:
        del lines[-1]  # the simulator ended within it
    if len(lines) < 2:
        raise SynthesisError(f"the bench has run {len(lines)} clock cycles; power needs two")
    even = digits + digits % 2
    rows = np.frombuffer(bytes.fromhex("".join(line.zfill(even) for line in lines)), np.uint8)
    bits = np.unpackbits(rows.reshape(len(lines), -1), axis=1)[:, even * 4 - width :]
    columns = np.packbits(bits.T, axis=1, bitorder="little")
    found = [int.from_bytes(column.tobytes(), "little") for column in columns]
    nets = [net for net, _, _ in netlist.sources]
    return Recorded(
        len(lines),
        dict(zip(nets, found, strict=False)),
        dict(zip(states, found[len(nets) :], strict=True)),
    )


def waves(netlist: Netlist, energies: Energies, times: Times, recorded: Recorded) -> dict[int, int]:
    """net -> wave, of every net.

    SynthesisError: a recorded register is not what the gates computed in the cycle before.
    """
    every = (1 << recorded.cycles) - 1
    found = dict(recorded.nets)
    for number in times.order():
        instance = netlist.cells[number]
        cell = energies[instance.cell.name]
        values = [recorded.states.get(number, 0)]
        values += [
            found.get(instance.nets[pin], 0)
            if pin in instance.nets and not cell.next_state
            else every * instance.ties.get(pin, False)
            for pin in cell.inputs
        ]
        for pin, text in cell.outputs.items():
            if pin in instance.nets:
                function = compiled(text, ("state", *cell.inputs))
                found[instance.nets[pin]] = function(*values) & every
    for number, state in recorded.states.items():
        instance = netlist.cells[number]
        cell = energies[instance.cell.name]
        values = [state] + [
            found.get(instance.nets[pin], 0)
            if pin in instance.nets
            else every * instance.ties.get(pin, False)
            for pin in cell.inputs
        ]
        following = compiled(cell.next_state, ("state", *cell.inputs))(*values)
        wrong = (following ^ state >> 1) & every >> 1
        if wrong:
            cycle = (wrong & -wrong).bit_length() - 1
            raise SynthesisError(
                f"register {instance.name} has another value after cycle {cycle} than its gates"
            )
    return found
