"""NAME.json in parts: fields and their kinds, streams, memories, codes and commands.

docs/block-json.md explains each key; docs/block-json.schema.json is its JSON Schema. The text of
the Verilog does not depend on this module.
"""

import dataclasses
import enum
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from amaranth.hdl import Shape
from amaranth.lib import data

from golden.fp16.format import FP16, FP32, FloatFormat
from golden.isa import CommandSet, Value
from golden.timing import Timing
from hdl.kinds import BITS, Kind, elements, kind_of, member_texts
from hdl.ports import field_kinds, field_texts

SCHEMA = 2  # of NAME.json; 1 had no kinds and no such key
BOOL = {"type": "bool", "element_width": 1}  # of clock, reset, valid and ready
_FORMATS = {FP16: "FP16", FP32: "FP32"}


@dataclasses.dataclass
class Codes:
    """The names that the words of a description refer to; ``word`` adds to them."""

    enums: dict[str, dict] = dataclasses.field(default_factory=dict)
    formats: dict[str, dict] = dataclasses.field(default_factory=dict)
    commands: CommandSet | None = None
    missing: list[str] = dataclasses.field(default_factory=list)  # words without a kind

    def enum(self, members: type[enum.Enum]) -> str:
        """The name of ``members``; with the room's name first if another enumeration has it.

        ValueError: another enumeration has that one, too.
        """
        texts = member_texts(members)
        made = {
            each.name: {
                "value": int(each.value),
                "meaning": texts.get(each.name, ""),
                **({"operands": list(each.operands)} if hasattr(each, "operands") else {}),
            }
            for each in members
        }
        room = members.__module__.split(".")[-2:][0]
        for name in (members.__name__, room.capitalize() + members.__name__):
            if self.enums.setdefault(name, made) == made:
                return name
        raise ValueError(f"two enumerations are called {name}")

    def format(self, format: FloatFormat) -> str:
        name = _FORMATS.get(format, f"E{format.exp_bits}M{format.frac_bits}")
        self.formats[name] = {
            "exponent_bits": format.exp_bits,
            "fraction_bits": format.frac_bits,
            "bias": format.bias,
        }
        return name

    def set_commands(self, commands: CommandSet) -> None:
        if self.commands not in (None, commands):
            raise ValueError("a block has one set of commands, not two")
        self.commands = commands

    def describe(self) -> dict:
        """The keys of NAME.json that the words refer to; without a key that nothing uses."""
        found: dict = {}
        if self.commands is not None:
            found["commands"] = _commands(self.commands, self)
        if self.formats:
            found["formats"] = self.formats
        if self.enums:
            found["enums"] = self.enums
        return found


def word(shape, kind, codes: Codes, where: str) -> dict:
    """Describes the bits of a word of ``shape``; ``where`` names it in an error.

    Where neither the layout nor the shape gives a kind, the word is ``bits`` and ``codes.missing``
    names it. ValueError: the kind does not fit the width.
    """
    lengths, element = elements(shape)
    if isinstance(element, data.StructLayout):
        if element.members and all(map(str.isdigit, element.members)):
            return _uneven(lengths, element, kind, codes, where)
        found: dict = {"type": "struct", "fields": fields(element, codes, where)}
        return found | _array(lengths, Shape.cast(element).width)
    if isinstance(element, data.Layout):
        raise ValueError(f"{where}: a layout of type {type(element).__name__} has no description")
    given = kind_of(element, kind)
    if given is None:
        codes.missing.append(where)
        given = BITS
    width = Shape.cast(element).width
    if given.element_bits and given.element_bits != width:
        count, left = divmod(width, given.element_bits)
        if left:
            raise ValueError(
                f"{where}: {width} bits are no whole number of elements of {given.element_bits}"
            )
        lengths, width = (*lengths, count), given.element_bits
    found = _meaning(given, element, width, codes, where) | _array(lengths, width)
    if given.names is not None:
        found["names"] = [each.name for each in sorted(given.names, key=lambda each: each.value)]
        if len(found["names"]) != lengths[-1]:
            raise ValueError(f"{where}: {lengths[-1]} elements have {len(found['names'])} names")
    return found


def _array(lengths: tuple[int, ...], width: int) -> dict:
    """Element [i][j] begins at bit i * stride[0] + j * stride[1] of the word."""
    strides = [width]
    for length in reversed(lengths[1:]):
        strides.insert(0, strides[0] * length)
    shape = {"shape": list(lengths), "stride": strides} if lengths else {}
    return {"element_width": width, **shape}


def _uneven(lengths, element: data.StructLayout, kind, codes: Codes, where: str) -> dict:
    """An array whose elements have widths of their own: fields that are called 0, 1, 2, ..."""
    if lengths:
        raise ValueError(f"{where}: an array of arrays with uneven elements has no description")
    made = [word(field.shape, kind, codes, f"{where}[{key}]") for key, field in element]
    found = {key: value for key, value in made[0].items() if key != "element_width"}
    if any({**each, "element_width": 0} != {**made[0], "element_width": 0} for each in made):
        raise ValueError(f"{where}: the elements differ in kind")
    places = [{"offset": field.offset, "width": field.width} for _, field in element]
    return found | {"shape": [len(made)], "elements": places}


def _meaning(kind: Kind, shape, width: int, codes: Codes, where: str) -> dict:
    """Type and what belongs to it, of one element."""
    found: dict = {"type": kind.name}
    if kind.name == "number":
        found["type"] = "signed" if Shape.cast(shape).signed else "unsigned"
        if kind.scale:
            found["scale"] = kind.scale
        if isinstance(shape, range) and len(shape):
            found |= {"minimum": min(shape), "maximum": max(shape)}
    if kind.name in ("index", "mask"):
        found["of"] = kind.of
    if kind.format is not None:
        found["format"] = codes.format(kind.format)
    if kind.codes is not None:
        found["enum"] = codes.enum(kind.codes)
        top = max(int(each.value) for each in kind.codes)
        if top >> width:
            raise ValueError(
                f"{where}: {kind.codes.__name__} has the value {top}: not {width} bits"
            )
    if kind.commands is not None:
        codes.set_commands(kind.commands)
        found["commands"] = "opcode" if kind.codes is not None else "words"
    return found


def fields(shape: data.StructLayout, codes: Codes, where: str) -> list[dict]:
    """The fields of a structure; ``offset`` is counted from its bit 0."""
    texts, kinds = field_texts(shape), field_kinds(shape)
    return [
        {
            "name": str(key),
            "offset": field.offset,
            "width": field.width,
            "meaning": str(texts.get(str(key), "")),
            **word(field.shape, kinds.get(str(key)), codes, f"{where}.{key}"),
        }
        for key, field in shape
        if field.width
    ]


def streams(ports: Iterable[Mapping], timing: Timing | None) -> list[dict]:
    """The streams among ``ports`` of a description, in order.

    ``words`` in ``cycles``: as many words as the stream carries at most, by the handshake (1 in 1)
    or by the interval of the timing.
    """
    found: dict[str, dict] = {}
    for port in ports:
        role, _, part = port["role"].partition(" ")
        if role != "stream":
            continue
        name = port["name"].removesuffix(f"__{part}")
        each = found.setdefault(name, {"name": name, "direction": "", "meaning": port["meaning"]})
        each[part] = port["name"]
        # The sender gives payload and valid, the receiver gives ready.
        way = port["direction"]
        each["direction"] = {"input": "output", "output": "input"}[way] if part == "ready" else way
        fields = {field["name"]: field for field in port.get("fields", ())}
        if "last" in fields:
            each["packet"] = {"last": "last", "meaning": fields["last"]["meaning"]}
    for name, each in found.items():
        rate = timing.rate(name) if timing is not None else Fraction(1)
        each |= {"packet": each.get("packet"), "words": rate.numerator, "cycles": rate.denominator}
    return list(found.values())


def wrapped_streams(inner: Iterable[Mapping], ports: Iterable[Mapping]) -> list[dict]:
    """``inner``, the streams of the block, with the ports that the AXI wrapper gives them.

    A stream that is part of an AXI4 bus is left out: the roles of its ports say what they are.
    """
    names = {port["name"] for port in ports}
    found = []
    for each in inner:
        name = f"{'s' if each['direction'] == 'input' else 'm'}_axis_{each['name']}"
        suffixes = {"payload": "tdata", "valid": "tvalid", "ready": "tready", "last": "tlast"}
        own = {
            part: f"{name}_{suffix}"
            for part, suffix in suffixes.items()
            if f"{name}_{suffix}" in names
        }
        if own:
            kept = {key: value for key, value in each.items() if key not in suffixes}
            found.append({**kept, "name": name, **own})
    return found


_MODULE = re.compile(r"^module \\(\S+)\n(.*?)^end$", re.M | re.S)
_CELL = re.compile(r"^  cell (\S+) \S+\n(.*?)^  end$", re.M | re.S)
_MEMORY = re.compile(r"^  memory width (\d+) size (\d+)(?: offset \d+)? (\S+)$", re.M)
_MEMORY_ID = re.compile(r'^    parameter \\MEMID "(.*)"$', re.M)


@dataclasses.dataclass
class _Module:
    children: Counter
    memories: list[tuple[int, int, int, int]]  # width, depth, read ports, write ports


def _parse(rtlil: str) -> Iterator[tuple[str, _Module]]:
    for name, body in _MODULE.findall(rtlil):
        children: Counter = Counter()
        ports: Counter = Counter()
        for kind, text in _CELL.findall(body):
            if kind.startswith("\\"):
                children[kind[1:]] += 1
            elif kind.startswith(("$memrd", "$memwr")) and (found := _MEMORY_ID.search(text)):
                ports[kind[:6], found[1].replace("\\\\", "\\")] += 1
        memories = [
            (int(width), int(depth), ports["$memrd", own], ports["$memwr", own])
            for width, depth, own in _MEMORY.findall(body)
        ]
        yield name, _Module(children, memories)


def memories(modules: Iterable[tuple[str, str]], top: str) -> list[dict]:
    """Every RAM of the design: (name, RTLIL) of its modules, children first, ``top`` last."""
    parsed = dict(itertools.chain.from_iterable(_parse(rtlil) for _, rtlil in modules))
    counts: Counter = Counter({top: 1})
    for name in _parents_first(parsed, top):
        for child, count in parsed[name].children.items():
            counts[child] += counts[name] * count
    found: Counter = Counter()
    for name, module in parsed.items():
        for shape in module.memories:
            found[name, *shape] += counts[name]
    return [
        {"module": module, "width": width, "depth": depth, "read_ports": reads,
         "write_ports": writes, "count": count}
        for (module, width, depth, reads, writes), count in sorted(found.items())
        if count
    ]  # fmt: skip


def _parents_first(modules: Mapping[str, _Module], top: str) -> list[str]:
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in order or name not in modules:
            return
        for child in modules[name].children:
            visit(child)
        order[name] = None

    visit(top)
    return list(reversed(order))


def _commands(commands: CommandSet, codes: Codes) -> dict:
    return {
        "words": commands.words,
        "word_bits": 32,
        "opcode": {"word": 0, "offset": 0, "width": 8},
        "tag": {"word": 0, "offset": 16, "width": 16},
        "waits": [
            {"unit": unit.name, "word": word, "offset": place, "width": commands.after_bits}
            for unit in commands.units
            for word, place in [commands.wait(unit)]
        ],
        "first_operand": commands.first_operand,
        "units": codes.enum(commands.units),
        "commands": [
            {
                "name": command.opcode.name,
                "opcode": int(command.opcode),
                "unit": command.unit.name,
                "meaning": command.summary,
                "operands": [
                    _operand(operand, commands.first_operand + position, codes)
                    for position, operand in enumerate(command.operands)
                ],
            }
            for command in commands.commands.values()
        ],
    }


def _operand(operand, word: int, codes: Codes) -> dict:
    found = {
        "name": operand.name,
        "word": word,
        "width": operand.bits,
        "meaning": operand.meaning,
        "default": operand.default,
        "access": operand.access,
    }
    if operand.selector is not None:
        found["enum"] = codes.enum(operand.selector)
    if isinstance(operand.role, Value):
        found |= {"minimum": operand.role.least, "multiple": operand.role.multiple}
    return found
