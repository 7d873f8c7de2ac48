"""``python -m hdl.pages``: fill the generated tables of docs/blocks; ``--check`` only compares.

A page holds ``<!-- generated: NAME -->`` ... ``<!-- end generated -->``. The command replaces the
text between the two. NAME is ``diagram``, ``parameters``, ``ports``, ``timing`` or ``registers``.
Other names belong to other tools. A room's own pages of docs and the indexes of blocks and
decisions are filled in the same way. ``make site`` draws a picture for each ``diagram``.
"""

import contextlib
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import golden.markers
from golden import command
from golden.config import DECLARATION, Config, declarations
from golden.markers import in_turn, replacing  # hdl does not import golden.files
from hdl.axi.notes import read_note
from hdl.back.verilog import port_rows
from hdl.block import Tier
from hdl.pages.diagram import diagram
from hdl.registry import Registered, all_blocks, bench, ips, rooms, users_of_blocks

DIAGRAM = "<!-- generated: diagram -->"  # where the page of a block has its picture


def pages_directory() -> Path:
    return Path(__file__).resolve().parent.parent.parent / "docs" / "blocks"


def shows_diagram(page: str) -> bool:
    """Whether the text ``page`` of a block has a place for its picture."""
    return DIAGRAM in page


def picture(name: str) -> str:
    """SVG of the parts of block ``name``, at the configuration that its page shows."""
    block = all_blocks()[name]
    return diagram(block.component(block.shown), name)


def _table(head: tuple[str, ...], rows: list[tuple]) -> str:
    return golden.markers.table(head, rows, align_right=False)


def _meanings(config_class: type) -> dict[str, str]:
    """The meaning of each field: in its declaration, or in the comment after or above it."""
    meanings: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        if dataclasses.is_dataclass(base) and base.__module__ != "golden.config":
            source = inspect.getsource(base)
            above = re.findall(r"^((?:    # .*\n)+)    (\w+): ", source, re.M)
            meanings |= {
                name: " ".join(re.findall(r"# (.*)", lines)).rstrip(".") for lines, name in above
            }
            meanings |= dict(re.findall(r"^    (\w+): [^#\n]*# (.*)$", source, re.M))
            fields = {field.name: field.metadata for field in dataclasses.fields(base)}
            declared = {name: data[DECLARATION] for name, data in fields.items() if data}
            meanings |= {name: each.meaning for name, each in declared.items() if each.meaning}
    return meanings


def _parameters(block: Registered) -> str:
    named = ", ".join(f"`{name}`" for name in block.configs) or "none"
    rows = list(_fields(block.config))
    head = ("field", "default", "range", "meaning")
    return _table(head, rows) + f"\nNamed configurations: {named}.\n"


def _fields(config: Config, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yields field, default, range and meaning; a field of fields has theirs after it.

    At any depth. ``NAME[]`` is each configuration of a tuple, with the defaults of the first. The
    range is that of the declaration; one that depends on other fields is in the meaning.
    """
    meanings, declared = _meanings(type(config)), declarations(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        is_value = field.name in declared and not isinstance(value, Config)
        allowed = declared[field.name].rule.allowed if is_value else ""
        meaning = meanings.get(field.name, "") or _about(value)
        yield f"`{name}`", f"`{_short(value)}`", allowed, meaning
        if isinstance(value, Config):
            yield from _fields(value, f"{name}.")
        elif _is_tuple_of_configs(value):
            yield from _fields(value[0], f"{name}[].")


def _about(value: object) -> str:
    """The first sentence of a configuration's docstring."""
    text = inspect.getdoc(value) if isinstance(value, Config) else ""
    return (text or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")


def _is_tuple_of_configs(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Config)


def _short(value) -> str:
    if _is_tuple_of_configs(value):
        return f"{len(value)} x {type(value[0]).__name__}"
    return type(value).__name__ if isinstance(value, Config) else str(value)


def _of_configuration(block: Registered) -> str:
    return f"\nOf the configuration `{block.checked}`.\n" if block.checked else ""


def _ports(name: str, block: Registered) -> str:
    component = block.component(block.shown)
    rows = [
        (f"`{port}`", direction, bits, role, meaning)
        for port, direction, bits, role, meaning in port_rows(component)
    ]
    table = _table(("port", "direction", "bits", "role", "meaning"), rows)
    note = "\n".join(read_note(component))
    table += _of_configuration(block) + (note and f"\n{note} See [axi.md](../axi.md).\n")
    checked = f"Independent reference: `{block.reference}`. " if block.reference else ""
    return f"{table}\nGolden: `{block.golden}`. {checked}Bench: `{bench(name)}`.\n"


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
    draw = f"python -m hdl.build {name} --diagram"
    drawn = f"`{draw}` draws its parts and streams, as the site does.\n"
    made = {
        "diagram": lambda: drawn + _of_configuration(block),
        "parameters": lambda: _parameters(block),
        "ports": lambda: _ports(name, block),
        "timing": lambda: _timing(block),
        "registers": lambda: _registers(block),
    }
    return golden.markers.fill(text, made, is_partial=True)


def _title(page: Path) -> tuple[str, str]:
    """The parts of a page's first heading before and after its first colon or number."""
    heading = page.read_text().partition("\n")[0].removeprefix("# ")
    name, _, title = heading.partition(":" if ":" in heading else " ")
    return name.strip(), title.strip()


def _ip_index() -> str:
    """The flat list of IPs: page, room, what it does, named configurations."""
    rows = []
    for room, each in rooms().items():
        for name, block in sorted(each.blocks.items()):
            if block.tier is Tier.IP:
                title = _title(pages_directory() / f"{name}.md")[1]
                named = ", ".join(f"`{each}`" for each in block.configs)
                rows.append((f"[{name}]({name}.md)", title, room, named))
    return _table(("block", "what it does", "room", "named configurations"), rows)


def _part_index() -> str:
    """A table of each room's parts: what it does, and what instantiates it."""
    tables, users = [], users_of_blocks()
    for room, each in rooms().items():
        rows = []
        for name, block in sorted(each.blocks.items()):
            if block.tier is Tier.PART:
                named = ", ".join(f"`{each}`" for each in users[name])
                rows.append((f"`{name}`", block.summary.replace("|", "\\|"), named))
        if rows:
            tables.append(f"### {room}\n\n{_table(('part', 'what it does', 'used by'), rows)}")
    return "\n" + "\n".join(tables) + "\n"


def _decision_index() -> str:
    rows = []
    for page in sorted((pages_directory().parent / "decisions").glob("[0-9]*.md")):
        _, title = _title(page)
        rows.append((f"[{page.name[:4]}]({page.name})", title[:1].upper() + title[1:]))
    return _table(("number", "decision"), rows)


_INDEXES: dict[str, dict[str, Callable[[], str]]] = {
    "blocks/index.md": {"ips": _ip_index, "parts": _part_index},
    "decisions/index.md": {"decisions": _decision_index},
}


def documents() -> dict[str, dict[str, Callable[[], str]]]:
    """Pages of docs/ and their generated sections: the indexes, and those of all rooms."""
    return _INDEXES | {
        name: made for room in rooms().values() for name, made in room.documents.items()
    }


def fill_document(name: str, text: str) -> str:
    """The page ``text`` of docs/``name`` with its generated tables brought up to date."""
    return golden.markers.fill(text, documents()[name])


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m hdl.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="name stale pages, exit 1")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only these blocks or pages of docs (all)"
    )
    options = parser.parse_args(arguments)
    stale, missing = [], []
    blocks = pages_directory()
    pages = [(blocks / f"{name}.md", name, fill) for name in ips()]
    pages += [(blocks.parent / name, name, fill_document) for name in documents()]
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
        # Another run may fill sections of the page that this one only copies.
        with contextlib.nullcontext() if options.check else in_turn(page):
            text = page.read_text()
            filled = filler(name, text)
            if filled != text:
                stale.append(name)
                if not options.check:
                    with replacing(page) as part:
                        part.write_text(filled)
    print(f"{'stale' if options.check else 'rewritten'}: {', '.join(stale) or 'none'}")
    if missing:
        print(f"hdl.pages: missing: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing or (options.check and stale) else 0
