"""A routed netlist of nextpnr-ecp5 as Verilog for simulation.

``--write`` gives the cells of the device with their connections, after packing, placement and
routing. Here each LUT is an expression and each other cell an instance of ``cells.v``. A cell, mode
or parameter that is not known is refused.

An input that the netlist leaves open is 1, as in the device, and an inverted open input is 0. The
local reset of a flip-flop is the exception: open, it never resets.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from synth.fpga.tools import FpgaError

CELLS = Path(__file__).parent / "cells.v"
_MODES = {"NORMAL": 0, "WRITETHROUGH": 1, "READBEFOREWRITE": 2}
_WIDTHS = (1, 2, 4, 9, 18, 36)
# Values of parameters that a cell may have without being modelled.
_PLAIN = {
    "MULT18X18D": {
        "REG_INPUTA_CLK": "NONE", "REG_INPUTB_CLK": "NONE", "REG_INPUTC_CLK": "NONE",
        "REG_PIPELINE_CLK": "NONE", "REG_OUTPUT_CLK": "NONE", "SOURCEB_MODE": "B_SHIFT",
        "MULT_BYPASS": "DISABLED", "CAS_MATCH_REG": "FALSE",
    },
    "DP16KD": {"REGMODE_A": "NOREG", "REGMODE_B": "NOREG"},
}  # fmt: skip


class _Cell:
    """A cell of the netlist: its parameters, and expressions of its connections."""

    def __init__(self, name: str, found: Mapping[str, Any]):
        self.name, self.type = name, found["type"]
        self._parameters = found["parameters"]
        self._connections = found["connections"]
        for parameter, value in _PLAIN.get(self.type, {}).items():
            if self.text(parameter, value) != value:
                self.refuse(f"{parameter} is {self.text(parameter)}")

    def refuse(self, why: str) -> None:
        raise FpgaError(f"routed netlist: {self.type} {self.name}: {why}: there is no model of it")

    def text(self, parameter: str, default: str = "") -> str:
        """A parameter; Yosys ends a text of digits by a space."""
        return str(self._parameters.get(parameter, default)).strip()

    def number(self, parameter: str) -> int:
        return int(self.text(parameter, "0"), 2)

    def choice(self, parameter: str, values: Mapping[str, Any], default: str) -> Any:
        found = self.text(parameter, default)
        if found not in values:
            self.refuse(f"{parameter} is {found}")
        return values[found]

    def is_open(self, port: str) -> bool:
        return not self._connections.get(port)

    def net(self, port: str) -> str | None:
        """The net of an output; None: nobody reads it."""
        found = self._connections.get(port)
        return f"n{found[0]}" if found else None

    def wire(self, port: str, open_is: str = "1'b1") -> str:
        """An input, through the multiplexer that the device has before it."""
        found = self._connections.get(port)
        value = f"n{found[0]}" if found else open_is
        mux = self.text(f"{port}MUX", port)
        if mux in ("0", "1"):
            return f"1'b{mux}"
        if mux == "INV":
            return f"~{value}"
        if mux != port:
            self.refuse(f"{port}MUX is {mux}")
        return value

    def wires(self, port: str, count: int, open_is: str = "1'b1") -> str:
        """Inputs ``port0`` to ``port(count - 1)`` as one word."""
        bits = [self.wire(f"{port}{n}", open_is) for n in reversed(range(count))]
        return f"{{{', '.join(bits)}}}"


def _lut(cell: _Cell) -> Iterator[str]:
    init = cell.text("INITVAL", "0" * 16)
    index = f"{{{', '.join(cell.wire(p) for p in 'DCBA')}}}"
    if cell.net("F"):
        yield f"assign {cell.net('F')} = 16'b{init} >> {index};"
    if cell.net("OFX"):
        if not cell.is_open("FXA"):  # an odd LUT: the multiplexer of two pairs
            low, high = cell.net("FXA"), cell.net("FXB")
        else:
            low, high = cell.net("F"), cell.net("F1")
            if low is None:
                low = f"(1'b1 & (16'b{init} >> {index}))"
        yield f"assign {cell.net('OFX')} = {cell.wire('M')} ? {high} : {low};"


def _carry(cell: _Cell) -> Iterator[str]:
    inject = cell.choice("CCU2_INJECT1", {"NO": 0, "YES": 1}, "NO")
    ends = [f".{p.lower()}({cell.wire(p)})" for p in "ABCD"]
    ends.append(f".cin({cell.wire('FCI')})")
    ends += [f".{own}({cell.net(p)})" for p, own in (("F", "s"), ("FCO", "cout")) if cell.net(p)]
    init = cell.text("INITVAL", "0" * 16)
    yield f"ecp5_carry #({inject}) {{}} (.init(16'b{init}), {', '.join(ends)});"


def _lut_ram(cell: _Cell) -> Iterator[str]:
    """Bits of the read address are inputs D, B, C and A of the LUT, the lowest first."""
    init = cell.text("INITVAL", "0" * 16)
    read = f"{{{', '.join(cell.wire(p) for p in 'DCBA')}}}"
    write = f"{{{', '.join(cell.wire(f'WAD{n}') for n in (0, 2, 1, 3))}}}"
    yield (
        f"ecp5_lut_ram {{}} (.init(16'b{init}), .clk({cell.wire('WCK')}), .we({cell.wire('WRE')}), "
        f".d({cell.wire('WD')}), .wa({write}), .ra({read}), .q({cell.net('F')}));"
    )


def _comb(cell: _Cell) -> Iterator[str]:
    mode = cell.text("MODE", "LOGIC")
    if mode in ("LOGIC", ""):
        yield from _lut(cell)
    elif mode == "CCU2":
        yield from _carry(cell)
    elif mode == "DPRAM":
        yield from _lut_ram(cell)
    elif mode != "RAMW_BLOCK":  # what the write port of a RAM covers
        cell.refuse(f"MODE is {mode}")


# Inputs of a RAM's write port -> what they become.
_WRITE = {
    "D0": "WADO0", "B0": "WADO1", "C0": "WADO2", "A0": "WADO3",
    "C1": "WDO0", "A1": "WDO1", "D1": "WDO2", "B1": "WDO3",
}  # fmt: skip


def _write_port(cell: _Cell) -> Iterator[str]:
    for port, made in _WRITE.items():
        if cell.net(made):
            yield f"assign {cell.net(made)} = {cell.wire(port)};"


def _ff(cell: _Cell) -> Iterator[str]:
    is_set = cell.choice("REGSET", {"RESET": 0, "SET": 1}, "RESET")
    is_async = cell.choice("SRMODE", {"LSR_OVER_CE": 0, "ASYNC": 1}, "LSR_OVER_CE")
    data = cell.choice("SD", {"1": "DI", "0": "M"}, "1")
    gsr = cell.choice("GSR", {"ENABLED": "gsr_n", "DISABLED": "1'b1"}, "ENABLED")
    reset = "1'b0" if cell.is_open("LSR") else cell.wire("LSR")
    yield (
        f"ecp5_ff #({is_set}, {is_async}) {{}} (.clk({cell.wire('CLK')}), .ce({cell.wire('CE')}), "
        f".lsr({reset}), .gsr_n({gsr}), .d({cell.wire(data)}), .q({cell.net('Q')}));"
    )


def _multiplier(cell: _Cell) -> Iterator[str]:
    made = [cell.net(f"P{n}") for n in range(36)]
    ends = [f".a({cell.wires('A', 18)})", f".b({cell.wires('B', 18)})"]
    ends += [f".signed_{p.lower()}({cell.wire(f'SIGNED{p}')})" for p in "AB"]
    yield f"wire [35:0] {{}}_p; ecp5_multiplier {{}} ({', '.join(ends)}, .p({{}}_p));"
    yield from (f"assign {net} = {{}}_p[{n}];" for n, net in enumerate(made) if net)


def _block_ram(cell: _Cell) -> Iterator[str]:
    widths = {side: cell.number(f"DATA_WIDTH_{side}") for side in "AB"}
    for side, width in widths.items():
        if width not in _WIDTHS:
            cell.refuse(f"DATA_WIDTH_{side} is {width}")
        if cell.wire(f"RST{side}") not in ("~1'b1", "1'b0"):
            cell.refuse(f"RST{side} is used")
        chosen = [cell.wire(f"CS{side}{n}") for n in range(3)]
        if cell.text(f"CSDECODE_{side}", "0b000") != "0b000" or set(chosen) - {"~1'b1", "1'b0"}:
            cell.refuse(f"CS{side} is used")
    if widths["A"] == 36 and not cell.is_open("WEB"):
        cell.refuse("port B writes beside a port of 36 bits")
    modes = [cell.choice(f"WRITEMODE_{side}", _MODES, "NORMAL") for side in "AB"]
    ends = []
    for side in "AB":
        low = side.lower()
        ends += [
            f".clk_{low}({cell.wire(f'CLK{side}')})", f".ce_{low}({cell.wire(f'CE{side}')})",
            f".we_{low}({cell.wire(f'WE{side}')})", f".ad_{low}({cell.wires(f'AD{side}', 14)})",
            f".di_{low}({cell.wires(f'DI{side}', 18)})", f".do_{low}({{}}_{low})",
        ]  # fmt: skip
    parameters = ", ".join(map(str, [widths["A"], widths["B"], *modes]))
    yield "wire [17:0] {}_a, {}_b;"
    yield (
        f"ecp5_block_ram #({parameters}) {{}} (.init(18432'b{_initial(cell)}), {', '.join(ends)});"
    )
    for side in "AB":
        for n in range(18):
            net = cell.net(f"DO{side}{n}")
            if net:
                yield f"assign {net} = {{}}_{side.lower()}[{n}];"


def _initial(cell: _Cell) -> str:
    """All words of a RAM, the last one first: 16 of 20 bits in a parameter, of which 18 count."""
    words = []
    for n in range(64):
        text = cell.text(f"INITVAL_{n:02X}", "0" * 320)
        value = int(text[2:], 16) if text.startswith("0x") else int(text, 2)
        words += [value >> 20 * k & 0x3FFFF for k in range(16)]
    return "".join(f"{word:018b}" for word in reversed(words))


def _pin(cell: _Cell) -> Iterator[str]:
    direction = cell.text("DIR")
    if direction == "INPUT":
        yield f"assign {cell.net('O')} = {cell.net('B')};"
    elif direction == "OUTPUT":
        yield f"assign {cell.net('B')} = {cell.wire('I')};"
    else:
        cell.refuse(f"DIR is {direction}")


def _buffer(cell: _Cell) -> Iterator[str]:
    yield f"assign {cell.net('CLKO')} = {cell.net('CLKI')};"


def _global_reset(cell: _Cell) -> Iterator[str]:
    if cell.text("MODE", "ACTIVE_LOW") != "ACTIVE_LOW":
        cell.refuse(f"MODE is {cell.text('MODE')}")
    yield f"assign gsr_n = {cell.wire('GSR')};"


_WRITERS = {
    "TRELLIS_COMB": _comb, "TRELLIS_RAMW": _write_port, "TRELLIS_FF": _ff,
    "MULT18X18D": _multiplier, "DP16KD": _block_ram, "TRELLIS_IO": _pin, "DCCA": _buffer,
    "GSR": _global_reset,
}  # fmt: skip


def routed_verilog(found: Mapping[str, Any], top: str) -> str:
    """Verilog of a netlist that nextpnr has written; ``cells.v`` comes with it.

    FpgaError: a cell, or a use of one, without a model.
    """
    module = found["modules"][top]
    lines, nets = [], set()
    has_reset = False
    for number, (name, each) in enumerate(module["cells"].items()):
        if each["type"] not in _WRITERS:
            raise FpgaError(f"routed netlist: {each['type']} {name}: there is no model of it")
        has_reset |= each["type"] == "GSR"
        cell = _Cell(name, each)
        lines += [line.replace("{}", f"u{number}") for line in _WRITERS[each["type"]](cell)]
        nets |= {bits[0] for bits in each["connections"].values() if bits}
    ports, joined = [], []
    for name, port in module["ports"].items():
        plain = re.sub(r"\W", "_", name)
        ports.append(f"{port['direction']} {plain}")
        (bit,) = port["bits"]
        nets.add(bit)
        ends = (f"n{bit}", plain) if port["direction"] == "input" else (plain, f"n{bit}")
        joined.append("assign {} = {};".format(*ends))
    declared = [f"wire n{net};" for net in sorted(nets)]
    if not has_reset:
        declared.append("assign gsr_n = 1'b1;")
    text = "\n".join([
        f"module {top}({', '.join(ports)});", "wire gsr_n;", *declared, *joined, *lines, "endmodule"
    ])  # fmt: skip
    return f"{CELLS.read_text()}\n{text}\n"


def read_routed(file: Path, top: str) -> str:
    """``routed_verilog`` of a file."""
    return routed_verilog(json.loads(file.read_text()), top)
