"""``python -m synth.compare kllm | chip | oaken | fp16 | libraries``: the tables of docs/area.md.

``chip`` and ``oaken`` map every distinct module of a design once and add up its instances.
``libraries`` maps a few blocks to other libraries, given as ``--set NAME=FILE[,FILE...]``.
"""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from golden.config import Config
from hdl.block import Block
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.index.histogram_parallel import IndexHistogramParallel
from hdl.index.reducer import IndexReducer
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.orizuru import KllmOrizuru, KllmOrizuruConfig
from hdl.kllm.pe_lane import KllmPeLaneConfig
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from hdl.registry import find
from hdl.verilog import convert
from synth.area import AreaReport, Libraries, SynthesisError, load_libraries, synthesize
from synth.liberty import LibraryError
from synth.modules import Cost, Mapped, MappedDesign, map_modules
from synth.yosys import YosysError

__all__ = [
    "SRAM_UM2_PER_BIT",
    "chip_tables",
    "fill",
    "fp16_tables",
    "kllm_tables",
    "library_tables",
    "main",
    "oaken_tables",
    "table",
]

PAGE = Path("docs") / "area.md"

# KLLM, Table I (28 nm), um2
PAPER_COUNTER = 2.71e-1 * 1e6 / 32
PAPER_MAC = 9.05e-2 * 1e6 / 32
PAPER_CONCAT = 8.68e-2 * 1e6 / 4096

# um2 per bit of Table I's own buffers: 2 KB of codebook 0.52, 136 KB of outputs 4.14,
# 2 KB of weights 4.12, 32 KB of activation indices 8.24.
SRAM_UM2_PER_BIT = {
    "low": 8.44e-3 * 1e6 / (2 * 8192),
    "middle": 4.61 * 1e6 / (136 * 8192),
    "high": 2.16 * 1e6 / (32 * 8192),
}
# KLLM, Table I, mm2 of the chip: row -> (what Table I says, area)
TABLE1 = {
    "Concat": ("16 x 4096", 16 * 8.68e-2),
    "IdxCounter": ("16 x 32", 16 * 2.71e-1),
    "MAC": ("16 x 32", 16 * 9.05e-2),
    "Wgt Buffer": ("16 x 2 KB", 16 * 6.75e-2),
    "Out Buffer": ("136 KB", 4.61),
    "Act Idx Buffer": ("32 KB", 2.16),
    "Act Codebook Buffer": ("2 KB", 8.44e-3),
    "Clustering Unit": ("1", 2.11e-1),
    "Orizuru": ("273 units", 7.39e-1),
    "Functional Unit": ("1", 8.89e-1),
}
TABLE1_TOTAL = 16.87

# Rows of the chip's table: Table I's names where it has them, then what it does not list.
_ROWS = {
    "KllmConcat": "Concat",
    "IndexHistogramParallel": "IdxCounter",
    "IndexReducer": "MAC",
    "KllmWeightBuffer": "Wgt Buffer",
    "KllmSlotMemory": "Act Idx Buffer",
    "IndexNearest": "Clustering Unit",
    "KllmOrizuru": "Orizuru",
    "KllmFunctionalUnit": "Functional Unit",
    "KllmNormStats": "norm statistics",
    "KllmOutlier": "outlier path of the lanes",
    "KllmScaler": "scaler of the lanes",
    "KllmPeLane": "control and FIFOs of the lanes",
    "KllmLaneArray": "broadcast to the lanes",
    "KllmWeightStripe": "weight stripe",
    "KllmWeightSupply": "weight supply",
    "KllmQuantizer": "quantizer engine",
    "KllmIntegerQuantizer": "integer quantizer",
    "KllmMatmul": "matmul engine",
    "KllmDispatcher": "dispatcher",
    "KllmLoad": "load and read engines",
    "KllmReadback": "load and read engines",
    "AxiReadPort": "AXI",
    "AxiLiteRegisters": "AXI",
}
_TOP_ROW = "skid buffers and wiring"
LENGTHS = (576, 4096, 11008)

# Oaken, Table 4 (28 nm), mm2 in each compute core
PAPER_ENGINES = {"quantization": 0.074, "dequantization": 0.252}
OAKEN_LANES = (8, 16, 32, 64)
# Structures of the engines: class of a module -> row of it and of what stands in it. A class with
# a parent in front counts only there.
_STRUCTURES = {
    "OakenDecomposer": "groups and shifts",
    "_Maxima": "minima and maxima",
    "_Scales": "steps: range / 15 or 31",
    "OakenInlierQuantizer/_Lanes": "codes: y / step, middle group",
    "OakenOutlierQuantizer/_Lanes": "codes: y / step, inner and outer group",
    "VectorBuffer": "vector buffer",
    "OakenZeroRemove": "zero-remove shifter",
    "OakenQuantEngine": "control and queues",
    "OakenDequantScales": "bases of a token",
    "OakenInlierDequantizer": "base + code * step, middle group",
    "OakenOutlierDequantizer": "base + code * step, inner and outer group",
    "OakenZeroInsert": "zero-insert shifter",
    "OakenDequantEngine": "control and queues",
}
# The same for a whole oaken_kv_engine.
_KV_ENGINE = {
    "OakenQuantEngine": "quantization engine",
    "OakenKvWriter": "records to words",
    "OakenDequantEngine": "dequantization engine",
    "OakenScaleBuffer": "scale buffer",
    "OakenKvReader": "words to records",
    "PagingPageTable": "page table",
    "PagingMmuReader": "MMU: reads and their queues",
    "PagingMmuWriter": "MMU: appends",
    "PagingMmu": "MMU: dispatch, trim and free",
    "AxiReadPort": "AXI ports",
    "AxiWritePort": "AXI ports",
    "OakenKvEngine": "requests, thresholds, statuses",
}

Map = Callable[[Block, str], AreaReport]


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of a page: the first column to the left, the others to the right."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _lanes() -> dict[str, KllmPeLaneConfig]:
    """The three micro-architectures, each with and without the integer mode."""
    named = find("kllm_pe_lane").configs
    lanes: dict[str, KllmPeLaneConfig] = {}
    for config in ("table1", "table1_sram", "table1_two_level"):
        lane = named[config]
        assert isinstance(lane, KllmPeLaneConfig)
        lanes[lane.counter] = lane
        lanes[f"{lane.counter}, no integer mode"] = dataclasses.replace(lane, integer_bits=0)
    return lanes


@dataclasses.dataclass(frozen=True)
class _Lane:
    """Counters and reducers of one lane."""

    config: KllmPeLaneConfig
    counter: AreaReport
    reducer: AreaReport

    @property
    def reducers(self) -> int:
        return self.config.columns if self.config.counter == "sram" else 1

    @property
    def logic_28nm(self) -> float:
        """um2 of all counters and reducers, flip-flop scaled, RAMs not included."""
        counters = self.config.columns * self.counter.um2_28nm
        return counters + self.reducers * self.reducer.um2_28nm

    @property
    def sram_bits(self) -> int:
        return self.config.columns * self.counter.macro_bits

    def cycles(self, length: int) -> int:
        """Of one job in steady state: counting overlaps reducing."""
        return max(-(-length // self.config.elements), self.config.reduce_cycles)


def kllm_tables(map_block: Map) -> dict[str, str]:
    """Sections ``kllm_units`` and ``kllm_lanes``."""
    lanes = {
        name: _Lane(
            config,
            map_block(IndexHistogramParallel(config.counter_config), "index_histogram_parallel"),
            map_block(IndexReducer(config.reducer_config), "index_reducer"),
        )
        for name, config in _lanes().items()
    }
    units = []
    for name, lane in lanes.items():
        for unit, report, per in (
            ("counter", lane.counter, 1),
            ("reducer, per MAC", lane.reducer, lane.config.reducer_config.macs),
        ):
            paper = PAPER_COUNTER if unit == "counter" else PAPER_MAC
            units.append(
                (
                    f"{unit}: {name}",
                    f"{report.um2 / per:,.0f}",
                    f"{report.kge / per:,.2f}",
                    f"{report.flip_flops / per:,.0f}",
                    f"{report.macro_bits:,}" if report.macro_bits else "",
                    f"{report.um2_28nm / per:,.0f}",
                    f"{paper:,.0f}",
                    f"{report.um2_28nm / per / paper:.1f}",
                )
            )
    rows = []
    for name, lane in lanes.items():
        middle = lane.logic_28nm + lane.sram_bits * SRAM_UM2_PER_BIT["middle"]
        low, high = (
            (lane.logic_28nm + lane.sram_bits * SRAM_UM2_PER_BIT[which]) / 1e6
            for which in ("low", "high")
        )
        rows.append(
            (
                name,
                f"{lane.logic_28nm / 1e6:.2f}",
                f"{lane.sram_bits / 1024:,.0f}" if lane.sram_bits else "0",
                f"{middle / 1e6:.2f}" + (f" ({low:.2f} to {high:.2f})" if lane.sram_bits else ""),
                *(f"{lane.cycles(length)}" for length in LENGTHS),
                *(f"{middle / 1e6 * lane.cycles(length):,.0f}" for length in LENGTHS),
            )
        )
    unit_head = (
        "unit", "um2, table", "kGE", "flip-flops", "RAM bits", "um2, 28 nm eq.", "Table I", "ratio",
    )  # fmt: skip
    lane_head = (
        "32 columns", "logic, mm2", "RAM, Kbit", "with RAM, mm2",
        *(f"cycles, K={length}" for length in LENGTHS),
        *(f"mm2 x cycles, K={length}" for length in LENGTHS),
    )  # fmt: skip
    return {"kllm_units": table(unit_head, units), "kllm_lanes": table(lane_head, rows)}


def _row_of(kind: str, parent: str, row: str) -> str:
    if kind == "MemoryShared" and parent == "KllmAccelerator":
        return "Out Buffer"
    return _ROWS.get(kind, row or _TOP_ROW)


def chip_tables(
    design: MappedDesign, parallel: MappedDesign, config: KllmAcceleratorConfig
) -> dict[str, str]:
    """Sections ``kllm_chip`` and ``kllm_modules``.

    parallel: KllmOrizuru of 273 units, for the row that Table I has and ``design`` has not.
    """
    costs = design.by_row(_row_of)
    counts = dict.fromkeys(costs, 0)
    for kind, row in _ROWS.items():
        counts[row] = counts.get(row, 0) + design.count(kind)
    lane = config.lane
    macs = lane.reducer_config.macs * (lane.columns if lane.counter == "sram" else 1)
    what = {
        "Concat": f"{config.lanes} x {lane.columns * lane.elements}",
        "IdxCounter": f"{config.lanes} x {lane.columns}",
        "MAC": f"{config.lanes} x {macs}",
        "Out Buffer": "vector memory",
        "Act Idx Buffer": "slots",
        "Orizuru": "shared comparators",
        _TOP_ROW: "",
    }

    def line(name: str, ours: str, cost: Cost, scale: float) -> tuple[str, ...]:
        stated, paper = TABLE1.get(name, ("", 0.0))
        logic, ram = _mm2(cost, scale)
        total = logic + ram["middle"]
        return (
            name,
            ours,
            f"{cost.um2 / design.nand2_um2 / 1000:,.1f}",
            f"{cost.flip_flops:,}",
            f"{logic:.3f}",
            f"{cost.ram_bits / 8192:,.1f}" if cost.ram_bits else "",
            f"{total:.3f}",
            stated,
            f"{paper:.3f}" if paper else "",
            f"{total / paper:.1f}" if paper else "",
        )

    scale = design.scale_28nm
    order = [row for row in TABLE1 if row in costs]
    order += sorted((r for r in costs if r not in TABLE1), key=lambda r: -costs[r].um2)
    rows = [line(row, what.get(row, str(counts[row])), costs[row], scale) for row in order]
    stated, area = TABLE1["Act Codebook Buffer"]
    rows.append(("Act Codebook Buffer", "in the MACs", *("",) * 5, stated, f"{area:.3f}", ""))
    total = design.total()
    logic, ram = _mm2(total, scale)
    paper = TABLE1_TOTAL
    rows.append(
        (
            "**total**",
            "",
            f"{total.um2 / design.nand2_um2 / 1000:,.1f}",
            f"{total.flip_flops:,}",
            f"{logic:.3f}",
            f"{total.ram_bits / 8192:,.1f}",
            f"{logic + ram['middle']:.3f} ({logic + ram['low']:.2f} to {logic + ram['high']:.2f})",
            "",
            f"{paper}",
            f"{(logic + ram['middle']) / paper:.1f}",
        )
    )
    units = parallel.count("KllmOrizuruUnit")
    alternative = line("Orizuru", "", parallel.total(), parallel.scale_28nm)[2:]
    rows.append(("Orizuru, not in the total", f"{units} units", *alternative))
    head = (
        "row", "ours", "kGE", "flip-flops", "logic, mm2", "RAM, KB", "with RAM, mm2",
        "Table I", "Table I, mm2", "ratio",
    )  # fmt: skip
    return {"kllm_chip": table(head, rows), "kllm_modules": _module_table(design)}


def _mm2(cost: Cost, scale: float) -> tuple[float, dict[str, float]]:
    """(logic, RAM at each assumption), mm2 in 28 nm equivalents."""
    ram = {which: cost.ram_bits * per_bit / 1e6 for which, per_bit in SRAM_UM2_PER_BIT.items()}
    return cost.um2 * scale / 1e6, ram


def _module_table(design: MappedDesign, most: int = 30) -> str:
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


def _map_chip() -> tuple[dict[str, str], float]:
    """Tables of the chip, seconds of mapping its modules."""
    libraries = load_libraries()

    def progress(name: str, module: Mapped, done: int, total: int) -> None:
        cost = f"{module.um2:,.0f} um2 ({module.seconds:.0f} s)"
        print(f"  [{done}/{total}] {name}: {cost}", flush=True)

    config = find("kllm_accelerator").configs["table1"]
    assert isinstance(config, KllmAcceleratorConfig)
    print("kllm_accelerator, table1: Verilog", flush=True)
    chip = convert(KllmAccelerator(config), "kllm_accelerator")
    design = map_modules(chip, libraries, on_module=progress)
    print("kllm_orizuru of 273 units: Verilog", flush=True)
    units = convert(KllmOrizuru(KllmOrizuruConfig(architecture="parallel")), "kllm_orizuru")
    parallel = map_modules(units, libraries, on_module=progress)
    return chip_tables(design, parallel, config), design.seconds + parallel.seconds


def _structure_of(kind: str, parent: str, row: str) -> str:
    return _STRUCTURES.get(f"{parent}/{kind}") or _STRUCTURES.get(kind) or row


def _lanes_of(area: float, areas: list[tuple[int, float]]) -> float:
    """Lanes of an engine of ``area``, on straight lines through (lanes, area) of known ones."""
    pairs = list(itertools.pairwise(areas))
    (n, low), (most, high) = next((p for p in pairs if p[1][1] >= area), pairs[-1])
    return n + (most - n) * (area - low) / (high - low)


def _part_of(kind: str, parent: str, row: str) -> str:
    return _KV_ENGINE.get(kind) or row


def oaken_tables(
    engines: dict[str, dict[int, MappedDesign]], whole: MappedDesign
) -> dict[str, str]:
    """Sections ``oaken_engines``, ``oaken_structures`` and ``oaken_cache``.

    engines: quantization and dequantization, of each number of lanes. whole: oaken_kv_engine.
    """

    def columns(cost: Cost, design: MappedDesign) -> tuple[str, ...]:
        logic, ram = _mm2(cost, design.scale_28nm)
        return (
            f"{cost.um2 / design.nand2_um2 / 1000:,.1f}",
            f"{cost.flip_flops:,}",
            f"{logic:.3f}",
            f"{cost.ram_bits / 8192:,.1f}" if cost.ram_bits else "",
            f"{logic + ram['middle']:.3f}",
        )

    rows, structures, both = [], [], []
    for name, designs in engines.items():
        paper = PAPER_ENGINES[name]
        for lanes, design in designs.items():
            cost = design.total()
            logic, _ = _mm2(cost, design.scale_28nm)
            ratio = f"{logic / paper:.2f}"
            rows.append((f"{name}, {lanes}", *columns(cost, design), f"{paper}", ratio))
        at = _lanes_of(paper, [(n, _mm2(d.total(), d.scale_28nm)[0]) for n, d in designs.items()])
        blank = ("",) * 2
        rows.append(
            (f"{name}, {at:.1f} by interpolation", *blank, f"{paper}", *blank, f"{paper}", "1.00")
        )
        parts = {lanes: design.by_row(_structure_of) for lanes, design in designs.items()}
        first, most = next(iter(parts.values())), parts[max(parts)]
        for row in sorted(first, key=lambda row: -most[row].um2):
            areas = [_mm2(parts[n][row], designs[n].scale_28nm)[0] for n in designs]
            structures.append((f"{name}: {row}", *(f"{area:.4f}" for area in areas)))
        sums = [_mm2(design.total(), design.scale_28nm)[0] for design in designs.values()]
        structures.append((f"**{name}**", *(f"{area:.4f}" for area in sums)))
        both.append(sums)
    shares = [second / first for first, second in zip(*both, strict=True)]
    paper_share = PAPER_ENGINES["dequantization"] / PAPER_ENGINES["quantization"]
    structures.append(
        (
            f"dequantization / quantization (Table 4: {paper_share:.1f})",
            *(f"{share:.2f}" for share in shares),
        )
    )
    costs = whole.by_row(_part_of)
    found = set(costs)
    for designs in engines.values():
        for design in designs.values():
            found |= set(design.by_row(_structure_of))
    lost = {*_STRUCTURES.values(), *_KV_ENGINE.values()} - found
    if lost:
        raise ValueError(f"no module has the class of {', '.join(sorted(lost))}")
    parts_of_whole = [
        (row, *columns(costs[row], whole)) for row in sorted(costs, key=lambda r: -costs[r].um2)
    ]
    parts_of_whole.append(("**total**", *columns(whole.total(), whole)))
    figures = "kGE", "flip-flops", "logic, mm2", "RAM, KB", "with RAM, mm2"
    widths = [f"{n} lanes" for n in next(iter(engines.values()))]
    return {
        "oaken_engines": table(
            ("engine, lanes", *figures, "Table 4, mm2", "logic / Table 4"), rows
        ),
        "oaken_structures": table(("logic, mm2", *widths), structures),
        "oaken_cache": table(("oaken_kv_engine", *figures), parts_of_whole),
    }


def _map_oaken() -> tuple[dict[str, str], float]:
    """Tables of Oaken, seconds of mapping its modules."""
    libraries, seconds = load_libraries(), 0.0

    def mapped(block: Block, label: str) -> MappedDesign:
        nonlocal seconds
        name = label.partition(",")[0]
        design = map_modules(convert(block, name), libraries)
        seconds += design.seconds
        um2 = design.total().um2 * design.scale_28nm
        print(f"  {label}: {um2:,.0f} um2, 28 nm eq.", flush=True)
        return design

    engines: dict[str, dict[int, MappedDesign]] = {name: {} for name in PAPER_ENGINES}
    for lanes in OAKEN_LANES:
        quantizer = OakenQuantEngine(OakenQuantEngineConfig(lanes=lanes))
        engines["quantization"][lanes] = mapped(quantizer, f"oaken_quant_engine, {lanes} lanes")
        dequantizer = OakenDequantEngine(OakenDequantEngineConfig(lanes=lanes))
        engines["dequantization"][lanes] = mapped(
            dequantizer, f"oaken_dequant_engine, {lanes} lanes"
        )
    whole = find("oaken_kv_engine")
    block = whole.component(whole.config)
    return oaken_tables(engines, mapped(block, "oaken_kv_engine")), seconds


def _fp16_blocks() -> dict[str, tuple[Block, str]]:
    blocks: dict[str, tuple[Block, str]] = {}
    for stages in (0, 2, 4):
        blocks[f"fp16_add, {stages} stages"] = FpAdd(FpAddConfig(stages=stages)), "fp16_add"
        blocks[f"fp16_mul, {stages} stages"] = FpMul(FpMulConfig(stages=stages)), "fp16_mul"
        blocks[f"fp16_fma, {stages} stages"] = FpFma(FpFmaConfig(stages=stages)), "fp16_fma"
    return dict(sorted(blocks.items()))


def fp16_tables(map_block: Map) -> dict[str, str]:
    """Section ``fp16``."""
    rows = []
    for label, (block, name) in _fp16_blocks().items():
        report = map_block(block, name)
        rows.append(
            (
                label,
                f"{report.cells:,}",
                f"{report.flip_flops:,}",
                f"{report.um2:,.0f}",
                f"{report.kge:.2f}",
                f"{report.um2_28nm:,.0f}",
            )
        )
    head = ("block", "cells", "flip-flops", "um2, table", "kGE", "um2, 28 nm eq.")
    return {"fp16": table(head, rows)}


def library_tables(sets: dict[str, Map]) -> dict[str, str]:
    """Section ``libraries``: the same blocks in several libraries, kGE and um2."""
    lane = find("kllm_pe_lane").configs["table1"]
    assert isinstance(lane, KllmPeLaneConfig)
    # A block is elaborated once: each library gets one of its own.
    blocks: dict[str, tuple[Callable[[Any], Block], Config, str]] = {
        "index_histogram_parallel, table1": (
            IndexHistogramParallel,
            lane.counter_config,
            "index_histogram_parallel",
        ),
        "index_reducer, table1": (IndexReducer, lane.reducer_config, "index_reducer"),
        "fp16_fma, 2 stages": (FpFma, FpFmaConfig(), "fp16_fma"),
    }
    rows = []
    for label, (component, config, name) in blocks.items():
        for library, map_block in sets.items():
            report = map_block(component(config), name)
            rows.append(
                (
                    label,
                    library,
                    f"{report.cells:,}",
                    f"{report.flip_flops:,}",
                    f"{report.um2:,.1f}",
                    f"{report.kge:,.2f}",
                    f"{report.um2_28nm:,.0f}",
                )
            )
    head = ("block", "library", "cells", "flip-flops", "um2", "kGE", "um2, 28 nm eq.")
    return {"libraries": table(head, rows)}


def fill(text: str, sections: dict[str, str]) -> str:
    """``text`` with what stands between the markers of each section replaced."""
    for name, body in sections.items():
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end generated -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no section {name!r}")
        text = head + begin + body + end + tail
    return text


def _mapper(libraries: Libraries) -> Map:
    def map_block(block: Block, name: str) -> AreaReport:
        report = synthesize(block, name, libraries)
        source = "cache" if report.cached else f"{report.seconds:.0f} s"
        print(f"  {report.library[:40]}: {name}: {report.um2:,.0f} um2 ({source})", flush=True)
        return report

    return map_block


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m synth.compare", description=__doc__)
    parser.add_argument("what", choices=("kllm", "chip", "oaken", "fp16", "libraries"))
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="NAME=FILE[,FILE...]"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    try:
        own = _mapper(load_libraries())
        if options.what == "kllm":
            sections = kllm_tables(own)
        elif options.what in ("chip", "oaken"):
            sections, seconds = _map_chip() if options.what == "chip" else _map_oaken()
            print(f"  {seconds:.0f} s of mapping in all, at any time")
        elif options.what == "fp16":
            sections = fp16_tables(own)
        else:
            sets = {"own table": own}
            for text in options.sets:
                name, _, files = text.partition("=")
                sets[name] = _mapper(load_libraries([Path(file) for file in files.split(",")]))
            sections = library_tables(sets)
        options.page.write_text(fill(options.page.read_text(), sections))
    except (LibraryError, SynthesisError, YosysError, OSError, ValueError) as error:
        print(f"synth.compare: {error}", file=sys.stderr)
        return 2
    print(f"{options.page}: {', '.join(sections)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
