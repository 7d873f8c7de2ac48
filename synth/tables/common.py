"""The parts that several tables of docs/area.md need."""

import argparse
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from golden.markers import table
from golden.sram import ram
from hdl.block import Block
from synth.area import AreaReport, Libraries, load_libraries, synthesize
from synth.liberty import LibraryError
from synth.modules import Cost, MappedDesign


@dataclasses.dataclass(frozen=True)
class Tables:
    """Tables of docs/area.md, or another page, that one name of ``synth.compare`` makes.

    sections : the sections of the page
    make : options -> (text of each section, seconds of mapping or 0)
    block, named : what the command's field=value change, where the tables are of one block;
        ``options.configuration`` is the result
    page : the page of docs that has the sections
    plot : bytes of an SVG of the same figures, which the page shows from the folder of its name
    """

    sections: tuple[str, ...]
    make: Callable[[argparse.Namespace], tuple[dict[str, str], float]]
    block: str = ""
    named: str = ""
    page: str = "area.md"
    plot: Callable[[], bytes] | None = None


Map = Callable[[Block, str], AreaReport]

# um2 per bit of Table I's own buffers: 2 KB of codebook 0.52, 136 KB of outputs 4.14,
# 2 KB of weights 4.12, 32 KB of activation indices 8.24.
SRAM_UM2_PER_BIT = {
    "low": 8.44e-3 * 1e6 / (2 * 8192),
    "middle": 4.61 * 1e6 / (136 * 8192),
    "high": 2.16 * 1e6 / (32 * 8192),
}


def mm2(cost: Cost, scale: float) -> tuple[float, dict[str, float]]:
    """(logic, RAM at each assumption), mm2 in 28 nm equivalents."""
    ram = {which: cost.ram_bits * per_bit / 1e6 for which, per_bit in SRAM_UM2_PER_BIT.items()}
    return cost.um2 * scale / 1e6, ram


def cacti_mm2(design: MappedDesign) -> float:
    """mm2 of all RAMs of a design in 28 nm, by CACTI."""
    instances, total = design.instances(), 0.0
    for module in design.design.modules:
        if module.name in design.macro_bits:
            size = module.block.config.describe()
            ports = type(module.block).__qualname__.removeprefix("Memory").lower()
            total += instances[module.name] * ram(ports, size["depth"], size["width"]).um2
    return total / 1e6


FIGURES = ("kGE", "flip-flops", "logic, mm2", "RAM, KB", "with RAM, mm2")


def figures(cost: Cost, design: MappedDesign) -> tuple[str, ...]:
    """FIGURES of a part of a design; RAM at the middle assumption."""
    logic, ram = mm2(cost, design.scale_28nm)
    return (
        f"{cost.um2 / design.nand2_um2 / 1000:,.1f}",
        f"{cost.flip_flops:,}",
        f"{logic:.3f}",
        f"{cost.ram_bits / 8192:,.1f}" if cost.ram_bits else "",
        f"{logic + ram['middle']:.3f}",
    )


def row_table(title: str, design: MappedDesign, costs: dict[str, Cost]) -> str:
    """The rows of a design, the largest first, and their total."""
    order = sorted(costs, key=lambda row: -costs[row].um2)
    rows = [(row, *figures(costs[row], design)) for row in order]
    return table((title, *FIGURES), [*rows, ("**total**", *figures(design.total(), design))])


def module_table(design: MappedDesign, most: int = 30) -> str:
    """The modules whose instances cost most."""
    instances = design.instances()
    order = sorted(design.modules, key=lambda name: -design.modules[name].um2 * instances[name])[
        :most
    ]
    whole = design.total().um2
    rows = []
    for name in order:
        module = design.modules[name]
        share = module.um2 * instances[name] / whole
        rows.append(
            (
                f"`{name}`",
                f"{instances[name]:,}",
                f"{module.cells:,}",
                f"{module.flip_flops:,}",
                f"{module.um2 / design.nand2_um2 / 1000:,.2f}",
                f"{share:.1%}",
                f"{module.levels}",
            )
        )
    head = ("module (own cells)", "instances", "cells", "flip-flops", "kGE", "share", "levels")
    return table(head, rows)


def mapper(libraries: Libraries) -> Map:
    def map_block(block: Block, name: str) -> AreaReport:
        report = synthesize(block, name, libraries)
        source = "cache" if report.cached else f"{report.seconds:.0f} s"
        print(f"  {report.library[:40]}: {name}: {report.um2:,.0f} um2 ({source})", flush=True)
        return report

    return map_block


def add_sets(parser: argparse.ArgumentParser, scope: str = "") -> None:
    """``--set``, any number of times: ``options.sets``, for ``library_sets``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        metavar="NAME=FILE[,FILE...]",
        help=f"{scope}the Liberty files of one library",
    )


def library_sets(texts: Iterable[str]) -> dict[str, Libraries]:
    """The libraries of each ``--set NAME=FILE[,FILE...]``, by name. Raises LibraryError."""
    sets = {}
    for text in texts:
        name, _, files = text.partition("=")
        if not name or not all(files.split(",")):
            raise LibraryError(f"--set must be NAME=FILE[,FILE...], not {text!r}")
        sets[name] = load_libraries([Path(file) for file in files.split(",")])
    return sets
