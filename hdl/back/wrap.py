"""A block's ports under AXI's names: module NAME_axi around NAME (docs/axi.md).

Wires only: no state, no logic but the inverted reset.
"""

import dataclasses
import itertools
from collections.abc import Iterable

from amaranth.lib import data, stream

from hdl.axi.signature import Axi4, Axi4Read, Axi4Write, AxiLite
from hdl.back.description import BOOL, Codes, word
from hdl.back.description import fields as described_fields
from hdl.back.interface import Face, Interface

_AXI = {
    **dict.fromkeys((Axi4, Axi4Read, Axi4Write), ("AXI4", "axi")),
    AxiLite: ("AXI4-Lite", "axil"),
}


@dataclasses.dataclass(frozen=True)
class _Bus:
    """Some ports of the block that become one bus; ``suffix`` is a channel's name."""

    kind: str  # "AXI4-Stream", "AXI4", "AXI4-Lite", or "" for ports that keep their names
    prefix: str
    channel: str = "t"
    is_source: bool = False  # the block gives valid


@dataclasses.dataclass(frozen=True)
class _Outer:
    """A port of the wrapper and how it joins the block's port."""

    name: str
    direction: str
    width: int
    role: str
    meaning: str
    value: str = ""  # of an output: what drives it
    fields: tuple = ()
    kind: dict = dataclasses.field(default_factory=lambda: dict(BOOL))

    def describe(self) -> dict:
        described = {
            "name": self.name,
            "direction": self.direction,
            "width": self.width,
            "role": self.role,
            "meaning": self.meaning,
        }
        return described | self.kind | ({"fields": list(self.fields)} if self.fields else {})


def wrapper(interface: Interface, name: str) -> tuple[str, list[dict]]:
    """Verilog of module ``{name}_axi`` and its ports as NAME.json lists them.

    Each stream S becomes ``s_axis_S_*`` (into the block) or ``m_axis_S_*``:

        tvalid, tready
        tdata   the payload without its field ``last``, with zeros up to a multiple of 8 bits;
                none if the payload has no other field
        tlast   where the payload has ``last``

    A member ``axi`` or ``axi_X`` of ``axi4``, ``axi4_read`` or ``axi4_write`` becomes ``m_axi_*``
    or ``m_axi_X_*``. One of ``axi_lite`` becomes ``s_axil_*`` in the same way. Other ports keep
    their names. ``clk`` and ``rst`` are ``aclk`` and ``aresetn``.
    """
    outers = [
        _Outer("aclk", "input", 1, "clock", "rising edge"),
        _Outer("aresetn", "input", 1, "reset", "synchronous, active low"),
    ]
    assigns = []
    connections = {"clk": "aclk", "rst": "~aresetn"}
    connections = {port: connections[port] for port in interface.clocked}
    for group in _groups(interface.ports):
        connections |= {port.name: port.name for port in group}
        bus = _bus(group)
        if not bus.kind:
            for port in group:  # ports that share no bus: each has a meaning of its own
                kind = word(port.shape, port.kind, Codes(), port.name)
                outers.append(
                    _Outer(port.name, port.direction, port.width, "signal", port.meaning, kind=kind)
                )
            continue
        made, inner = _channel(bus, group)
        outers += made
        assigns += inner
    names = [outer.name for outer in outers]
    twice = {each for each in names if names.count(each) > 1}
    if twice:
        raise ValueError(f"{name}_axi: two ports would be called {', '.join(sorted(twice))}")
    wires = [port for port in interface.ports if connections[port.name] not in names]
    return (
        _verilog(name, outers, wires, assigns, connections),
        [outer.describe() for outer in outers],
    )


def _groups(ports: Iterable[Face]) -> list[list[Face]]:
    """Ports that share all but the last part of their path, in order."""
    return [list(group) for _, group in itertools.groupby(ports, lambda port: port.path[:-1])]


def _bus(group: list[Face]) -> _Bus:
    """The bus that the ports of one channel belong to."""
    path, signature, axi, at = group[0].path, None, None, 0
    for at, signature in group[0].signatures:
        if isinstance(signature, tuple(_AXI)):
            kind = next(kind for kind in _AXI if isinstance(signature, kind))
            axi = _AXI[kind], path[:at]
    if not isinstance(signature, stream.Signature):
        return _Bus("", "")
    by_field = {port.path[-1]: port for port in group}
    outward = next(
        (by_field[field].direction == way)
        for field, way in (("valid", "output"), ("payload", "output"), ("ready", "input"))
        if field in by_field
    )
    if axi is None:
        prefix = f"{'m' if outward else 's'}_axis_{'_'.join(map(str, path[:at]))}_"
        return _Bus("AXI4-Stream", prefix, "t", outward)
    (kind, short), where = axi
    channel = path[at - 1]
    # The manager gives the addresses and the data written, and takes all other channels.
    is_manager = outward == (channel in ("ar", "aw", "w"))
    member = "_".join(map(str, where)).removeprefix(short).strip("_")
    prefix = f"{'m' if is_manager else 's'}_{short}_{member}{'_' if member else ''}"
    return _Bus(kind, prefix, channel, outward)


def _channel(bus: _Bus, group: list[Face]):
    """The outer ports of one stream, and the assignments to the block's inputs."""
    ports = {port.path[-1]: port for port in group}
    source, prefix, meaning = bus.is_source, f"{bus.prefix}{bus.channel}", group[0].meaning
    outers, assigns = [], []

    def add(suffix: str, outward: bool, width: int, value: str, fields=(), kind=BOOL):
        outers.append(
            _Outer(
                f"{prefix}{suffix}",
                "output" if outward else "input",
                width,
                f"{bus.kind} {bus.channel}{suffix}",
                meaning,
                value if outward else "",
                tuple(fields),
                dict(kind),
            )
        )

    payload = ports.get("payload")
    if payload is not None:
        drivers = []  # of the payload: (offset in it, part of an outer port)
        for suffix, width, parts in _pieces(bus, payload):
            outer = f"{prefix}{suffix}"
            used = sum(part["width"] for part in parts)
            value = [f"{width - used}'d0"] * (width > used)
            value += [_slice(payload.name, payload.width, part) for part in reversed(parts)]
            inside, at = [], 0
            for part in parts:
                inside.append({**part, "offset": at})
                drivers.append((part["offset"], _slice(outer, width, inside[-1])))
                at += part["width"]
            is_struct = suffix == "data" and bus.kind == "AXI4-Stream" and inside[0]["name"]
            place = ("name", "offset", "width", "meaning")
            kind = {key: each for key, each in parts[0].items() if key not in place}
            if is_struct:
                kind = {"type": "struct", "element_width": width}
            joined = f"{{{', '.join(value)}}}"
            add(suffix, source, width, joined, inside if is_struct else (), kind)
        if not source:
            value = [driver for _, driver in sorted(drivers, reverse=True)]
            assigns.append((payload.name, f"{{{', '.join(value)}}}"))
    for field, outward in (("valid", source), ("ready", not source)):
        # A stream that is always valid or always ready has no such port.
        if field in ports:
            add(field, outward, 1, ports[field].name)
            if not outward:
                assigns.append((ports[field].name, f"{prefix}{field}"))
        elif outward:
            add(field, outward, 1, "1'b1")
    return outers, assigns


def _pieces(bus: _Bus, payload: Face) -> list[tuple[str, int, list[dict]]]:
    """(suffix of the name, width, fields of the payload in it, low ones first)."""
    shape = payload.shape
    if isinstance(shape, data.StructLayout):  # its fields leave no gap and do not overlap
        fields = described_fields(shape, Codes(), payload.name)
    else:
        kind = word(shape, payload.kind, Codes(), payload.name)
        fields = [{"name": "", "offset": 0, "width": payload.width, **kind}]
    if bus.kind != "AXI4-Stream":
        return [(field["name"], field["width"], [field]) for field in fields]
    last = [field for field in fields if field["name"] == "last" and field["width"] == 1]
    rest = [field for field in fields if field not in last]
    bits = sum(field["width"] for field in rest)
    pieces = [("data", -(-bits // 8) * 8, rest)] if bits else []
    return pieces + ([("last", 1, last)] if last else [])


def _slice(name: str, width: int, field: dict) -> str:
    if width == 1:
        return name
    return f"{name}[{field['offset'] + field['width'] - 1}:{field['offset']}]"


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _verilog(name: str, outers, wires, assigns, connections) -> str:
    busses = dict.fromkeys(
        outer.name.rpartition("_")[0] for outer in outers if outer.role.startswith("AXI4")
    )
    parameter = "ASSOCIATED_RESET aresetn"
    if busses:
        parameter = f"ASSOCIATED_BUSIF {':'.join(busses)}, {parameter}"
    lines = ["", f"module {name}_axi("]
    for outer in outers:
        attribute = f'(* X_INTERFACE_PARAMETER = "{parameter}" *) ' if outer.name == "aclk" else ""
        comma = "," if outer is not outers[-1] else ""
        lines.append(f"  {attribute}{outer.direction} {_range(outer.width)}{outer.name}{comma}")
    lines.append(");")
    lines += [f"  wire {_range(port.width)}{port.name};" for port in wires]
    lines += [f"  assign {target} = {value};" for target, value in assigns]
    lines += [f"  assign {outer.name} = {outer.value};" for outer in outers if outer.value]
    lines.append(f"  {name} wrapped(")
    lines.append(",\n".join(f"    .{port}({value})" for port, value in connections.items()))
    return "\n".join([*lines, "  );", "endmodule", ""])
