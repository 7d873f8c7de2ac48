"""A testbench's driver made from NAME.json alone (docs/block-json.md).

Imports nothing of hdl or golden: who takes a block into another project may copy this file.
Values of a field by its type:

    type                         value
    unsigned, signed, index,     int; with a ``scale`` a Fraction
    bits
    bool                         bool
    float                        Float, made of a number or, as an int, of its word
    enum                         the name of a value, or an int
    flags                        a set of names
    mask                         a list of bool, bit 0 first
    struct                       a dict by field

An array is a list, or a list of lists; with ``names`` it may be a dict by name.
"""

import json
import math
import random
from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from pathlib import Path

SCHEMA = 2


class Float(float):
    """A number and the word that encodes it: NaN has several, and zero has two."""

    word: int

    def __new__(cls, word: int, format: Mapping) -> "Float":
        exponent_bits, fraction_bits = format["exponent_bits"], format["fraction_bits"]
        fraction = word & (1 << fraction_bits) - 1
        exponent = word >> fraction_bits & (1 << exponent_bits) - 1
        if exponent == (1 << exponent_bits) - 1:
            size = math.nan if fraction else math.inf
        else:
            significand = fraction + ((1 << fraction_bits) if exponent else 0)
            size = math.ldexp(significand, max(exponent, 1) - format["bias"] - fraction_bits)
        self = super().__new__(cls, -size if word >> exponent_bits + fraction_bits else size)
        self.word = word
        return self

    @classmethod
    def of(cls, value: float, format: Mapping) -> "Float":
        """ValueError unless the format has ``value`` exactly."""
        fraction_bits, bias = format["fraction_bits"], format["bias"]
        top = (1 << format["exponent_bits"]) - 1
        sign = int(math.copysign(1, value) < 0) << format["exponent_bits"] + fraction_bits
        if math.isnan(value):
            return cls(top << fraction_bits | 1 << fraction_bits - 1, format)
        if math.isinf(value):
            return cls(sign | top << fraction_bits, format)
        exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
        steps = abs(Fraction(value)) / Fraction(2) ** (exponent - fraction_bits)
        # A normal significand has its hidden bit, which adds 1 to the exponent below it.
        word = (exponent + bias - 1 << fraction_bits) + int(steps)
        if steps.denominator > 1 or word >= top << fraction_bits:
            raise ValueError(f"no word of {format} is {value!r}")
        return cls(sign | word, format)


class Description:
    """NAME.json: packs and unpacks words of streams and ports, by the names of fields."""

    def __init__(self, path: Path | str):
        self.data = json.loads(Path(path).read_text())
        if self.data["schema"] != SCHEMA:
            raise ValueError(f"schema must be {SCHEMA}, not {self.data['schema']}")
        self.ports = {port["name"]: port for port in self.data["ports"]}
        self.streams = {stream["name"]: stream for stream in self.data["streams"]}
        self.timing = self.data["timing"]

    def payload(self, stream: str) -> dict:
        return self.ports[self.streams[stream]["payload"]]

    def pack(self, port: Mapping, value) -> int:
        """The word of ``port`` (or field) that has ``value``; ValueError: it has none."""
        names = port.get("names")
        if names and isinstance(value, Mapping):
            value = [value[name] for name in names]
        word = 0
        for place, offset, width in _places(port):
            element = value
            for at in place:
                element = element[at]
            bits = self._encode(port, element, width)
            if not 0 <= bits < 1 << width:
                raise ValueError(f"{port['name']}: {element!r} does not fit {width} bits")
            word |= bits << offset
        return word

    def unpack(self, port: Mapping, word: int):
        """Inverse of ``pack``."""
        values = {
            place: self._decode(port, word >> offset & (1 << width) - 1, width)
            for place, offset, width in _places(port)
        }
        return _nested(values, tuple(port.get("shape", ())))

    def _encode(self, field: Mapping, value, width: int) -> int:
        kind = field["type"]
        if kind == "struct":
            inner = {each["name"]: each for each in field["fields"]}
            if set(inner) != set(value):
                raise ValueError(f"{field['name']}: fields {sorted(inner)}, not {sorted(value)}")
            return sum(
                self.pack(each, value[name]) << each["offset"] for name, each in inner.items()
            )
        if kind == "float":
            format = self.data["formats"][field["format"]]
            return value if type(value) is int else Float.of(value, format).word
        if kind == "enum" and isinstance(value, str):
            return self._codes(field)[value]
        if kind == "flags":
            return sum(self._codes(field)[name] for name in value)
        if kind == "mask":
            return sum(bool(bit) << n for n, bit in enumerate(value))
        steps = Fraction(value) / Fraction(2) ** field.get("scale", 0)
        low, high = field.get("minimum"), field.get("maximum")
        if steps.denominator > 1 or (low is not None and not low <= steps <= high):
            raise ValueError(f"{field['name']}: {value!r} is no value of it")
        bits = int(steps)
        return bits + (1 << width) if kind == "signed" and -(1 << width - 1) <= bits < 0 else bits

    def _decode(self, field: Mapping, bits: int, width: int):
        kind = field["type"]
        if kind == "struct":
            return {
                each["name"]: self.unpack(each, bits >> each["offset"] & (1 << each["width"]) - 1)
                for each in field["fields"]
            }
        if kind == "float":
            return Float(bits, self.data["formats"][field["format"]])
        if kind == "enum":
            names = {code: name for name, code in self._codes(field).items()}
            return names.get(bits, bits)
        if kind == "flags":
            return {name for name, code in self._codes(field).items() if bits & code}
        if kind == "mask":
            return [bool(bits >> n & 1) for n in range(width)]
        if kind == "bool":
            return bool(bits)
        if kind == "signed" and bits >> width - 1:
            bits -= 1 << width
        return bits * Fraction(2) ** field["scale"] if "scale" in field else bits

    def _codes(self, field: Mapping) -> dict[str, int]:
        members = self.data["enums"][field["enum"]]
        return {name: member["value"] for name, member in members.items()}


def _places(field: Mapping):
    """(indices, offset, width) of each element."""
    shape = field.get("shape", ())
    if "elements" in field:
        for at, element in enumerate(field["elements"]):
            yield (at,), element["offset"], element["width"]
        return
    for place in product(*map(range, shape)):
        steps = zip(place, field.get("stride", ()), strict=True)
        yield place, sum(at * stride for at, stride in steps), field["element_width"]


def _nested(values: Mapping, shape: tuple[int, ...], place: tuple[int, ...] = ()):
    if len(place) == len(shape):
        return values[place]
    return [_nested(values, shape, (*place, at)) for at in range(shape[len(place)])]


class Driver:
    """Clock, reset and streams of a block in cocotb, from its description."""

    def __init__(self, dut, description: Description, seed: int = 1):
        self.dut, self.description, self.rng = dut, description, random.Random(seed)

    def _port(self, name: str):
        return getattr(self.dut, name)

    async def reset(self, period: int = 10) -> None:
        """Starts the clock, all inputs 0; ``rst`` is high for two cycles."""
        from cocotb.clock import Clock
        from cocotb.triggers import FallingEdge

        roles = {port["role"]: name for name, port in self.description.ports.items()}
        for name, port in self.description.ports.items():
            if port["direction"] == "input" and port["role"] != "clock":
                self._port(name).value = 0
        self.clock = self._port(roles["clock"])
        Clock(self.clock, period, unit="ns").start()
        for level in (1, 1, 0):
            if "reset" in roles:
                self._port(roles["reset"]).value = level
            await FallingEdge(self.clock)

    async def run(
        self, send: Mapping[str, list], receive: Mapping[str, int], idle=0.0, stall=0.0, most=20_000
    ) -> tuple[dict[str, list], dict[str, list[int]]]:
        """Sends values, receives so many; (values by stream, cycle of each transfer by stream).

        idle, stall: share of the cycles in which a source does not offer and a sink does not take.
        AssertionError: not complete after ``most`` cycles.
        """
        from cocotb.triggers import FallingEdge, ReadOnly

        description, streams = self.description, self.description.streams
        queues = {
            name: [description.pack(description.payload(name), value) for value in values]
            for name, values in send.items()
        }
        words: dict[str, list[int]] = {name: [] for name in receive}
        cycles: dict[str, list[int]] = {name: [] for name in (*send, *receive)}
        offered = dict.fromkeys(send, False)
        for cycle in range(most):
            for name, queue in queues.items():
                at = len(cycles[name])
                offered[name] |= at < len(queue) and self.rng.random() >= idle
                self._port(streams[name]["valid"]).value = int(offered[name])
                if offered[name]:
                    self._port(streams[name]["payload"]).value = queue[at]
            takes = {name: self.rng.random() >= stall for name in receive}
            for name, take in takes.items():
                self._port(streams[name]["ready"]).value = int(take)
            await ReadOnly()
            for name in queues:
                if offered[name] and int(self._port(streams[name]["ready"]).value):
                    cycles[name].append(cycle)
                    offered[name] = False
            for name, take in takes.items():
                if take and int(self._port(streams[name]["valid"]).value):
                    cycles[name].append(cycle)
                    words[name].append(int(self._port(streams[name]["payload"]).value))
            await FallingEdge(self.clock)
            if all(len(words[name]) >= count for name, count in receive.items()) and all(
                len(cycles[name]) == len(queue) for name, queue in queues.items()
            ):
                break
        else:
            raise AssertionError(f"not complete after {most} cycles: {cycles}")
        got = {
            name: [description.unpack(description.payload(name), word) for word in found]
            for name, found in words.items()
        }
        return got, cycles
