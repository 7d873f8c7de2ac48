"""The parts of a block and the streams between them, read from the design itself.

``parts`` elaborates the block alone. Its RTLIL has an instance of each child, and the logic between
them. A stream flows from one end to another if payload bits of the first reach the payload of the
second. They may pass wires, choices and arithmetic, but no register of the block.
"""

import collections
import dataclasses
import re
from collections.abc import Iterator

from hdl.back.emit import own_module
from hdl.back.interface import Interface
from hdl.block import Block


@dataclasses.dataclass(frozen=True, order=True)
class End:
    """Stream ``stream`` of part ``part``; part "": of the block itself."""

    part: str
    stream: str


@dataclasses.dataclass(frozen=True)
class Part:
    """One child, or ``count`` children of one module whose names differ in a number."""

    block: Block
    count: int
    inputs: tuple[str, ...]  # names of streams, seen from the part
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Parts:
    """A block as a graph. Streams of an array are one: ``y[4]``."""

    inputs: tuple[str, ...]  # streams of the block itself
    outputs: tuple[str, ...]
    parts: dict[str, Part]  # by name
    flows: tuple[tuple[End, End], ...]  # from the end that sends to the one that receives
    # Parts with a signal from one to the other, of which one has no stream.
    signals: tuple[tuple[str, str], ...]


# -- streams of a block -------------------------------------------------------------------------
def _streams(interface: Interface) -> dict[str, tuple[str, str]]:
    """Port -> (stream, direction of the stream), of every port that sends: payload or valid."""
    return {
        port.name: (port.stream, port.direction)
        for port in interface.ports
        if port.stream and port.path[-1] != "ready"
    }


def _families(names: list[str]) -> dict[str, str]:
    """Name -> the name of its family: ``y_0``, ``y_1`` and ``y_2`` are ``y[3]``."""
    numbered = collections.defaultdict(list)
    for name in dict.fromkeys(names):
        numbered[re.sub(r"_?\d+(?=$|__)", "#", name)].append(name)
    return {
        name: f"{stem.replace('#', '')}[{len(members)}]" if len(members) > 1 else name
        for stem, members in numbered.items()
        for name in members
    }


# -- RTLIL --------------------------------------------------------------------------------------
_TOKEN = re.compile(r"[{}]|\d+'[01xz\-]*|-?\d+|[\\$]\S+(?: \[\d+(?::\d+)?\])?")
_WIRE = re.compile(r"^  wire width (\d+) (?:(input|output) \d+ +)?(?:signed )?(\S+)$", re.M)
_CELL = re.compile(r"^  cell (\S+) (\S+)\n(.*?)^  end$", re.M | re.S)
_PIN = re.compile(r"^    connect \\(\S+) (.*)$", re.M)
_ASSIGN = re.compile(r"^(?: +assign|connect) (.*)$", re.M)
# What chooses or compares is no data of what it chooses.
_CONTROL = {"$mux": {"S"}, "$shift": {"B"}, "$shiftx": {"B"}, "$shl": {"B"}, "$shr": {"B"}}
# A comparison; registers and memories are not followed either, for their result is no ``Y``.
_ENDS = re.compile(r"\$(?:eq|ne|lt|le|gt|ge|logic_\w+|reduce_\w+)$")
_ALIGNED = {"$mux", "$pos", "$not"}  # bit n of an operand reaches bit n of the result alone


@dataclasses.dataclass(frozen=True)
class _Bits:
    """``width`` bits of a wire from ``low`` on; of a constant the wire is ""."""

    wire: str
    low: int
    width: int


def _cut(bits: list[_Bits], low: int, width: int) -> Iterator[_Bits]:
    """The bits ``low .. low + width - 1`` of ``bits``, lowest first."""
    at = 0
    for each in bits:
        first, last = max(low, at), min(low + width, at + each.width)
        if first < last:
            yield _Bits(each.wire, each.low + first - at, last - first)
        at += each.width


@dataclasses.dataclass(frozen=True)
class _Driver:
    """Drives ``bits`` of a wire: with ``source``, aligned or not, or as output ``pin``."""

    bits: _Bits
    source: list[_Bits]
    is_aligned: bool = True
    pin: tuple[str, str] | None = None  # instance ("": the block) and port


class _Netlist:
    """Wires of one module and what drives them.

    children: modules of the instances; instances: name -> (module, pin -> bits).
    """

    def __init__(self, text: str, children: dict[str, Interface]):
        self.widths = {name: int(width) for width, _, name in _WIRE.findall(text)}
        self.drivers: dict[str, list[_Driver]] = collections.defaultdict(list)
        self.instances: dict[str, tuple[Interface, dict[str, list[_Bits]]]] = {}
        self.outputs: dict[str, list[_Bits]] = {}
        for width, direction, name in _WIRE.findall(text):
            whole = _Bits(name, 0, int(width))
            if direction == "input":
                self._drive(whole, [], pin=("", name[1:]))
            elif direction == "output":
                self.outputs[name[1:]] = [whole]
        for kind, name, body in _CELL.findall(text):
            pins = {pin: self._spec(spec)[0] for pin, spec in _PIN.findall(body)}
            if kind.startswith("\\"):
                self._add_instance(kind[1:], name[1:], pins, children)
            elif not _ENDS.match(kind):
                self._add_operator(kind, pins)
        for line in _ASSIGN.findall(text):
            target, source = self._spec(line)
            at = 0
            for bits in target:
                self._drive(bits, list(_cut(source, at, bits.width)))
                at += bits.width

    def _drive(self, bits: _Bits, source: list[_Bits], **options) -> None:
        self.drivers[bits.wire].append(_Driver(bits, source, **options))

    def _spec(self, text: str) -> list[list[_Bits]]:
        """The signals that ``text`` lists, each lowest bits first."""
        found: list[list[_Bits]] = []
        inner: list[_Bits] | None = None
        for token in _TOKEN.findall(text):
            if token == "{":
                inner = []
            elif token == "}":
                assert inner is not None
                found.append(inner[::-1])
                inner = None
            elif inner is not None:
                inner.append(self._bits(token))
            else:
                found.append([self._bits(token)])
        return found

    def _bits(self, token: str) -> _Bits:
        name, _, place = token.partition(" ")
        if name[0] not in "\\$":
            width = name.partition("'")[0] if "'" in name else 32
            return _Bits("", 0, int(width))
        if not place:
            return _Bits(name, 0, self.widths[name])
        high, _, low = place[1:-1].partition(":")
        return _Bits(name, int(low or high), int(high) - int(low or high) + 1)

    def _add_instance(self, module, name, pins, children) -> None:
        """A child; of a submodule that is no block, nothing is known."""
        interface = children.get(module)
        if interface is None:
            return
        self.instances[name] = (interface, pins)
        for port in interface.ports:
            if port.direction == "output" and port.name in pins:
                for bits in pins[port.name]:
                    self._drive(bits, [], pin=(name, port.name))

    def _add_operator(self, kind: str, pins: dict[str, list[_Bits]]) -> None:
        operands = [pins[pin] for pin in pins if pin not in {"Y", *_CONTROL.get(kind, ())}]
        for operand in operands:
            at = 0
            for bits in pins.get("Y", ()):
                is_aligned = kind in _ALIGNED
                source = list(_cut(operand, at, bits.width)) if is_aligned else operand
                self._drive(bits, source, is_aligned=is_aligned)
                at += bits.width

    def sources(self, bits: list[_Bits]) -> set[tuple[str, str]]:
        """Pins of instances, and inputs of the block, whose bits reach ``bits``."""
        found: set[tuple[str, str]] = set()
        seen: set[_Bits] = set()
        waiting = list(bits)
        while waiting:
            each = waiting.pop()
            if each in seen or not each.wire:
                continue
            seen.add(each)
            for driver in self.drivers[each.wire]:
                first = max(each.low, driver.bits.low)
                last = min(each.low + each.width, driver.bits.low + driver.bits.width)
                if first >= last:
                    continue
                if driver.pin is not None:
                    found.add(driver.pin)
                elif driver.is_aligned:
                    waiting += _cut(driver.source, first - driver.bits.low, last - first)
                else:
                    waiting += driver.source
        return found


# -- the graph ----------------------------------------------------------------------------------
class _Names:
    """Families of parts and of their streams."""

    def __init__(self, block: Block, netlist: _Netlist):
        self.streams = {"": _streams(Interface.of(block))}
        self.streams |= {name: _streams(child) for name, (child, _) in netlist.instances.items()}
        families: dict[str, str] = {}
        modules = collections.defaultdict(list)
        for name, (child, _) in netlist.instances.items():
            modules[type(child.block), child.block.config].append(name)
        for names in modules.values():
            families |= _families(names)
        self.part = {"": "", **families}

    def _stream_families(self, part: str, direction: str) -> dict[str, str]:
        pairs = self.streams[part].values()
        return _families([name for name, way in pairs if way == direction])

    def ends(self, part: str, direction: str) -> tuple[str, ...]:
        """Families of the streams of ``part`` in ``direction``, in the order of the ports."""
        return tuple(dict.fromkeys(self._stream_families(part, direction).values()))

    def end(self, part: str, port: str) -> End | None:
        """The stream that has ``port``; None: the port is no payload and no valid."""
        if port not in self.streams[part]:
            return None
        name, direction = self.streams[part][port]
        return End(self.part[part], self._stream_families(part, direction)[name])


def _sinks(netlist: _Netlist) -> Iterator[tuple[tuple[str, str], list[_Bits]]]:
    """((part, port), bits) of each input of a part and of each output of the block."""
    for output, bits in netlist.outputs.items():
        yield ("", output), bits
    for name, (child, pins) in netlist.instances.items():
        for port in child.ports:
            if port.direction == "input" and port.name in pins:
                yield (name, port.name), pins[port.name]


class _Flows:
    """Decides whether two pins of streams move words, from all pins that reach all sinks.

    Words move from payload to payload. A payload that is constant, missing or not read says
    nothing, and then the valids decide.
    """

    def __init__(self, sinks: list[tuple[tuple[str, str], list[_Bits]]], read):
        self._payloads = {pin for pin in read if pin[1].endswith("__payload")}
        self._payloads |= {
            pin
            for pin, bits in sinks
            if pin[1].endswith("__payload") and any(each.wire for each in bits)
        }

    def is_flow(self, source: tuple[str, str], sink: tuple[str, str]) -> bool:
        ways = {port.rpartition("__")[2] for _, port in (source, sink)}
        payloads = {(part, f"{port.rpartition('__')[0]}__payload") for part, port in (source, sink)}
        return ways == {"payload"} or (ways == {"valid"} and not payloads <= self._payloads)


def parts(block: Block) -> Parts:
    """The parts of ``block`` and the streams between them; its children are not elaborated."""
    text, children = own_module(block)
    netlist = _Netlist(text, {name: Interface.of(child) for name, child in children.items()})
    names = _Names(block, netlist)
    flows: set[tuple[End, End]] = set()
    signals: set[tuple[str, str]] = set()
    sinks = list(_sinks(netlist))
    reached = [sorted(netlist.sources(bits)) for _, bits in sinks]
    rule = _Flows(sinks, {pin for pins in reached for pin in pins})
    for ((part, port), _), sources in zip(sinks, reached, strict=True):
        sink = names.end(part, port)
        for other, pin in sources:
            source = names.end(other, pin)
            if source and sink and rule.is_flow((other, pin), (part, port)):
                flows.add((source, sink))
            elif part and other and not (source or sink or port.endswith("__ready")):
                signals.add((names.part[other], names.part[part]))
    joined = {end.part for flow in flows for end in flow}
    signals = {pair for pair in signals if pair[0] != pair[1] and not joined.issuperset(pair)}
    counts = collections.Counter(names.part.values())
    return Parts(
        inputs=names.ends("", "input"),
        outputs=names.ends("", "output"),
        parts={
            names.part[name]: Part(
                child.block,
                counts[names.part[name]],
                names.ends(name, "input"),
                names.ends(name, "output"),
            )
            for name, (child, _) in netlist.instances.items()
        },
        flows=tuple(
            sorted(flow for flow in flows if flow[0].part != flow[1].part or not flow[0].part)
        ),
        signals=tuple(sorted(signals)),
    )
