"""Every constant of a block's description, once: the package and the header write the same list."""

import dataclasses
import re
from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class Constant:
    """An integer that is 0 or more."""

    name: str
    value: int
    meaning: str


@dataclasses.dataclass(frozen=True)
class Group:
    """Constants of one subject."""

    title: str
    constants: tuple[Constant, ...]


def constants(description: Mapping) -> list[Group]:
    """The constants in groups. Their names are in capitals, without the name of the block.

    ValueError: two constants would have one name.
    """
    made = [
        Group("Parameters of the configuration", tuple(_configuration(description))),
        Group("Widths of ports, and places of their fields in bits", tuple(_ports(description))),
        Group("Codes and status bits", tuple(_enums(description))),
        Group("Commands", tuple(_commands(description))),
        Group("Registers, byte addresses", tuple(_registers(description))),
        Group("Floating-point formats", tuple(_formats(description))),
    ]
    groups = [group for group in made if group.constants]
    names = [each.name for group in groups for each in group.constants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{description['name']}: two constants are called {twice[0]}")
    return groups


def _name(*parts: str) -> str:
    """Words of ``parts`` in capitals, joined by one line each."""
    return "_".join(re.sub(r"\W+|__+", "_", part).strip("_") for part in parts).upper()


def _configuration(description: Mapping) -> Iterator[Constant]:
    def visit(values: Mapping, before: tuple[str, ...]) -> Iterator[Constant]:
        for field, value in values.items():
            if isinstance(value, Mapping):
                yield from visit(value, (*before, field))
            elif isinstance(value, int) and value >= 0:
                yield Constant(_name("config", *before, field), int(value), "")

    yield from visit(description["configuration"], ())


def _places(owner: str, field: Mapping, low: int) -> Iterator[Constant]:
    offset = low + field["offset"]
    name = f"{owner}_{_name(field['name'])}"
    yield Constant(f"{name}_LSB", offset, field["meaning"])
    yield Constant(f"{name}_WIDTH", field["width"], "")
    yield from _shape(name, field)
    for each in field.get("fields", ()):
        yield from _places(name, each, 0 if field.get("shape") else offset)


def _shape(name: str, field: Mapping) -> Iterator[Constant]:
    """Yields an array's constants: elements and bits to the next one, outer dimension first."""
    shape = field.get("shape", ())
    for n, (count, stride) in enumerate(zip(shape, field.get("stride", ()), strict=False)):
        dimension = f"_{n}" if len(shape) > 1 else ""
        yield Constant(f"{name}_COUNT{dimension}", count, "")
        yield Constant(f"{name}_STRIDE{dimension}", stride, "")
    for place, each in enumerate(field.get("names", ())):
        yield Constant(f"{name}_{_name(each)}", place, "number of this element")


def _ports(description: Mapping) -> Iterator[Constant]:
    for port in description["ports"]:
        if port["role"] in ("clock", "reset", "stream valid", "stream ready"):
            continue
        is_payload = port["role"] == "stream payload"
        own = port["name"].removesuffix("payload") if is_payload else port["name"]
        name = f"PORT_{_name(own)}"
        yield Constant(f"{name}_WIDTH", port["width"], port["meaning"])
        yield from _shape(name, port)
        for field in port.get("fields", ()):
            yield from _places(name, field, 0)


def _enums(description: Mapping) -> Iterator[Constant]:
    for enum, codes in description.get("enums", {}).items():
        for code, each in codes.items():
            yield Constant(_name(enum, code), each["value"], each["meaning"])


def _commands(description: Mapping) -> Iterator[Constant]:
    commands = description.get("commands")
    if not commands:
        return
    yield Constant("COMMAND_WORDS", commands["words"], "words of a command")
    for part in ("opcode", "tag"):
        for key in ("word", "offset", "width"):
            yield Constant(f"COMMAND_{part}_{key}".upper(), commands[part][key], "")
    for wait in commands["waits"]:
        for key in ("word", "offset", "width"):
            yield Constant(f"COMMAND_WAIT_{wait['unit']}_{key}".upper(), wait[key], "")
    for command in commands["commands"]:
        name = _name("command", command["name"])
        yield Constant(f"{name}_OPCODE", command["opcode"], command["meaning"])
        for operand in command["operands"]:
            place = f"{name}_{_name(operand['name'])}"
            yield Constant(f"{place}_WORD", operand["word"], operand["meaning"])
            yield Constant(f"{place}_WIDTH", operand["width"], "")


def _registers(description: Mapping) -> Iterator[Constant]:
    for register in description.get("registers", ()):
        yield Constant(_name("register", register["name"]), register["offset"], register["meaning"])


def _formats(description: Mapping) -> Iterator[Constant]:
    for name, values in description.get("formats", {}).items():
        for key, value in values.items():
            if isinstance(value, int) and value >= 0:
                yield Constant(_name("format", name, key), value, "")
