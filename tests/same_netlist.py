"""``python -m tests.same_netlist OLD NEW [NAME...]``: is the Verilog of two trees the same circuit?

Emits every registered block at every configuration in both source trees and compares pair by pair.
Names of modules, signals and instances and the order of statements may differ. The ports of an
inner module may have other names in the same order, or the same names in another order. The
ports of the top keep their names.

Two modules are the same if their texts agree after renaming in order of appearance. Otherwise
Yosys makes a netlist of each, and colours of its cells are refined. The colour of a cell is a hash
of its type, its parameters and the colours of its input bits. The colour of a bit is its port or
the colour of its driver. Cells of one final colour are bisimilar: from equal states, equal inputs
give equal outputs for ever. Two modules are the same if their outputs have the same colours and
each colour has as many cells. Modules of plain Amaranth submodules are flattened into the emitted
module. An emitted child is a cell with its own result as its type; ``--flatten`` flattens it too.

Emission is cached in build/same_netlist by the sources of the tree. Exit status: 0 the same, 1
different, 2 bad input.
"""

import argparse
import collections
import contextlib
import dataclasses
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from synth.modules import module_texts, stub
from synth.yosys import YosysError, run
from tb.simulate.sources import sources_digest

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "same_netlist"
SCHEMES = ("name", "position")  # what the ports of an inner module are known by
TOP = "compared_top"

# Runs in the tree to emit. Prints a line for each file, then name -> configuration -> file.
_EMIT = """
import hashlib, json, pathlib, sys
from hdl.registry import all_blocks
from hdl.back.verilog import convert
out, wanted = pathlib.Path(sys.argv[1]), set(sys.argv[2:])
table = {}
for name, block in all_blocks().items():
    if wanted and name not in wanted:
        continue
    files = {}
    for label, config in {"default": block.config, **block.configs}.items():
        if config not in files:
            files[config] = f"{name}@{label}.v"
            path = out / files[config]
            if not path.exists():
                text = convert(block.component(config), name).verilog
                path.with_suffix(".part").write_text(text)
                path.with_suffix(".part").rename(path)
                print("emitted", path.stem, flush=True)
        table.setdefault(name, {})[label] = files[config]
print(json.dumps(table))
"""

_TOKEN = re.compile(
    r"(?P<skip>//[^\n]*|/\*.*?\*/|\(\*.*?\*\)|\s+)"
    r"|(?P<literal>\d*\s*'[sS]?[bodhBODH][0-9a-fA-FxXzZ_?]+|\d+|\"[^\"]*\"|\$[a-z]\w*)"
    r"|(?P<pin>\.\s*(?:\\\S+|[A-Za-z_][\w$]*))"
    r"|(?P<name>\\\S+|[A-Za-z_][\w$]*)"
    r"|(?P<other>.)",
    re.S,
)
_KEYWORDS = frozenset(
    "always assign begin case casez default else end endcase endmodule for function if initial "
    "inout input integer localparam module negedge or output parameter posedge reg signed "
    "wire".split()
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two designs compared: ``how`` is "text", "netlist" or "" (different); what modules differ."""

    how: str
    differ: tuple[str, ...] = ()


class _Side:
    """A design as units: an emitted module with its plain submodules, children first."""

    def __init__(self, verilog: str, flatten: bool):
        self.texts = module_texts(verilog)
        self.ports = {
            name: [port.strip().lstrip("\\") for port in _header(text).split(",") if port.strip()]
            for name, text in self.texts.items()
        }
        children = {name: _children(text, self.texts) for name, text in self.texts.items()}
        used = set().union(*children.values()) if children else set()
        (self.top,) = (name for name in self.texts if "." not in name and name not in used)
        self.units: dict[str, list[str]] = {}
        for name in self.texts:
            unit = self.top if flatten else name.partition(".")[0]
            self.units.setdefault(unit, []).append(name)
        self.outer = {
            unit: {child for part in parts for child in children[part]} - set(parts)
            for unit, parts in self.units.items()
        }
        self.order: list[str] = []
        self._visit(self.top)

    def _visit(self, unit: str) -> None:
        if unit not in self.order:
            for child in sorted(self.outer[unit]):
                self._visit(child)
            self.order.append(unit)


def _header(text: str) -> str:
    return text[text.index("(") + 1 : text.index(");")]


def _children(text: str, texts: dict[str, str]) -> set[str]:
    """Modules of which ``text`` holds instances."""
    found = re.findall(r"^  \\?(\S+) +\S+ +\($", text, re.M)
    return {name for name in found if name in texts}


def _plain_text(side: _Side, unit: str, identities: dict[str, str], scheme: str) -> str:
    """The unit's text with names replaced in order of appearance."""
    words: list[str] = []
    for part in side.units[unit]:
        names: dict[str, str] = {}
        if unit == part and (unit == side.top or scheme == "name"):
            names = {port: f"port {port}" for port in side.ports[part]}
        child = ""
        for match in _TOKEN.finditer(side.texts[part]):
            word = match[0]
            if match.lastgroup == "skip":
                continue
            if match.lastgroup == "pin":
                pin = word[1:].strip().lstrip("\\")
                place = side.ports[child].index(pin)
                inner = child in side.units[unit]
                word = f".{pin}" if scheme == "name" and not inner else f".{place}"
            elif match.lastgroup == "name" and word not in _KEYWORDS:
                plain = word.lstrip("\\")
                if plain == part and words[-1:] == ["module"]:
                    word = "this"
                elif plain in side.texts and plain not in names:
                    child = plain
                    inner = plain in side.units[unit]
                    word = f"part {side.units[unit].index(plain)}" if inner else identities[plain]
                else:
                    word = names.setdefault(plain, f"n{len(names)}")
            words.append(word)
    return " ".join(words)


def _number(*what: object) -> int:
    """A hash that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=7).digest())


def _netlist(side: _Side, unit: str) -> dict:
    """The unit as Yosys's JSON, its plain submodules flattened."""
    stubs = "".join(stub(side.texts[child]) for child in sorted(side.outer[unit]))
    text = "".join(side.texts[part] for part in side.units[unit])
    script = (
        f"read_verilog design.v\nhierarchy -top {unit}\nproc\nflatten -noscopeinfo\nopt_clean\n"
        "write_json netlist.json\n"
    )
    with tempfile.TemporaryDirectory(prefix="netlist-") as folder:
        (Path(folder) / "design.v").write_text(stubs + text)
        run(script, Path(folder))
        modules = json.loads((Path(folder) / "netlist.json").read_text())["modules"]
    return modules[unit]


def _refined(netlist: dict, side: _Side, unit: str, identities: dict[str, str], scheme: str) -> str:
    """Digest of the unit's netlist by refinement of colours."""
    label = {port: n if scheme == "position" else port for n, port in enumerate(side.ports[unit])}
    if unit == side.top:
        label = {port: port for port in side.ports[unit]}
    colours: dict[object, int] = {
        constant: _number("constant", constant) for constant in ("0", "1", "x", "z")
    }
    outputs = []
    for port, described in netlist["ports"].items():
        if described["direction"] == "output":
            outputs.append((str(label[port]), described["bits"]))
        else:
            for n, bit in enumerate(described["bits"]):
                colours[bit] = _number("port", label[port], n)
    inputs: list[list] = []
    cells: list[int] = []
    drives: list[tuple[object, int, int]] = []  # bit, cell, hash of the pin
    for cell in netlist["cells"].values():
        kind = cell["type"]
        pins = {pin: pin for pin in cell["connections"]}
        if kind in side.texts:
            pins = (
                {pin: side.ports[kind].index(pin) for pin in pins} if scheme == "position" else pins
            )
            kind = identities[kind]
        reads: list = []
        shape = []
        for pin in sorted(pins, key=lambda pin: str(pins[pin])):
            bits = cell["connections"][pin]
            if cell["port_directions"][pin] == "output":
                for n, bit in enumerate(bits):
                    drives.append((bit, len(cells), _number(pins[pin], n)))
            else:
                shape.append((pins[pin], len(bits)))
                reads += bits
        parameters = {k: v for k, v in cell.get("parameters", {}).items() if k != "MEMID"}
        cells.append(_number(kind, sorted(parameters.items()), shape))
        inputs.append(reads)
    for bit, cell, pin in drives:
        colours[bit] = hash((cells[cell], pin))
    floating = _number("no driver")
    for bit in [bit for reads in inputs for bit in reads] + [
        b for _, bits in outputs for b in bits
    ]:
        colours.setdefault(bit, floating)
    count = len(set(cells))
    while True:
        cells = [
            hash((colour, *[colours[bit] for bit in reads]))
            for colour, reads in zip(cells, inputs, strict=True)
        ]
        for bit, cell, pin in drives:
            colours[bit] = hash((cells[cell], pin))
        if len(set(cells)) == count:
            break
        count = len(set(cells))
    result = [sorted(collections.Counter(cells).items())]
    result += sorted((name, [colours[bit] for bit in bits]) for name, bits in outputs)
    shape = sorted((str(label[port]), p["direction"], len(p["bits"]))
                   for port, p in netlist["ports"].items())  # fmt: skip
    return hashlib.sha256(repr((result, shape)).encode()).hexdigest()[:20]


class _Results:
    """Results for units by their texts, over all designs."""

    def __init__(self) -> None:
        self.netlists: dict[tuple[str, str], str] = {}  # (scheme, plain text's digest) -> digest
        self.needed: set[tuple[str, str]] = set()


def _identities(old: _Side, new: _Side, scheme: str, results: _Results):
    """(identity of each unit of old, of new, was Yosys needed)."""
    known: list[dict[str, str]] = [{}, {}]
    plain: list[dict[str, str]] = [{}, {}]

    def visit(which: int, side: _Side, unit: str) -> str:
        text = _plain_text(side, unit, known[which], scheme)
        plain[which][unit] = hashlib.sha256(text.encode()).hexdigest()[:20]
        return plain[which][unit]

    def refined(which: int, side: _Side, unit: str) -> str:
        key = (scheme, plain[which][unit])
        if key not in results.netlists:
            netlist = _netlist(side, unit)
            results.netlists[key] = _refined(netlist, side, unit, known[which], scheme)
        return results.netlists[key]

    # Children first. A unit of new whose text no unit of old has is compared by netlist with those
    # units of old that no unit of new has: their identity becomes that of the netlist.
    needed = False
    height = [_heights(side) for side in (old, new)]
    for level in range(max(max(height[0].values()), max(height[1].values())) + 1):
        units = [
            [u for u in side.order if height[w][u] == level] for w, side in enumerate((old, new))
        ]
        for which, side in enumerate((old, new)):
            for unit in units[which]:
                visit(which, side, unit)
        texts = [{plain[which][unit] for unit in units[which]} for which in (0, 1)]
        for which, side in enumerate((old, new)):
            for unit in units[which]:
                digest = plain[which][unit]
                if digest in texts[1 - which]:
                    known[which][unit] = digest
                else:
                    needed = True
                    known[which][unit] = refined(which, side, unit)
    return known[0], known[1], needed


def _heights(side: _Side) -> dict[str, int]:
    """Levels of units below each unit."""
    heights: dict[str, int] = {}
    for unit in side.order:
        heights[unit] = 1 + max((heights[child] for child in side.outer[unit]), default=-1)
    return heights


def compare_designs(
    old: str, new: str, *, flatten: bool = False, results: _Results | None = None
) -> Comparison:
    """Compare two designs, Verilog as ``hdl.back.verilog.convert`` writes it."""
    results = results if results is not None else _Results()
    sides = _Side(old, flatten), _Side(new, flatten)
    if old == new:
        return Comparison("text")
    differ: tuple[str, ...] = ()
    for scheme in SCHEMES:
        first, second, needed = _identities(*sides, scheme, results)
        if first[sides[0].top] == second[sides[1].top]:
            return Comparison("netlist" if needed else "text")
        missing = set(first.values())
        blamed = [unit for unit in sides[1].order if second[unit] not in missing]
        # A parent differs because of a child: name those whose children are all the same.
        own = [u for u in blamed if not sides[1].outer[u] & set(blamed)]
        differ = differ or tuple(own or blamed)
    return Comparison("", differ)


def _digest(tree: Path) -> str:
    """The digest of the sources that make the Verilog."""
    return sources_digest(tree, ("golden", "hdl"))[:20]


class _Emission(threading.Thread):
    """Emits a tree's blocks in a Python process of its own, in the tree."""

    def __init__(self, tree: Path, names: list[str], who: str):
        super().__init__(daemon=True)
        self.tree, self.names, self.who = tree, names, who
        self.directory = CACHE / _digest(tree)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.table: dict[str, dict[str, str]] = {}
        self.error = ""

    def run(self) -> None:
        command = [sys.executable, "-c", _EMIT, str(self.directory), *self.names]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command, cwd=self.tree, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("emitted"):
                    print(f"  {self.who}: {line.strip()}", flush=True)
                else:
                    self.table = json.loads(line)
            if process.wait():
                errors.seek(0)
                self.error = (errors.read().strip().splitlines() or ["no message"])[-1]


def _pairs(options) -> tuple[list[tuple[str, str, str, Path, Path]], list[str], list[str]]:
    """((old name, new name, configuration, two files)), what OLD alone has, what NEW alone has."""
    renamed = dict(text.split("=", 1) for text in options.renamed)
    back = {new: old for old, new in renamed.items()}
    old_names = [back.get(name, name) for name in options.names]
    new_names = [renamed.get(name, name) for name in options.names]
    sides = _Emission(options.old, old_names, "old"), _Emission(options.new, new_names, "new")
    for side in sides:
        side.start()
    for side in sides:
        side.join()
        if side.error:
            raise OSError(f"{side.tree}: {side.error}")
    old, new = sides
    for name in options.names:
        if back.get(name, name) not in old.table and renamed.get(name, name) not in new.table:
            raise ValueError(f"no block is called {name!r} in either tree")
    pairs, lost = [], []
    for name, configs in old.table.items():
        other = new.table.get(renamed.get(name, name), {})
        for label, file in configs.items():
            if label in other:
                pairs.append((name, renamed.get(name, name), label,
                              old.directory / file, new.directory / other[label]))  # fmt: skip
            else:
                lost.append(f"{name}@{label}")
    found = {(new_name, label) for _, new_name, label, *_ in pairs}
    added = [
        f"{name}@{label}"
        for name, configs in new.table.items()
        for label in configs
        if (name, label) not in found
    ]
    return pairs, lost, added


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.same_netlist", description=__doc__)
    parser.add_argument("old", type=Path, help="a source tree")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("names", nargs="*", metavar="NAME", help="blocks; default: all")
    parser.add_argument("--renamed", nargs="*", default=[], metavar="OLD=NEW", help="blocks")
    parser.add_argument("--flatten", action="store_true", help="hierarchy may differ too")
    options = parser.parse_intermixed_args(arguments)
    try:
        for text in options.renamed:
            if text.count("=") != 1:
                raise ValueError(f"--renamed must be OLD=NEW, not {text!r}")
        for tree in (options.old, options.new):
            if not (tree / "hdl" / "registry.py").exists():
                raise ValueError(f"{tree} is no source tree: it has no hdl/registry.py")
        pairs, lost, added = _pairs(options)
        counts: collections.Counter[str] = collections.Counter()
        results = _Results()
        done: dict[tuple[Path, Path], Comparison] = {}
        for place, (old, new, label, *files) in enumerate(pairs, start=1):
            key = files[0], files[1]
            if key not in done:
                done[key] = compare_designs(
                    *(_renamed_top(file.read_text(), name)
                      for file, name in zip(files, (old, new), strict=True)),
                    flatten=options.flatten, results=results,
                )  # fmt: skip
            result = done[key]
            counts[result.how] += 1
            verdict = f"identical ({result.how})" if result.how else "DIFFERENT"
            if result.differ:
                verdict += f": {', '.join(result.differ)}"
            name = new if new == old else f"{old} -> {new}"
            print(f"  [{place}/{len(pairs)}] {name}@{label}: {verdict}", flush=True)
    except (OSError, ValueError, YosysError) as error:
        print(f"tests.same_netlist: {error}", file=sys.stderr)
        return 2
    for text in lost:
        print(f"  only in {options.old}: {text}")
    for text in added:
        print(f"  only in {options.new}: {text}")
    print(
        f"{len(pairs)} pairs: {counts['text']} identical as text, {counts['netlist']} as netlist, "
        f"{counts['']} different; {len(lost)} only in old, {len(added)} only in new"
    )
    return 1 if counts[""] or lost else 0


def _renamed_top(verilog: str, name: str) -> str:
    """The top and its plain submodules under one name, so that a renamed block has equal text."""
    verilog = re.sub(
        rf"^module \\?{re.escape(name)}(?=[\s(])", f"module {TOP}", verilog, flags=re.M
    )
    return verilog.replace(f"\\{name}.", f"\\{TOP}.")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
