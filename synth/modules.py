"""Areas of a large design: every distinct module mapped by itself, its children being black boxes.

The result is that of ``synth.area.synthesize`` without ``flatten``, which optimises nothing across
modules either. Here each module is cached on its own. After a change of one block only that block
is mapped again, and blocks that several designs hold are mapped once.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

from golden.files import kept_json, made_aside, replacing
from hdl.back.verilog import Design
from synth.area import (
    CACHE,
    DFF_28NM,
    Libraries,
    SynthesisError,
    abc_script,
    is_macro,
    liberty_files,
    refuse_large_memories,
    types_of,
)
from synth.yosys import default_tool, run, version

_MODULE = re.compile(r"^module .*?^endmodule\n", re.M | re.S)
LEVELS = re.compile(r"^ABC: .*\blev =\s*(\d+)", re.M)


@dataclasses.dataclass(frozen=True)
class Mapped:
    """One module without its children."""

    cells: int
    flip_flops: int
    um2: float
    levels: int  # cells on its longest path between ports, registers and children
    children: dict[str, int]  # module -> instances
    seconds: float  # of the run that mapped it


@dataclasses.dataclass(frozen=True)
class Cost:
    """Sums over instances; RAM in bits and in no area."""

    cells: int = 0
    flip_flops: int = 0
    um2: float = 0.0
    ram_bits: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.cells + other.cells,
            self.flip_flops + other.flip_flops,
            self.um2 + other.um2,
            self.ram_bits + other.ram_bits,
        )

    def __mul__(self, count: int) -> "Cost":
        return Cost(
            self.cells * count, self.flip_flops * count, self.um2 * count, self.ram_bits * count
        )


@dataclasses.dataclass(frozen=True)
class MappedDesign:
    """All modules of a design in one library."""

    design: Design
    modules: dict[str, Mapped]  # without macros
    macro_bits: dict[str, int]  # macro -> bits of one
    nand2_um2: float
    dff_um2: float

    @property
    def scale_28nm(self) -> float:
        """28 nm equivalent um2 per um2 (docs/area.md)."""
        return DFF_28NM / self.dff_um2

    @property
    def seconds(self) -> float:
        """The seconds of all runs, those of the cache included."""
        return sum(module.seconds for module in self.modules.values())

    def own(self, name: str) -> Cost:
        if name in self.macro_bits:
            return Cost(ram_bits=self.macro_bits[name])
        module = self.modules[name]
        return Cost(module.cells, module.flip_flops, module.um2)

    def total(self, name: str | None = None) -> Cost:
        """The cost of ``name`` (default: the top) with everything below it."""
        return sum(self.by_row(lambda *_: "", name).values(), Cost())

    def instances(self) -> dict[str, int]:
        """Module or macro -> number of its instances in the design."""
        counts: dict[str, int] = {}

        def visit(name: str, count: int) -> None:
            counts[name] = counts.get(name, 0) + count
            if name in self.modules:
                for child, number in self.modules[name].children.items():
                    visit(child, count * number)

        visit(self.design.modules[-1].name, 1)
        return counts

    def count(self, block: str) -> int:
        """Instances in the design of modules of class ``block``."""
        instances = self.instances()
        return sum(
            instances.get(module.name, 0)
            for module in self.design.modules
            if type(module.block).__qualname__ == block
        )

    def by_row(
        self, row_of: Callable[[str, str, str], str], name: str | None = None
    ) -> dict[str, Cost]:
        """Cost of the instances of every row.

        row_of: (class of a module, class of its parent, row of its parent) -> its row. A module
        without a class of its own has class "".
        """
        classes = {m.name: type(m.block).__qualname__ for m in self.design.modules}
        rows: dict[str, Cost] = {}

        def visit(module: str, parent: str, row: str, count: int) -> None:
            kind = classes.get(module, "")
            row = row_of(kind, parent, row)
            rows[row] = rows.get(row, Cost()) + self.own(module) * count
            if module in self.modules:
                for child, number in self.modules[module].children.items():
                    visit(child, kind, row, count * number)

        visit(name or self.design.modules[-1].name, "", "", 1)
        return rows


def module_texts(verilog: str) -> dict[str, str]:
    """Module -> its text, in the order of the file."""
    texts = {}
    for text in _MODULE.findall(verilog):
        name = text[len("module ") : text.index("(")].strip().lstrip("\\")
        texts[name] = text
    return texts


def stub(text: str) -> str:
    """A module's ports alone."""
    text = re.sub(r" *//.*", "", text)  # the meanings of the ports of a delivered top
    head = text[: text.index(";") + 1]
    ports = re.findall(r"^  (?:input|output|inout) .*;$", text, re.M)
    return "\n".join(["(* blackbox *)", head, *ports, "endmodule", ""])


def instantiated(text: str, names: set[str]) -> list[str]:
    """Those of ``names`` of which ``text`` holds instances."""
    found = re.findall(r"^  \\?(\S+) +\S+? *\($", text, re.M)
    return sorted({name for name in found if name in names})


def _kept(file: Path) -> dict[str, Any] | None:
    """Reads what ``_map_one`` has kept in ``file``; None: missing or damaged."""
    plain = kept_json(file)
    if not isinstance(plain, dict) or set(plain) != {"types", "levels", "seconds"}:
        return None
    counts = plain["types"].values() if isinstance(plain["types"], dict) else [None]
    is_whole = all(isinstance(number, int) for number in (*counts, plain["levels"]))
    return plain if is_whole and isinstance(plain["seconds"], int | float) else None


def _map_one(name: str, text: str, stubs: str, libraries: Libraries, tool: str) -> Mapped:
    liberties = {
        f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.lib": content
        for content in libraries.texts
    }
    script = "\n".join(
        [
            "read_verilog design.v",
            f"hierarchy -top {name}",
            f"synth -noabc -top {name}",
            abc_script(list(liberties), ";print_stats"),
            "opt_clean -purge",
            "tee -q -o stat.json stat -json",
            "",
        ]
    )
    source = stubs + text
    identity = "\n".join([source, script, version(tool)])
    directory = CACHE / "modules" / hashlib.sha256(identity.encode()).hexdigest()[:20]
    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / "lock"):
        plain = _kept(directory / "mapped.json")
        if plain is None:
            start = time.perf_counter()
            with made_aside(directory) as part:
                (part / "design.v").write_text(source)
                with liberty_files(part, liberties):
                    log = run(script, part, tool=tool)
            stat = json.loads((directory / "stat.json").read_text())
            modules = {kind.removeprefix("\\"): part for kind, part in stat["modules"].items()}
            levels = [int(found) for found in LEVELS.findall(log)]
            plain = {
                "types": types_of(modules[name]),
                "levels": max(levels, default=0),
                "seconds": round(time.perf_counter() - start, 2),
            }
            with replacing(directory / "mapped.json") as part:
                part.write_text(json.dumps(plain))
    cells = libraries.library.cells
    own = {kind: number for kind, number in plain["types"].items() if kind in cells}
    return Mapped(
        cells=sum(own.values()),
        flip_flops=sum(number for kind, number in own.items() if cells[kind].is_flip_flop),
        um2=round(sum(cells[kind].area * number for kind, number in own.items()), 4),
        levels=plain["levels"],
        children={kind: number for kind, number in plain["types"].items() if kind not in cells},
        seconds=plain["seconds"],
    )


def map_modules(
    design: Design,
    libraries: Libraries,
    *,
    jobs: int = 2,
    on_module: Callable[[str, Mapped, int, int], None] | None = None,
) -> MappedDesign:
    """Map every distinct module of ``design``; RAM macros stay black boxes.

    on_module: called for each module that is done: name, result, number done, number of all.
    """
    macros = {m.name: m.block for m in design.modules if is_macro(m.block)}
    refuse_large_memories(design, set(macros))
    texts = module_texts(design.verilog)
    stubs = {name: stub(text) for name, text in texts.items()}
    tool = default_tool()
    # The largest first: the last to finish is then a small one.
    order = sorted((n for n in texts if n not in macros), key=lambda n: -len(texts[n]))
    mapped: dict[str, Mapped] = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = {
            pool.submit(
                _map_one,
                name,
                texts[name],
                "".join(stubs[child] for child in instantiated(texts[name], set(texts))),
                libraries,
                tool,
            ): name
            for name in order
        }
        try:
            for future in concurrent.futures.as_completed(waiting):
                name = waiting[future]
                mapped[name] = future.result()
                if on_module is not None:
                    on_module(name, mapped[name], len(mapped), len(order))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for name, module in mapped.items():
        unknown = sorted(set(module.children) - set(texts))
        if unknown:
            raise SynthesisError(f"{name}: {', '.join(unknown[:5])}: not mapped")
    bits = {}
    for name, block in macros.items():
        size = block.config.describe()
        bits[name] = size["depth"] * size["width"]
    library = libraries.library
    return MappedDesign(
        design, {n: mapped[n] for n in texts if n in mapped}, bits,
        library.nand2.area, library.flip_flop.area,
    )  # fmt: skip
