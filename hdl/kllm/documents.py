"""The generated tables of docs/kllm-commands.md and docs/host.md, from golden's formats."""

import inspect
import re
from collections.abc import Callable, Mapping
from enum import IntEnum

import golden.kllm.isa as isa
from golden.axi.format import CACHE_REGISTERS, REGISTERS, Register
from golden.markers import table


def _members(values: type[IntEnum]) -> dict[str, str]:
    """The comment after each member of an enumeration."""
    return dict(re.findall(r"^    (\w+) = [^#\n]*# (.*)$", inspect.getsource(values), re.M))


def _table(head: tuple[str, ...], rows: list[tuple]) -> str:
    return table(head, rows, align_right=False)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _units() -> str:
    comments = _members(isa.Unit)
    return _table(
        ("unit", "name", "runs"), [(int(u), f"`{u.name}`", comments[u.name]) for u in isa.Unit]
    )


def _commands() -> str:
    rows = [
        (f"`{command.opcode:#04x}`", f"`{command.opcode.name}`", f"`{command.unit.name}`",
         _escaped(command.summary))
        for command in isa.COMMANDS.values()
    ]  # fmt: skip
    return _table(("opcode", "command", "unit", "what it does"), rows)


def _operands() -> str:
    rows = [
        (f"`{command.opcode.name}`" if not position else "", isa.FIRST_OPERAND_WORD + position,
         f"`{operand.name}`", operand.bits, "" if operand.default is None else operand.default,
         operand.access, _escaped(operand.meaning))
        for command in isa.COMMANDS.values()
        for position, operand in enumerate(command.operands)
    ]  # fmt: skip
    head = ("command", "word", "operand", "bits", "default", "touches", "meaning")
    return _table(head, rows)


def _selectors() -> str:
    rows = []
    for values in (
        isa.OutlierMode, isa.Norm, isa.MatmulMode, isa.Codebook, isa.Binary, isa.Scalar,
        isa.Index, isa.Function,
    ):  # fmt: skip
        comments = _members(values)
        for value in values:
            rows.append((f"`{values.__name__}`" if not value else "", int(value),
                         f"`{value.name}`", comments.get(value.name, "")))  # fmt: skip
    return _table(("selector", "value", "name", "meaning"), rows)


def _statuses() -> str:
    comments = dict(
        re.findall(r"^    (\w+) = 1 << \d+  # (.*)$", inspect.getsource(isa.CommandStatus), re.M)
    )
    rows = [
        (bit.bit_length() - 1, f"`{bit.name}`", "no" if bit & isa.FAILED else "yes",
         comments[str(bit.name)])
        for bit in isa.CommandStatus
    ]  # fmt: skip
    return _table(("bit", "status", "output", "meaning"), rows)


def _register_table(registers: Mapping[str, Register]) -> str:
    rows = [
        (f"`{each.offset:#04x}`", f"`{each.name}`", each.access, _escaped(each.meaning))
        for each in registers.values()
    ]
    return _table(("offset", "register", "access", "meaning"), rows)


DOCUMENTS: dict[str, dict[str, Callable[[], str]]] = {
    "kllm-commands.md": {
        "units": _units,
        "commands": _commands,
        "operands": _operands,
        "selectors": _selectors,
        "statuses": _statuses,
    },
    "host.md": {
        "registers": lambda: _register_table(REGISTERS),
        "cache_registers": lambda: _register_table(CACHE_REGISTERS),
    },
}
