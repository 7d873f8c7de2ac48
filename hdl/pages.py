"""``python -m hdl.pages``: fill the generated tables of docs/blocks; ``--check`` only compares.

A page holds ``<!-- generated: NAME -->`` ... ``<!-- end generated -->``; what stands between is
replaced. NAME is ``parameters``, ``ports``, ``timing`` or ``registers``. Other names belong to
other tools.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from pathlib import Path

from hdl.registry import Registered, all_blocks
from hdl.verilog import describe

__all__ = ["fill", "main", "pages_directory"]

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
    description = describe(block.component(block.config), name)
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
    return _table(("port", "direction", "bits", "role", "meaning"), rows)


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


def fill(name: str, text: str) -> str:
    """The page ``text`` of block ``name`` with its generated tables brought up to date."""
    block = all_blocks()[name]
    made = {
        "parameters": lambda: _parameters(block),
        "ports": lambda: _ports(block, name),
        "timing": lambda: _timing(block),
        "registers": lambda: _registers(block),
    }

    def replace(match: re.Match) -> str:
        begin, section, old, end = match.groups()
        return begin + (made[section]() if section in made else old) + end

    return _SECTION.sub(replace, text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hdl.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="name stale pages, exit 1")
    options = parser.parse_args(arguments)
    stale, missing = [], []
    for name in all_blocks():
        page = pages_directory() / f"{name}.md"
        if not page.exists():
            missing.append(page.name)
            continue
        text = page.read_text()
        filled = fill(name, text)
        if filled != text:
            stale.append(name)
            if not options.check:
                page.write_text(filled)
    print(f"{'stale' if options.check else 'rewritten'}: {', '.join(stale) or 'none'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
