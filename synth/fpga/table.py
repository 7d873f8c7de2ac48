"""``python -m synth.fpga.table``: the blocks of docs/fpga.md on one device.

Each IP has a row for its configuration ``small``, or else its default one, and a row for the
default one where that is another. KLLM's accelerator has a row for ``narrow``, built for an FPGA
(hdl.target). A finished row is a file under ``--keep``, with a hash of its
Verilog and of the tools. A later call measures what is missing or has changed, also for other
seeds or larger blocks. ``--write`` puts the figures into ``synth/fpga/figures.json``, which
keeps its rows of other blocks and sizes. ``--check`` maps the small rows again whose Verilog has
changed, and exits with 1 if one takes more than its limit.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder, kept_json, replacing
from golden.markers import table
from hdl.arguments import add_page, check_page, folder, whole, write_page
from hdl.back.verilog import Design, convert
from hdl.registry import configuration_of, find, ips
from hdl.target import built_for
from synth.area import SynthesisError
from synth.fpga.devices import device_of
from synth.fpga.flow import MAPPED, Mapped, Report, check_room, measure
from synth.fpga.tools import FpgaError, check_tools, versions
from synth.yosys import YosysError

FILE = Path(__file__).parent / "figures.json"
PAGE = Path(__file__).parents[2] / "docs" / "fpga.md"
DEVICE = "ecp5-85f"
SMALL, USUAL, NARROW = "small", "default", "narrow"
SEEDS = 3
MOST = 25_000
MHZ = 100
SECTIONS = {SMALL: "fpga_small", NARROW: "fpga_narrow"}  # of the page
_GROWTH = 0.05  # of LUTs and flip-flops after synthesis: more is a regression
_ALWAYS = 16  # LUTs, carries and flip-flops that may always be more
_TOO_LARGE = "not placed: more than"
_WHOLE = ("block RAM", "DSP")  # cells of which none may be more


@dataclasses.dataclass(frozen=True)
class Row:
    """A block and the arguments of its configuration, as those of hdl.build."""

    block: str
    size: str
    arguments: tuple[str, ...]
    target: str = "asic"

    @property
    def label(self) -> str:
        return f"{self.block} {self.size}"

    @property
    def stem(self) -> str:
        """Begins the names of its files."""
        return f"{self.block}-{self.size}"


def rows() -> Iterator[Row]:
    """All rows, block by block."""
    for name, entry in ips().items():
        if "small" in entry.configs:
            yield Row(name, SMALL, ("--config=small",))
            if entry.configs["small"] != entry.config:
                yield Row(name, USUAL, ())
        else:
            yield Row(name, SMALL, ())
    yield Row("kllm_accelerator", NARROW, ("--config=narrow",), "fpga")


def followed(design: Design) -> str:
    """Hash of what the figures follow from."""
    return hashlib.sha256(f"{versions()}\0{design.verilog}".encode()).hexdigest()[:20]


def _design(row: Row) -> Design:
    with built_for(row.target):
        config = configuration_of(row.block, row.arguments)
        return convert(find(row.block).component(config), row.block)


_FIELDS = {"block", "size", "arguments", "measured", "why", "mapped", "routed"}


def _is_row(found: Any) -> bool:
    """It has all that the table and the comparisons need: it is not of another version."""
    if not isinstance(found, dict) or not found.keys() >= _FIELDS:
        return False
    try:
        tabulate([found], found["size"])
        cells = found["mapped"]["cells"]
    except (KeyError, TypeError, ValueError):
        return False
    return isinstance(found["why"], str) and all(isinstance(n, int) for n in cells.values())


def kept_row(file: Path) -> dict[str, Any] | None:
    """The figures in a file; None: it has none, or those of another version."""
    found = kept_json(file)
    return found if _is_row(found) else None


def is_current(kept: Mapping[str, Any], design: Design, most: int, seeds: int) -> bool:
    """The kept figures are what ``measure_row`` would give."""
    if kept["measured"] != followed(design):
        return False
    if kept["routed"]:
        return len(kept["routed"]) == seeds
    mapped = Mapped(kept["mapped"]["cells"], {}, 0.0, 0)
    return not kept["why"].startswith(_TOO_LARGE) or mapped.comb > most


def _figure(row: Row, design: Design, made: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The figures that are kept of a row. why : it is not placed; empty where it is"""
    return {
        "block": row.block, "size": row.size, "arguments": list(row.arguments),
        "measured": followed(design), "why": why, **made,
    }  # fmt: skip


def _plain(report: Report) -> dict[str, Any]:
    made = report.to_json()
    del made["name"]
    return made


def measure_row(row: Row, design: Design, keep: Path, most: int, seeds: int) -> dict[str, Any]:
    """The figures of a row: of its synthesis alone if it takes more than ``most`` LUTs."""
    device, work = device_of(DEVICE), keep / "work" / row.stem
    tools = versions()
    with built_for(row.target):
        report = measure(row.block, design, device, work, seeds=(), mhz=MHZ, tools=tools)
    why = ""
    try:
        check_room(row.block, report.mapped, device)
    except FpgaError as error:
        why = str(error)
    if not why and report.mapped.comb > most:
        why = f"{_TOO_LARGE} {most:,} LUTs"
    if not why:
        report = measure(
            row.block, design, device, work, seeds=range(1, seeds + 1), mapped=report.mapped,
            mhz=MHZ, tools=tools,
        )  # fmt: skip
    return _figure(row, design, _plain(report), why)


def _cells(found: Mapping[str, Any]) -> list[str]:
    cells = found["mapped"]["cells"]
    return [f"{cells[name]:,}" for name in MAPPED.values()]


def _ns(path: Mapping[str, Any]) -> str:
    return f"{path['logic_ns']:.1f} + {path['routing_ns']:.1f} ns"


def tabulate(found: Sequence[Mapping[str, Any]], size: str) -> str:
    """The rows of a size, with what is not placed."""
    lines = []
    for each in found:
        if each["size"] != size:
            continue
        runs = each["routed"]
        if runs:
            clock = each["mhz"]
            best = min(runs, key=lambda run: abs(run["mhz"] - clock["median"]))
            path = best["path"]
            seconds = each["mapped"]["seconds"] + sum(run["seconds"] for run in runs) / len(runs)
            ends = [
                f"{best['cells']['LUT']:,}", f"{clock['median']:.1f}",
                f"{clock['low']:.1f}..{clock['high']:.1f}",
                f"`{path['start']}` to `{path['end']}`, {_ns(path)}", f"{seconds:.0f}",
            ]  # fmt: skip
        else:
            ends = ["", "", "", each["why"], f"{each['mapped']['seconds']:.0f}"]
        lines.append([f"`{each['block']}`", *_cells(each), *ends])
    head = [
        "block", *(f"{name}" for name in MAPPED.values()), "LUTs placed", "MHz", "of seeds",
        "slowest path, logic + routing", "s",
    ]  # fmt: skip
    return table(head, lines)


def units(found: Sequence[Mapping[str, Any]], size: str) -> str:
    """The LUTs of slices that the units of a row take, harness included."""
    lines = []
    for each in found:
        if each["size"] == size:
            whole = sum(each["mapped"]["units"].values())
            for name, count in each["mapped"]["units"].items():
                lines.append([f"`{name}`", f"{count:,}", f"{100 * count / whole:.0f}%"])
    return table(["unit", "LUTs of slices", "share"], lines)


def read() -> list[dict[str, Any]]:
    """The figures of the page. ValueError: the file has none, or a row lacks some."""
    try:
        found = list(json.loads(FILE.read_text())["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{FILE.name}: no figures: {error!r}") from None
    for number, row in enumerate(found):
        if not _is_row(row):
            raise ValueError(f"{FILE.name}: row {number} must have the figures of this version")
    return found


def regressions(before: Mapping[str, Any], now: Mapping[str, int]) -> list[str]:
    """Lines for cells of which a block takes more than its limit. now: cells after synthesis."""
    made = []
    for name, count in before["mapped"]["cells"].items():
        most = count if name in _WHOLE else max(count * (1 + _GROWTH), count + _ALWAYS)
        if now[name] > most:
            made.append(f"{before['block']} {before['size']}: {name} {count:,} -> {now[name]:,}")
    return made


def check(keep: Path) -> int:
    """Maps the small rows again whose Verilog has changed; the number of regressions."""
    known = {(each["block"], each["size"]): each for each in read()}
    found = mapped = 0
    for row in rows():
        before = known.get((row.block, row.size))
        if row.size != SMALL or before is None:
            continue
        design = _design(row)
        if followed(design) == before["measured"]:
            continue
        work = keep / "work" / row.stem
        report = measure(row.block, design, device_of(DEVICE), work, seeds=(), mhz=MHZ,
                         tools=versions())  # fmt: skip
        mapped += 1
        for line in regressions(before, report.mapped.cells):
            print(line, flush=True)
            found += 1
    print(f"{mapped} rows mapped again, {found} regressions")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m synth.fpga.table", description=__doc__)
    parser.add_argument("--block", action="append", help="these alone; default: all IPs")
    parser.add_argument("--size", choices=(SMALL, USUAL, NARROW), help="these rows alone")
    parser.add_argument(
        "--most", type=whole(0), metavar="LUTS",
        help=f"larger blocks are not placed; default: {MOST}",
    )  # fmt: skip
    parser.add_argument("--seeds", type=whole(1, 20), help=f"default: {SEEDS}")
    parser.add_argument("--keep", type=folder, default=Path("build/fpga"), metavar="DIR")
    parser.add_argument("--kept-only", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    parser.add_argument("--check", action="store_true", help="compare with those figures")
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    if options.check:
        for name in ("block", "size", "write", "page", "kept_only", "most", "seeds"):
            if getattr(options, name) not in (None, False):
                parser.error(f"--check goes without --{name.replace('_', '-')}")
    check_page(parser, options.page, tuple(SECTIONS.values()))
    most = MOST if options.most is None else options.most
    seeds = options.seeds or SEEDS
    known = {}
    try:
        check_tools()
        if options.check:
            with claimed_folder(options.keep):
                return 1 if check(options.keep) else 0
        for name in options.block or ():
            find(name)
        if (options.write or options.page) and FILE.exists():
            known = {(each["block"], each["size"]): each for each in read()}
        with claimed_folder(options.keep):
            for row in rows():
                file = options.keep / f"{row.stem}.json"
                kept = kept_row(file)
                is_chosen = row.block in (options.block or [row.block]) and (
                    options.size in (None, row.size)
                )
                if is_chosen and not options.kept_only:
                    design = _design(row)
                    if kept is None or not is_current(kept, design, most, seeds):
                        print(row.label, end=" ", flush=True)
                        kept = measure_row(row, design, options.keep, most, seeds)
                        with replacing(file) as part:
                            part.write_text(json.dumps(kept, indent=1))
                        print(kept["why"] or f"{kept['mhz']['median']:.1f} MHz", flush=True)
                at = (row.block, row.size)
                if kept is not None and (is_chosen or at not in known):
                    known[at] = kept
    except (ConfigError, FpgaError, SynthesisError, YosysError, ValueError, OSError) as error:
        print(f"synth.fpga.table: {error}", file=sys.stderr)
        return 2
    found = [known[at] for row in rows() if (at := (row.block, row.size)) in known]
    made = {size: tabulate(found, size) for size in (SMALL, USUAL, NARROW)}
    made[NARROW] += "\n" + units(found, NARROW)
    print(*made.values(), sep="\n")
    if options.write:
        with replacing(FILE) as part:
            part.write_text(json.dumps({"tools": versions(), "rows": found}, indent=1) + "\n")
    write_page(options.page, {section: made[size] for size, section in SECTIONS.items()})
    return 0


if __name__ == "__main__":
    command.run("synth.fpga.table", main)
