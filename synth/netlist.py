"""A block mapped for speed, as a flat netlist with the design's names.

Yosys flattens it; ABC balances, buffers and sizes it (docs/timing.md).
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import filelock

from golden.files import kept_json, made_aside
from hdl.back.verilog import Design
from synth.area import (
    CACHE,
    DONT_USE,
    Libraries,
    SynthesisError,
    is_macro,
    liberty_files,
    refuse_large_memories,
)
from synth.delays import Delays, Fo4, TimedCell
from synth.modules import module_texts
from synth.yosys import run, version

# From structure (`if -g` balances it) to cells for the least delay, then buffers and sizes.
_SCRIPT = "+strash;dc2;strash;if,-g;strash;dch,-f;map,-B,0.9;topo;buffer,-p,-N,8;topo;upsize;dnsize"
STARTS = ("input", "register", "RAM")
ENDS = ("register", "RAM", "output")


@dataclasses.dataclass(frozen=True)
class Step:
    """A cell on a path, or its start or end. Times in ns, of the edge at ``pin``."""

    cell: str  # kind of cell; empty for a port or a RAM
    pin: str
    signal: str  # the design's name of the net, where it has one
    is_rising: bool
    fanout: int
    arrival: float


@dataclasses.dataclass(frozen=True)
class TimedPath:
    """The worst path from one kind of start to one kind of end.

    ``ns`` is the least clock period of the path: the setup time of its end is in it.
    """

    start_kind: str
    end_kind: str
    start: str  # register or port, in the design's names
    start_module: str
    end: str
    end_module: str
    ns: float
    setup: float
    steps: tuple[Step, ...]

    @property
    def cells(self) -> int:
        """Cells between start and end, the starting flip-flop not counted."""
        return max(0, sum(1 for step in self.steps if step.cell) - (self.start_kind == "register"))

    @property
    def kind(self) -> str:
        return f"{self.start_kind} to {self.end_kind}"


@dataclasses.dataclass
class Instance:
    """A mapped cell: pin -> net, or pin -> constant."""

    name: str  # of the design, for flip-flops
    cell: TimedCell
    nets: dict[str, int]
    ties: dict[str, bool] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Netlist:
    """A mapped block, flat. A net is a number; constants have none.

    sources, sinks : (net, kind, the design's name) of ports and RAM pins
    names : net -> the design's name
    """

    cells: list[Instance]
    sources: list[tuple[int, str, str]]
    sinks: list[tuple[int, str, str]]
    names: dict[int, str]
    module_of: Callable[[str], str]
    um2: float
    flip_flops: int


def _script(design: Design, macros: list[str], liberties: list[str]) -> str:
    options = " ".join(f"-liberty {path}" for path in liberties)
    unused = " ".join(f'-dont_use "{pattern}"' for pattern in DONT_USE)
    return "\n".join(
        [
            "read_verilog design.v",
            *(f"blackbox {name}" for name in macros),
            f"synth -noabc -flatten -top {design.name}",
            # An enable becomes gates: ABC then sees its fan-out and buffers it.
            "dfflegalize -cell $_DFF_P_ x",
            "simplemap",
            "clean",
            "rename -wire t:$_DFF_*",
            f"dfflibmap {options} {unused}",
            f"abc {options} {unused} -constr drive.sdc -script {_SCRIPT}",
            "opt_clean",
            "write_json netlist.json",
            "",
        ]
    )


def map_for_speed(design: Design, libraries: Libraries, fo4: Fo4, tool: str) -> dict[str, Any]:
    """Yosys' JSON of the mapped top; kept under build/synth."""
    macros = [module.name for module in design.modules[:-1] if is_macro(module.block)]
    refuse_large_memories(design, set(macros))
    names = [f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.lib" for text in libraries.texts]
    script = _script(design, macros, names)
    # Inputs are driven as by the inverter, outputs drive four of it; ABC has femtofarads.
    drive = f"set_driving_cell {fo4.cell}\nset_load {fo4.load_pf * 1000:.6f} [all_outputs]\n"
    identity = "\n".join([design.verilog, script, drive, version(tool)])
    directory = CACHE / "timing" / hashlib.sha256(identity.encode()).hexdigest()[:20]
    directory.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(directory / "lock"):
        kept = kept_json(directory / "netlist.json")
        if not _is_netlist(kept, design.name):
            with made_aside(directory) as part:
                (part / "design.v").write_text(design.verilog)
                (part / "drive.sdc").write_text(drive)
                with liberty_files(part, dict(zip(names, libraries.texts, strict=True))):
                    run(script, part, tool=tool)
            kept = kept_json(directory / "netlist.json")
    if not _is_netlist(kept, design.name):
        raise SynthesisError(f"{design.name}: Yosys has left no netlist in {directory}")
    return kept["modules"][design.name]


def _is_netlist(kept: Any, top: str) -> bool:
    modules = kept.get("modules") if isinstance(kept, dict) else None
    return isinstance(modules, dict) and {"ports", "cells", "netnames"} <= set(
        modules.get(top) or ()
    )


def _modules_by_path(design: Design) -> Callable[[str], str]:
    """(name of a register or signal, with the instances it is in) -> its module."""
    texts = module_texts(design.verilog)
    children = {
        name: {
            words[1].lstrip("\\"): words[0].lstrip("\\")
            for line in text.splitlines()
            if line.endswith(" (") and len(words := line[:-2].split()) == 2
            and words[0].lstrip("\\") in texts
        }
        for name, text in texts.items()
    }  # fmt: skip

    def module_of(name: str) -> str:
        module = design.name
        at = name.split(".")
        while len(at) > 1 and at[0] in children.get(module, {}):
            module = children[module][at[0]]
            at = at[1:]
        return module

    return module_of


def _bits(name: str, entry: dict[str, Any]) -> Iterator[tuple[int, str]]:
    name = name.replace("\\", "")
    bits = entry["bits"]
    offset = entry.get("offset", 0)
    for number, bit in enumerate(bits):
        if isinstance(bit, int):
            yield bit, name if len(bits) == 1 else f"{name}[{number + offset}]"


def netlist_of(
    design: Design, top: dict[str, Any], libraries: Libraries, delays: Delays
) -> Netlist:
    """``top`` as ``map_for_speed`` returns it, with names and delays."""
    names: dict[int, str] = {}
    for name, entry in sorted(
        top["netnames"].items(), key=lambda item: (item[0].count("."), len(item[0]), item[0])
    ):
        if not entry.get("hide_name"):
            for bit, called in _bits(name, entry):
                names.setdefault(bit, called)
    sources, sinks = [], []
    for name, entry in top["ports"].items():
        for bit, called in _bits(name, entry):
            if entry["direction"] == "input":
                sources.append((bit, "input", called))
            else:
                sinks.append((bit, "output", called))
    cells = []
    um2, flip_flops = 0.0, 0
    for name, entry in top["cells"].items():
        kind = entry["type"]
        if kind in libraries.library.cells:
            known = libraries.library.cells[kind]
            um2 += known.area
            flip_flops += known.is_flip_flop
            nets = {
                pin: bits[0]
                for pin, bits in entry["connections"].items()
                if bits and isinstance(bits[0], int)
            }
            ties = {
                pin: bits[0] == "1"
                for pin, bits in entry["connections"].items()
                if bits and not isinstance(bits[0], int)
            }
            called = name.replace("\\", "").partition("$_DFF")[0]
            cells.append(Instance(called, delays[kind], nets, ties))
            continue
        if kind == "$scopeinfo":  # of a module that was flattened
            continue
        if kind.startswith("$"):
            raise SynthesisError(f"{design.name}: {kind}: not mapped; does the library lack it?")
        for port, bits in entry["connections"].items():  # a RAM
            for number, bit in enumerate(bits):
                if not isinstance(bit, int) or port.endswith("clk"):
                    continue
                called = f"{name}.{port}".replace("\\", "")
                called += f"[{number}]" if len(bits) > 1 else ""
                is_output = entry["port_directions"][port] == "output"
                (sources if is_output else sinks).append((bit, "RAM", called))
    return Netlist(
        cells, sources, sinks, names, _modules_by_path(design), round(um2, 4), flip_flops
    )
