"""``python -m synth.baseline``: blocks mapped again and compared with ``synth/baselines``.

Each room has a file of entries: a block, its configuration, and its figures in the project's own
cell table. The command prints every change. It exits with 1 if a figure exceeds its limit, one
line per figure. ``--write`` replaces the figures by those of today.

An entry holds a hash of what its figures follow from: Verilog, cell table, flow and tool. The
command maps a block again only where that hash has changed.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden import command
from golden.config import ConfigError
from golden.files import claimed, replacing
from hdl.back.verilog import Design, convert
from hdl.registry import configuration_of, find
from synth.area import Libraries, SynthesisError, is_macro, load_libraries
from synth.modules import map_modules
from synth.yosys import YosysError, default_tool, version

BASELINES = Path(__file__).parent / "baselines"
_VERSION = 1
# Modules of this package that turn Verilog into figures.
_FLOW = ("area", "cells", "liberty", "modules", "yosys")
# figure -> (largest relative growth, growth that is always allowed)
FIGURES = {"um2": (0.02, 0.0), "flip_flops": (0.02, 0.0), "levels": (0.1, 1.0)}


@dataclasses.dataclass(frozen=True)
class Entry:
    """``arguments`` select the configuration as for hdl.build; ``configuration`` is all of it.

    A first argument ``--config=NAME`` takes a named configuration, and the others change it.

    figures : um2 of all modules, flip-flops, and levels: cells on the longest path of a module
    is_small : whether the command maps it without ``--all``
    measured : hash of what the figures follow from; empty: unknown
    """

    block: str
    arguments: tuple[str, ...]
    is_small: bool
    configuration: dict[str, Any]
    figures: dict[str, float]
    measured: str = ""

    @property
    def label(self) -> str:
        return " ".join([self.block, *self.arguments])


@dataclasses.dataclass(frozen=True)
class Change:
    """A figure that differs from the baseline's."""

    entry: Entry
    figure: str
    now: float

    @property
    def is_regression(self) -> bool:
        return self.now > limit(self.figure, self.entry.figures[self.figure])

    def __str__(self) -> str:
        before = self.entry.figures[self.figure]
        share = f"{self.now / before - 1:+.1%}" if before else "new"
        line = f"{self.entry.label}: {self.figure} {before:g} -> {self.now:g} ({share})"
        if self.is_regression:
            line += f", above the limit of {limit(self.figure, before):g}"
        return line


def limit(figure: str, before: float) -> float:
    """The largest value that is no regression."""
    share, always = FIGURES[figure]
    most = max(before * (1 + share), before + always)
    return most if figure == "um2" else math.floor(most)


def read(path: Path) -> list[Entry]:
    """ValueError, one line, where ``path`` is no file of baselines."""
    try:
        plain = json.loads(path.read_text())
        if plain["version"] != _VERSION:
            raise ValueError(f"version must be {_VERSION}, not {plain['version']!r}")
        entries = [
            Entry(
                each["block"],
                tuple(each["arguments"]),
                each["small"],
                each["configuration"],
                {name: each["figures"][name] for name in FIGURES},
                each.get("measured", ""),
            )
            for each in plain["blocks"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a file of baselines: {error!r}") from None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from None
    return entries


def _write(path: Path, entries: list[Entry]) -> None:
    plain = {
        "version": _VERSION,
        "tool": version(default_tool()),
        "blocks": [
            {
                "block": entry.block,
                "arguments": list(entry.arguments),
                "small": entry.is_small,
                "configuration": entry.configuration,
                "figures": entry.figures,
                "measured": entry.measured,
            }
            for entry in entries
        ],
    }
    with replacing(path) as part:
        part.write_text(json.dumps(plain, indent=1) + "\n")


def _statements(source: str) -> str:
    """The program of a Python source: comments, docstrings and line breaks are not part of it."""
    tree = ast.parse(source)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


@functools.cache
def _flow() -> str:
    """The tool, and the statements that turn Verilog into figures."""
    folder = Path(__file__).parent
    sources = (folder / f"{name}.py" for name in _FLOW)
    texts = (_statements(source.read_text()) for source in sources)
    return "\0".join([version(default_tool()), *texts])


def _followed(design: Design, libraries: Libraries) -> str:
    """Hash of everything that the figures of ``design`` follow from."""
    macros = sorted(module.name for module in design.modules if is_macro(module.block))
    parts = [_flow(), *libraries.texts, *macros, design.verilog]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def measure(entry: Entry, libraries: Libraries) -> Entry:
    """``entry`` with the configuration and figures of today.

    Where ``entry.measured`` is the hash of today's design, its figures are those of today.
    """
    config = configuration_of(entry.block, entry.arguments)
    design = convert(find(entry.block).component(config), entry.block)
    plain = json.loads(json.dumps(design.description["configuration"]))
    measured = _followed(design, libraries)
    if measured == entry.measured:
        return dataclasses.replace(entry, configuration=plain)
    mapped = map_modules(design, libraries, jobs=1)
    total = mapped.total()
    figures = {
        "um2": round(total.um2, 4),
        "flip_flops": total.flip_flops,
        "levels": max(module.levels for module in mapped.modules.values()),
    }
    return dataclasses.replace(entry, configuration=plain, figures=figures, measured=measured)


def changes(entry: Entry, now: Entry) -> list[Change]:
    return [
        Change(entry, figure, now.figures[figure])
        for figure in FIGURES
        if now.figures[figure] != entry.figures[figure]
    ]


def _files(rooms: list[str]) -> Iterator[Path]:
    found = {path.stem: path for path in sorted(BASELINES.glob("*.json"))}
    for room in rooms or found:
        if room not in found:
            raise ValueError(f"no baselines of {room!r}; there are {', '.join(found)}")
        yield found[room]


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m synth.baseline", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help="default: all")
    parser.add_argument("--all", action="store_true", help="map the large blocks too")
    parser.add_argument("--write", action="store_true", help="replace the figures by today's")
    options = parser.parse_args(arguments)
    regressions = compared = mapped = 0
    outputs = contextlib.ExitStack()
    try:
        paths = list(_files(options.rooms))
        outputs.enter_context(claimed(*paths if options.write else ()))
        libraries = load_libraries()
        for path in paths:
            entries = read(path)
            written = []
            for entry in entries:
                if not (entry.is_small or options.all):
                    written.append(entry)
                    continue
                now = measure(entry, libraries)
                compared += 1
                mapped += now.measured != entry.measured
                written.append(now)
                if now.configuration != entry.configuration:
                    print(f"{entry.label}: its configuration has changed: use --write")
                    regressions += not options.write
                for change in changes(entry, now):
                    print(change, flush=True)
                    regressions += change.is_regression and not options.write
            if options.write and written != entries:
                _write(path, written)
    except (ConfigError, SynthesisError, YosysError, ValueError, OSError) as error:
        print(f"synth.baseline: {error}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    print(f"{compared} configurations, {mapped} mapped again, {regressions} regressions")
    return 1 if regressions else 0


if __name__ == "__main__":
    command.run("synth.baseline", main)
