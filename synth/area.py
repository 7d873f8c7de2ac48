"""Block -> cells: Yosys ``synth``, ``dfflibmap`` and ``abc``, every distinct module mapped once.

Results are cached under build/synth. The key is the hash of everything that shapes them: the
Verilog, the cell library, the script, and the versions of the tools.
"""

import contextlib
import dataclasses
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock

from golden.files import kept_json, made_aside
from hdl.back.verilog import Design, convert
from hdl.block import Block
from synth import cells
from synth.liberty import Library, parse, read_text
from synth.yosys import default_tool, run, version

CACHE = Path("build") / "synth"
MEMORY_LIMIT = 64 * 1024  # bits of one module's memories that may become flip-flops
DFF_28NM = 2.65  # um2: KLLM's Table I, Concat unit (8.68e-2 mm2 / 4096) over its 8 flip-flops

# Level shifters, isolation and delay cells: functions of ordinary gates that ordinary logic
# must not be built of.
DONT_USE = ("*lpflow*", "*clkdly*", "*dlygate*", "*dlymetal*")

# ABC's default script without its `&fraig -x` and `scorr`, and Yosys' `synth` without its own run
# of ABC: on the multipliers of a reducer these took 50 of 53 s for 0.3 % of area; over the
# blocks that were compared the area is within 1.6 % either way.
_ABC_SCRIPT = "+strash;dc2;strash;&get,-n;&dch,-f;&nf;&put"

_MEMORY = re.compile(r"^  reg (?:signed )?(?:\[(\d+):(\d+)\] )?\S+ +\[(\d+):(\d+)\];", re.M)


class SynthesisError(ValueError):
    """A design that this flow refuses, in one line."""


@dataclasses.dataclass(frozen=True)
class Libraries:
    """Cell libraries as texts and as what reports need of them."""

    library: Library
    texts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ModuleArea:
    """One distinct module, without its submodules; totals are these times ``instances``."""

    name: str
    instances: int
    cells: int
    flip_flops: int
    um2: float


@dataclasses.dataclass(frozen=True)
class MacroArea:
    """A memory that stays a black box: not in any area."""

    name: str
    block: str
    depth: int
    width: int
    instances: int

    @property
    def ports(self) -> str:
        return self.block.removeprefix("Memory").lower()

    @property
    def bits(self) -> int:
        """Bits of all instances."""
        return self.depth * self.width * self.instances


@dataclasses.dataclass(frozen=True)
class AreaReport:
    """The costs of a design in one library."""

    name: str
    configuration: dict[str, Any]
    library: str
    nand2_um2: float
    dff_um2: float
    tool: str
    flattened: bool
    modules: tuple[ModuleArea, ...]  # the top last
    macros: tuple[MacroArea, ...]
    cell_counts: dict[str, int]  # cell -> instances in the whole design
    seconds: float  # of the run that mapped it
    cached: bool = False

    @property
    def cells(self) -> int:
        return sum(module.cells * module.instances for module in self.modules)

    @property
    def flip_flops(self) -> int:
        return sum(module.flip_flops * module.instances for module in self.modules)

    @property
    def um2(self) -> float:
        """Area of all cells, macros not included."""
        return sum(module.um2 * module.instances for module in self.modules)

    @property
    def kge(self) -> float:
        """Thousands of two-input NAND equivalents."""
        return self.um2 / self.nand2_um2 / 1000

    @property
    def um2_28nm(self) -> float:
        """Cross-check only: the area scaled so that one plain flip-flop is 2.65 um2."""
        return self.um2 * DFF_28NM / self.dff_um2

    @property
    def macro_bits(self) -> int:
        return sum(macro.bits for macro in self.macros)

    def to_json(self) -> dict[str, Any]:
        """Plain values, totals included."""
        totals = {
            "cells": self.cells,
            "flip_flops": self.flip_flops,
            "um2": round(self.um2, 4),
            "kge": round(self.kge, 4),
            "um2_28nm": round(self.um2_28nm, 2),
            "macro_bits": self.macro_bits,
        }
        plain = dataclasses.asdict(self)
        for macro, source in zip(plain["macros"], self.macros, strict=True):
            macro |= {"ports": source.ports, "bits": source.bits}
        return {"totals": totals} | plain


def load_libraries(paths: Sequence[Path] = ()) -> Libraries:
    """The libraries of ``paths``, or the project's own table; LibraryError in one line."""
    if paths:
        texts = tuple(read_text(path) for path in paths)
        name = " + ".join(path.name for path in paths)
    else:
        texts, name = (cells.liberty_text(),), cells.NAME
    library = parse(name, texts)
    _ = library.nand2, library.flip_flop  # refused now and not after a minute of mapping
    return Libraries(library, texts)


def is_macro(block: Block) -> bool:
    """Whether ``block`` stays a black box."""
    return bool(getattr(type(block), "is_memory_macro", False))


def refuse_large_memories(design: Design, macros: set[str]) -> None:
    """SynthesisError when a module that is to be mapped holds more than MEMORY_LIMIT bits."""
    for body in re.findall(r"^module .*?^endmodule", design.verilog, re.M | re.S):
        name = body[len("module ") : body.index("(")].strip().lstrip("\\")
        if name in macros:
            continue
        bits = 0
        for high, low, first, last in _MEMORY.findall(body):
            width = int(high) - int(low) + 1 if high else 1
            bits += width * (abs(int(last) - int(first)) + 1)
        if bits > MEMORY_LIMIT:
            raise SynthesisError(
                f"{name}: a memory of {bits} bits must be a macro: at most {MEMORY_LIMIT} bits "
                "are mapped to flip-flops"
            )


def abc_script(liberties: Sequence[str], more: str = "") -> str:
    """Yosys commands from gates to the cells of ``liberties``; ``more`` ends ABC's script."""
    options = " ".join(f"-liberty {path}" for path in liberties)
    unused = " ".join(f'-dont_use "{pattern}"' for pattern in DONT_USE)
    return f"dfflibmap {options} {unused}\nabc {options} {unused} -script {_ABC_SCRIPT}{more}"


def _script(design: Design, macros: list[str], liberties: list[str], flatten: bool) -> str:
    return "\n".join(
        [
            "read_verilog design.v",
            *(f"blackbox {name}" for name in macros),
            f"synth -noabc -top {design.name}" + (" -flatten" if flatten else ""),
            abc_script(liberties),
            "opt_clean -purge",
            "tee -q -o stat.json stat -json",
            "write_verilog -noattr netlist.v",
            "",
        ]
    )


def _instances(modules: dict[str, Any], top: str) -> dict[str, int]:
    """Module -> number of its instances in the design."""
    counts = dict.fromkeys(modules, 0)

    def visit(name: str, count: int) -> None:
        counts[name] += count
        for kind, number in types_of(modules[name]).items():
            if kind in modules:
                visit(kind, count * number)

    visit(top, 1)
    return counts


def types_of(module: dict[str, Any]) -> dict[str, int]:
    """Cell type -> count, names as in the Verilog; instances of modules included."""
    types: dict[str, int] = {}
    for key in ("num_cells_by_type", "num_submodules_by_type"):
        types |= {kind.removeprefix("\\"): number for kind, number in module.get(key, {}).items()}
    return types


def _count(design: Design, stat: dict[str, Any], library: Library, macros: set[str]):
    """(modules, macros, cells by type) of the mapped netlist."""
    modules = {name.removeprefix("\\"): module for name, module in stat["modules"].items()}
    # Black boxes have cells of their own kind, and may or may not be listed as modules.
    for name in macros:
        modules[name] = {}
    counts = _instances(modules, design.name)
    areas, kinds = [], dict[str, int]()
    order = [name for name in modules if name != design.name] + [design.name]
    for name in order:
        if name in macros or not counts[name]:
            continue
        own = {k: n for k, n in types_of(modules[name]).items() if k not in modules}
        unknown = sorted(set(own) - set(library.cells))
        if unknown:
            raise SynthesisError(
                f"{name}: {', '.join(unknown[:5])}: not mapped; does {library.name} lack a kind "
                "of cell?"
            )
        cells_of = library.cells
        areas.append(
            ModuleArea(
                name=name,
                instances=counts[name],
                cells=sum(own.values()),
                flip_flops=sum(n for k, n in own.items() if cells_of[k].is_flip_flop),
                um2=round(sum(cells_of[k].area * n for k, n in own.items()), 4),
            )
        )
        for kind, number in own.items():
            kinds[kind] = kinds.get(kind, 0) + number * counts[name]
    boxes = tuple(
        MacroArea(
            module.name,
            type(module.block).__qualname__,
            module.block.config.describe()["depth"],
            module.block.config.describe()["width"],
            counts[module.name],
        )
        for module in design.modules
        if module.name in macros and counts[module.name]
    )
    return tuple(areas), boxes, dict(sorted(kinds.items()))


@contextlib.contextmanager
def liberty_files(folder: Path, texts: dict[str, str]) -> Iterator[None]:
    """``texts`` by name of file in ``folder``, for one run: nothing needs them afterwards."""
    for file, text in texts.items():
        (folder / file).write_text(text)
    try:
        yield
    finally:
        for file in texts:
            (folder / file).unlink(missing_ok=True)


def _kept(directory: Path, top: str) -> tuple[float, dict[str, Any]] | None:
    """(seconds, Yosys' statistics) of the run in ``directory``; None: missing or damaged."""
    seconds, stat = kept_json(directory / "seconds"), kept_json(directory / "stat.json")
    modules = stat.get("modules") if isinstance(stat, dict) else None
    if not isinstance(seconds, float | int) or not isinstance(modules, dict):
        return None
    names = {name.removeprefix("\\") for name in modules}
    if top not in names or not all(isinstance(module, dict) for module in modules.values()):
        return None
    return float(seconds), stat


def synthesize(
    block: Block,
    name: str,
    libraries: Libraries,
    *,
    flatten: bool = False,
    tool: str | None = None,
    on_pass: Callable[[str], None] | None = None,
) -> AreaReport:
    """Map ``block`` to the cells of ``libraries``, or find it in the cache.

    Modules of classes with ``is_memory_macro`` are black boxes, listed with their bits, unless
    the macro is the block itself: then it is mapped to flip-flops. SynthesisError when a module
    would turn more than MEMORY_LIMIT bits of memory into flip-flops.
    """
    start = time.perf_counter()
    tool = tool or default_tool()
    design = convert(block, name)
    macros = [module.name for module in design.modules[:-1] if is_macro(module.block)]
    refuse_large_memories(design, set(macros))

    liberty_names = [
        f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.lib" for text in libraries.texts
    ]
    script = _script(design, macros, liberty_names, flatten)
    identity = "\n".join([design.verilog, script, version(tool)])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:20]
    directory = CACHE / digest
    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / "lock"):
        kept = _kept(directory, design.name)
        cached = kept is not None
        if kept is None:
            with made_aside(directory) as part:
                (part / "design.v").write_text(design.verilog)
                with liberty_files(part, dict(zip(liberty_names, libraries.texts, strict=True))):
                    run(script, part, tool=tool, on_pass=on_pass)
                (part / "seconds").write_text(f"{time.perf_counter() - start:.2f}")
            kept = _kept(directory, design.name)
        if kept is None:
            raise SynthesisError(f"{name}: Yosys has left no figures in {directory}")
        seconds, stat = kept
    library = libraries.library
    areas, boxes, kinds = _count(design, stat, library, set(macros))
    return AreaReport(
        name=name,
        configuration=design.description["configuration"],
        library=library.name,
        nand2_um2=library.nand2.area,
        dff_um2=library.flip_flop.area,
        tool=version(tool),
        flattened=flatten,
        modules=areas,
        macros=boxes,
        cell_counts=kinds,
        seconds=seconds,
        cached=cached,
    )
