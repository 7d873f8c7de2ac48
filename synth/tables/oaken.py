"""Oaken's engines next to its Table 4, and the whole KV cache."""

import itertools

from golden.markers import table
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from hdl.registry import find
from synth.area import load_libraries
from synth.modules import MappedDesign, map_modules
from synth.tables.common import FIGURES, Tables, figures, mm2, row_table

# Oaken, Table 4 (28 nm), mm2 in each compute core
PAPER_ENGINES = {"quantization": 0.074, "dequantization": 0.252}
OAKEN_LANES = (8, 16, 32, 64)
# Structures of the engines: class of a module -> row of it and of its parts. A class with
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

    rows, structures, both = [], [], []
    for name, designs in engines.items():
        paper = PAPER_ENGINES[name]
        for lanes, design in designs.items():
            cost = design.total()
            logic, _ = mm2(cost, design.scale_28nm)
            ratio = f"{logic / paper:.2f}"
            rows.append((f"{name}, {lanes}", *figures(cost, design), f"{paper}", ratio))
        at = _lanes_of(paper, [(n, mm2(d.total(), d.scale_28nm)[0]) for n, d in designs.items()])
        blank = ("",) * 2
        rows.append(
            (f"{name}, {at:.1f} by interpolation", *blank, f"{paper}", *blank, f"{paper}", "1.00")
        )
        parts = {lanes: design.by_row(_structure_of) for lanes, design in designs.items()}
        first, most = next(iter(parts.values())), parts[max(parts)]
        for row in sorted(first, key=lambda row: -most[row].um2):
            areas = [mm2(parts[n][row], designs[n].scale_28nm)[0] for n in designs]
            structures.append((f"{name}: {row}", *(f"{area:.4f}" for area in areas)))
        sums = [mm2(design.total(), design.scale_28nm)[0] for design in designs.values()]
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
    widths = [f"{n} lanes" for n in next(iter(engines.values()))]
    return {
        "oaken_engines": table(
            ("engine, lanes", *FIGURES, "Table 4, mm2", "logic / Table 4"), rows
        ),
        "oaken_structures": table(("logic, mm2", *widths), structures),
        "oaken_cache": row_table("oaken_kv_engine", whole, costs),
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


TABLES = {
    "oaken": Tables(
        ("oaken_engines", "oaken_structures", "oaken_cache"), lambda options: _map_oaken()
    ),
}
