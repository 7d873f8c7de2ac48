"""``python -m hdl.pages``: fill the generated tables of docs/blocks; ``--check`` only compares.

A page holds ``<!-- generated: NAME -->`` ... ``<!-- end generated -->``; what stands between is
replaced. NAME is ``parameters``, ``ports``, ``timing`` or ``registers``. Other names belong to
other tools. docs/kllm-commands.md is filled from golden.kllm.isa in the same way.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

import golden.kllm.isa as isa
from hdl.registry import Registered, all_blocks
from hdl.verilog import describe

__all__ = ["DOCUMENTS", "fill", "fill_document", "main", "pages_directory"]

_SECTION = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end generated -->)", re.S)


def pages_directory() -> Path:
    return Path(__file__).resolve().parent.parent / "docs" / "blocks"


def _table(head: tuple[str, ...], rows: list[tuple]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _field_comments(config_class: type) -> dict[str, str]:
    """The comment behind each field, which states its unit and range."""
    comments: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        if dataclasses.is_dataclass(base) and base.__module__ != "golden.config":
            comments |= dict(
                re.findall(r"^    (\w+): [^#\n]*# (.*)$", inspect.getsource(base), re.M)
            )
    return comments


def _parameters(block: Registered) -> str:
    comments = _field_comments(type(block.config))
    rows = [
        (f"`{field.name}`", f"`{_short(getattr(block.config, field.name))}`",
         comments.get(field.name, ""))
        for field in dataclasses.fields(block.config)
    ]  # fmt: skip
    named = ", ".join(f"`{name}`" for name in block.configs) or "none"
    return _table(("field", "default", "meaning"), rows) + f"\nNamed configurations: {named}.\n"


def _short(value) -> str:
    return type(value).__name__ if dataclasses.is_dataclass(value) else str(value)


def _ports(block: Registered, name: str) -> str:
    description = describe(block.component(block.shown), name)
    rows = []
    for port in description["ports"]:
        fields = ", ".join(
            f"{field['name']} [{field['offset'] + field['width'] - 1}:{field['offset']}]"
            for field in port.get("fields", ())
        )
        meaning = port["meaning"] if port["role"] not in ("stream valid", "stream ready") else ""
        rows.append(
            (f"`{port['name']}`", port["direction"], port["width"], port["role"],
             f"{meaning}{': ' if fields and meaning else ''}{fields}")
        )  # fmt: skip
    table = _table(("port", "direction", "bits", "role", "meaning"), rows)
    return table + (f"\nOf the configuration `{block.checked}`.\n" if block.checked else "")


def _timing(block: Registered) -> str:
    component = block.component(block.config)
    component._MustUse__silence = True
    return _table(("latency", "throughput"), [(component.latency, component.throughput)])


def _registers(block: Registered) -> str:
    return _table(
        ("offset", "register", "access", "meaning"),
        [
            (f"0x{register.offset:02X}", f"`{name}`", register.access, register.meaning)
            for name, register in block.component.registers.items()  # type: ignore[attr-defined]
        ],
    )


def _replace_sections(made: dict[str, Callable[[], str]], text: str) -> str:
    def replace(match: re.Match) -> str:
        begin, section, old, end = match.groups()
        return begin + (made[section]() if section in made else old) + end

    return _SECTION.sub(replace, text)


def fill(name: str, text: str) -> str:
    """The page ``text`` of block ``name`` with its generated tables brought up to date."""
    block = all_blocks()[name]
    made = {
        "parameters": lambda: _parameters(block),
        "ports": lambda: _ports(block, name),
        "timing": lambda: _timing(block),
        "registers": lambda: _registers(block),
    }
    return _replace_sections(made, text)


def _members(values: type[IntEnum]) -> dict[str, str]:
    """The comment behind each member of an enumeration."""
    return dict(re.findall(r"^    (\w+) = [^#\n]*# (.*)$", inspect.getsource(values), re.M))


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
         f"`{operand.name}`", operand.bits, _escaped(operand.meaning))
        for command in isa.COMMANDS.values()
        for position, operand in enumerate(command.operands)
    ]  # fmt: skip
    return _table(("command", "word", "operand", "bits", "meaning"), rows)


def _selectors() -> str:
    rows = []
    for values in (
        isa.OutlierMode, isa.Norm, isa.MatmulMode, isa.Codebook, isa.Binary, isa.Scalar,
        isa.Function,
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


# Pages of docs/ with tables of their own.
DOCUMENTS: dict[str, dict[str, Callable[[], str]]] = {
    "kllm-commands.md": {
        "units": _units,
        "commands": _commands,
        "operands": _operands,
        "selectors": _selectors,
        "statuses": _statuses,
    }
}


def fill_document(name: str, text: str) -> str:
    """The page ``text`` of docs/``name`` with its generated tables brought up to date."""
    return _replace_sections(DOCUMENTS[name], text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hdl.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="name stale pages, exit 1")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only these blocks or pages of docs (all)"
    )
    options = parser.parse_args(arguments)
    stale, missing = [], []
    blocks = pages_directory()
    pages = [(blocks / f"{name}.md", name, fill) for name in all_blocks()]
    pages += [(blocks.parent / name, name, fill_document) for name in DOCUMENTS]
    unknown = set(options.names) - {name for _, name, _ in pages}
    if unknown:
        print(f"hdl.pages: no page is called {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    if options.names:
        pages = [page for page in pages if page[1] in options.names]
    for page, name, filler in pages:
        if not page.exists():
            missing.append(page.name)
            continue
        text = page.read_text()
        filled = filler(name, text)
        if filled != text:
            stale.append(name)
            if not options.check:
                page.write_text(filled)
    print(f"{'stale' if options.check else 'rewritten'}: {', '.join(stale) or 'none'}")
    if missing:
        print(f"hdl.pages: missing: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing or (options.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
