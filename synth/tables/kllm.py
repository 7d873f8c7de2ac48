"""KLLM next to its Table I: ``kllm`` its counters and reducers, ``chip`` the whole accelerator."""

import dataclasses

from golden.markers import table
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.index.histogram_parallel import IndexHistogramParallel
from hdl.index.reducer import IndexReducer
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.row_lookup import KllmRowLookup
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.kllm.lane.select_column import KllmSelectColumn
from hdl.kllm.outliers.orizuru import KllmOrizuru, KllmOrizuruConfig
from hdl.registry import find
from synth.area import AreaReport, load_libraries
from synth.modules import Cost, Mapped, MappedDesign, map_modules
from synth.tables.common import Map, Tables, mapper, mm2, module_table, row_table

# KLLM, Table I (28 nm), um2
PAPER_COUNTER = 2.71e-1 * 1e6 / 32
PAPER_MAC = 9.05e-2 * 1e6 / 32
PAPER_CONCAT = 8.68e-2 * 1e6 / 4096

# The row of a lane that selects: it replaces two of Table I.
_SELECTING = "IdxCounter and MAC"

# KLLM, Table I, mm2 of the chip: row -> (what Table I says, area)
TABLE1 = {
    "Concat": ("16 x 4096", 16 * 8.68e-2),
    "IdxCounter": ("16 x 32", 16 * 2.71e-1),
    "MAC": ("16 x 32", 16 * 9.05e-2),
    _SELECTING: ("16 x 32 of each", 16 * (2.71e-1 + 9.05e-2)),
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
    "KllmRowLookup": _SELECTING,
    "KllmSelectColumn": _SELECTING,
    "KllmLaneSelect": "control and FIFOs of the lanes",
    "KllmWeightBuffer": "Wgt Buffer",
    "KllmSlotMemory": "Act Idx Buffer",
    "IndexNearest": "Clustering Unit",
    "KllmOrizuru": "Orizuru",
    "KllmFunctionalUnit": "Functional Unit",
    "KllmNormStats": "norm statistics",
    "KllmOutlier": "outlier path of the lanes",
    "KllmScaler": "scaler of the lanes",
    "KllmPeLane": "control and FIFOs of the lanes",
    "KllmLaneCodebook": "control and FIFOs of the lanes",
    "KllmLaneControl": "control and FIFOs of the lanes",
    "KllmLaneDense": "control and FIFOs of the lanes",
    "KllmLaneSparse": "outlier path of the lanes",
    "KllmLaneFinish": "control and FIFOs of the lanes",
    "KllmLaneArray": "broadcast to the lanes",
    "KllmWeightStripe": "weight stripe",
    "KllmWeightSupply": "weight supply",
    "KllmQuantizer": "quantizer engine",
    "KllmIntegerQuantizer": "integer quantizer",
    "KllmMatmul": "matmul engine",
    "KllmDispatcher": "dispatcher",
    "KllmLoad": "load and read engines",
    "KllmReadback": "load and read engines",
    "KllmLoadAt": "load and read engines",
    "KllmTopK": "TOP_K",
    "KllmFetch": "fetch of programs",
    "KllmBatch": "unit CACHE and batch",
    "KllmCache": "unit CACHE and batch",
    "KllmCacheHost": "unit CACHE and batch",
    "OakenAttention": "K and V: control of the attention engine",
    "OakenAttentionArray": "K and V: control of the attention engine",
    "AttentionStream": "K and V: attention",
    "OakenKvEngine": "K and V: requests, thresholds, statuses",
    "OakenQuantEngine": "K and V: quantization",
    "OakenDequantEngine": "K and V: dequantization",
    "OakenTokenWriter": "K and V: records to words and back",
    "OakenTokenReader": "K and V: records to words and back",
    "PagingMmu": "K and V: paged MMU",
    "AxiWritePort": "AXI",
    "AxiReadPort": "AXI",
    "AxiLiteRegisters": "AXI",
}
_TOP_ROW = "skid buffers and wiring"
LENGTHS = (576, 4096, 11008)


def _modes(named: str) -> dict[str, KllmPeLaneConfig]:
    """A named lane, with and without the integer mode."""
    lane = find("kllm_pe_lane").configs[named]
    assert isinstance(lane, KllmPeLaneConfig)
    return {
        lane.counter: lane,
        f"{lane.counter}, no integer mode": dataclasses.replace(lane, integer_bits=0),
    }


@dataclasses.dataclass(frozen=True)
class _Lane:
    """Counters and reducers of one lane."""

    config: KllmPeLaneConfig
    counter: AreaReport
    reducer: AreaReport

    @property
    def mm2_28nm(self) -> float:
        """All counters and the reducer, flip-flop scaled."""
        return (self.config.columns * self.counter.um2_28nm + self.reducer.um2_28nm) / 1e6

    def cycles(self, length: int) -> int:
        """The cycles of one job in steady state: counting overlaps reducing."""
        return max(-(-length // self.config.elements), self.config.reduce_cycles)


def kllm_tables(map_block: Map) -> dict[str, str]:
    """Sections ``kllm_units`` and ``kllm_lanes``."""
    lanes = {
        name: _Lane(
            config,
            map_block(IndexHistogramParallel(config.counter_config), "index_histogram_parallel"),
            map_block(IndexReducer(config.reducer_config), "index_reducer"),
        )
        for name, config in _modes("table1_flipflop").items()
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
                    f"{report.um2_28nm / per:,.0f}",
                    f"{paper:,.0f}",
                    f"{report.um2_28nm / per / paper:.1f}",
                )
            )
    rows = [
        (
            name,
            f"{lane.mm2_28nm:.2f}",
            *(f"{lane.cycles(length)}" for length in LENGTHS),
            *(f"{lane.mm2_28nm * lane.cycles(length):,.0f}" for length in LENGTHS),
        )
        for name, lane in lanes.items()
    ]
    unit_head = (
        "unit", "um2, table", "kGE", "flip-flops", "um2, 28 nm eq.", "Table I", "ratio",
    )  # fmt: skip
    lane_head = (
        "32 columns", "28 nm eq., mm2",
        *(f"cycles, K={length}" for length in LENGTHS),
        *(f"mm2 x cycles, K={length}" for length in LENGTHS),
    )  # fmt: skip
    return {"kllm_units": table(unit_head, units), "kllm_lanes": table(lane_head, rows)}


def select_tables(map_block: Map) -> dict[str, str]:
    """Section ``kllm_select``: the blocks of a lane that selects, 32 columns."""
    rows = []
    for name, config in _modes("table1").items():
        shape = dataclasses.replace(config.select_config, tag_bits=0)
        column = map_block(KllmSelectColumn(shape), "kllm_select_column")
        look_up = map_block(KllmRowLookup(shape), "kllm_row_lookup")
        path = map_block(KllmLaneSelect(config), "kllm_lane_select")
        kge = look_up.kge + path.kge
        cycles = [max(-(-length // config.elements), config.reduce_cycles) for length in LENGTHS]
        rows.append(
            (
                name,
                f"{shape.word_bits}",
                f"{column.kge:,.2f}",
                f"{look_up.kge:,.1f}",
                f"{path.kge - config.columns * column.kge:,.1f}",
                f"{kge:,.1f}",
                f"{look_up.flip_flops + path.flip_flops:,}",
                f"{(look_up.um2_28nm + path.um2_28nm) / 1e6:.2f}",
                *(f"{each}" for each in cycles),
                *(f"{kge * each / 1000:,.1f}" for each in cycles),
            )
        )
    head = (
        "32 columns", "bits of a word", "kGE per column", "row look-up, kGE", "control, kGE",
        "all, kGE", "flip-flops", "28 nm eq., mm2", *(f"cycles, K={each}" for each in LENGTHS),
        *(f"MGE x cycles, K={each}" for each in LENGTHS),
    )  # fmt: skip
    return {"kllm_select": table(head, rows)}


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
    what = {
        "Concat": f"{config.machine.lanes} x {lane.columns * lane.elements}",
        "IdxCounter": f"{config.machine.lanes} x {lane.columns}",
        "MAC": f"{config.machine.lanes} x {lane.macs}",
        _SELECTING: f"{config.machine.lanes} x {lane.columns} columns",
        "Out Buffer": "vector memory",
        "Act Idx Buffer": "slots",
        "Orizuru": "shared comparators",
        _TOP_ROW: "",
    }

    def line(name: str, ours: str, cost: Cost, scale: float) -> tuple[str, ...]:
        stated, paper = TABLE1.get(name, ("", 0.0))
        logic, ram = mm2(cost, scale)
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
    rows.append(("Act Codebook Buffer", "in the lanes", *("",) * 5, stated, f"{area:.3f}", ""))
    total = design.total()
    logic, ram = mm2(total, scale)
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
    return {"kllm_chip": table(head, rows), "kllm_modules": module_table(design)}


def paged_tables(design: MappedDesign) -> dict[str, str]:
    """Section ``kllm_paged``: the chip with a cache, without Table I's columns."""
    return {"kllm_paged": row_table("kllm_accelerator", design, design.by_row(_row_of))}


def mapped(block: Block, label: str) -> MappedDesign:
    """The modules of a block, with a line for each."""

    def progress(name: str, module: Mapped, done: int, total: int) -> None:
        cost = f"{module.um2:,.0f} um2 ({module.seconds:.0f} s)"
        print(f"  [{done}/{total}] {name}: {cost}", flush=True)

    print(f"{label}: Verilog", flush=True)
    return map_modules(convert(block, label.split()[0]), load_libraries(), on_module=progress)


def _map_chip(config: KllmAcceleratorConfig) -> tuple[dict[str, str], float]:
    """Tables of the chip, seconds of mapping its modules."""
    design = mapped(KllmAccelerator(config), "kllm_accelerator")
    units = KllmOrizuru(KllmOrizuruConfig(architecture="parallel"))
    parallel = mapped(units, "kllm_orizuru of 273 units")
    return chip_tables(design, parallel, config), design.seconds + parallel.seconds


def _map_paged(config: KllmAcceleratorConfig) -> tuple[dict[str, str], float]:
    """Table of the chip with a cache, seconds of mapping its modules."""
    design = mapped(KllmAccelerator(config), "kllm_accelerator")
    return paged_tables(design), design.seconds


TABLES = {
    "kllm": Tables(
        ("kllm_units", "kllm_lanes"),
        lambda options: (kllm_tables(mapper(load_libraries())), 0.0),
    ),
    "select": Tables(
        ("kllm_select",),
        lambda options: (select_tables(mapper(load_libraries())), 0.0),
    ),
    "chip": Tables(
        ("kllm_chip", "kllm_modules"),
        lambda options: _map_chip(options.configuration),
        block="kllm_accelerator",
        named="table1",
    ),
    "paged": Tables(
        ("kllm_paged",),
        lambda options: _map_paged(options.configuration),
        block="kllm_accelerator",
        named="smollm2_cache",
    ),
}
