"""MILLION: what each part of a whole million_attention costs."""

from golden.markers import table
from hdl.back.verilog import convert
from hdl.registry import find
from synth.area import load_libraries
from synth.modules import Cost, MappedDesign, map_modules
from synth.tables.common import Tables, mm2

_CONTROL = "requests, statuses, streams"
# Class of a module -> row of it and of its parts.
_PARTS = {
    "MillionTableBuilder": "tables: products with the codebook",
    "MillionScoreEngine": "tables and scores",
    "AttentionWeights": "softmax weights",
    "MillionValueEngine": "bins, and their products with the codebook",
    "MillionWindow": "exact rows: memory, scores, sums",
    "MillionOutput": "outputs",
    "MillionPqEncoder": "encoder",
    "IndexCodebookStore": "codebooks",
    "PagingMmu": "paged memory and AXI port",
    "MillionAttention": "queues between the parts",
    **dict.fromkeys(
        (
            "MillionControl", "MillionAttendControl", "MillionEncodeControl", "MillionVerdict",
            "MillionLoader", "MillionKvWriter", "MillionQuerySplitter", "MillionCodeReader",
            "MillionRecordWriter", "MillionRestorer",
        ),
        _CONTROL,
    ),
}  # fmt: skip


def _part_of(kind: str, parent: str, row: str) -> str:
    return _PARTS.get(kind) or row


def parts_table(designs: dict[str, MappedDesign]) -> dict[str, str]:
    """Section ``million_parts``: a column group for each configuration by its name."""
    costs = {name: design.by_row(_part_of) for name, design in designs.items()}
    for name, found in costs.items():
        if lost := set(_PARTS.values()) - set(found):
            raise ValueError(f"{name}: no module has the class of {', '.join(sorted(lost))}")

    def cells(pick) -> list[str]:
        made = []
        for name, design in designs.items():
            cost: Cost = pick(name)
            made += [
                f"{cost.um2 / design.nand2_um2 / 1000:,.1f}",
                f"{cost.flip_flops:,}",
                f"{mm2(cost, design.scale_28nm)[0]:.3f}",
                f"{cost.ram_bits / 8192:,.1f}" if cost.ram_bits else "",
            ]
        return made

    first = next(iter(costs.values()))
    order = sorted(first, key=lambda row: -first[row].um2)
    rows = [[row, *cells(lambda name, row=row: costs[name][row])] for row in order]
    rows.append(["**total**", *cells(lambda name: designs[name].total())])
    figures = ("kGE", "flip-flops", "logic, mm2", "RAM, KB")
    head = ["part", *(f"{name}: {figure}" for name in designs for figure in figures)]
    return {"million_parts": table(head, rows)}


def _map_parts() -> tuple[dict[str, str], float]:
    """The table, and seconds of mapping."""
    libraries, seconds = load_libraries(), 0.0
    registered = find("million_attention")
    designs = {}
    for name, config in {"default": registered.config, **registered.configs}.items():
        if name not in ("default", "smollm2"):
            continue
        design = map_modules(convert(registered.component(config), "million_attention"), libraries)
        seconds += design.seconds
        designs[name] = design
        print(f"  {name}: {design.total().um2 * design.scale_28nm:,.0f} um2", flush=True)
    return parts_table(designs), seconds


TABLES = {"million_parts": Tables(("million_parts",), lambda options: _map_parts())}
