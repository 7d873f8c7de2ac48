"""Lanes next to each other: look-up by index, its counters, and other number formats."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from golden.markers import table
from hdl.index.histogram_parallel import IndexHistogramParallel
from hdl.index.reducer import IndexReducer
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.row_lookup import KllmRowLookup
from hdl.kllm.lane.select import KllmLaneSelect
from hdl.lanes.config import LaneConfig
from hdl.pages.documents import pages_directory
from hdl.registry import find
from synth.area import AreaReport, load_libraries
from synth.tables.common import Map, Tables, mapper

LENGTHS = (64, 576, 4096, 11008)

# label -> (block, named configuration), of the same elements, columns and longest reduction
_RIVALS = {
    "FP16 x FP16": ("lane_fp16", "fp16"),
    "FP16 x table of FP16 (W4A16)": ("lane_w4a16", "w4a16"),
    "INT8 x INT8": ("lane_integer", "int8"),
    "INT8 x INT4": ("lane_integer", "int8_int4"),
    "INT8 x INT2": ("lane_integer", "int8_int2"),
    "INT4 x INT4": ("lane_integer", "int4"),
    "tables of INT16, 4 planes": ("lane_lut", "int16_int4"),
    "tables of INT8, 4 planes": ("lane_lut", "int8_int4"),
    "tables of INT8, 2 planes": ("lane_lut", "int8_int2"),
}

# label -> words of a selecting lane's table
_FORMATS: dict[str, dict[str, Any]] = {
    "fixed16": {"product": "fixed16"},
    "fixed12": {"product": "fixed12"},
    "fixed16, antisymmetric": {"product": "fixed16", "antisymmetric": True},
    "fixed12, antisymmetric": {"product": "fixed12", "antisymmetric": True},
}

# What commands have measured: synth.compare rivals, senbazuru.runs.lane_power,
# golden.llm.eval.accuracy.
_PAGE = pages_directory().parent / "area.md"
_POWER = pages_directory().parent / "power" / "lanes.json"
_ACCURACY = pages_directory().parent / "accuracy" / "rows.json"
_LIBRARY, _TEXT, _SEED = "Sky130 HD", "C4", 0
_NOT_MEASURED = "not measured"

# The scheme that a lane needs, as golden.llm.eval spells it. One of the rivals is the best measured
# one that has a scale per token and output column: a lane gives one sum per packet.
_LINEAR = "norm=unfolded,glu=exact,integer_bits=16,cache_bits=16"  # other steps are not quantized
_SCHEMES = {
    "FP16 x FP16": "fp16",
    "FP16 x table of FP16 (W4A16)": "squeezellm-like-w4a16",
    "INT4 x INT4": "quarot-w4a4:rounding=gptq",
}


def _own_scheme(label: str) -> str:
    """Names a kllm_pe_lane's scheme: without its integer mode it serves the linear layers alone.

    The fitted recipe has codebooks of any form and real products.
    """
    fields = [_LINEAR] if label.endswith("no integer mode") else []
    fields += ["antisymmetric=true"] if "antisymmetric" in label else []
    fields += [f"product={each}" for each in ("fixed16", "fixed12") if each in label]
    return "kllm-plain-w4a4:" + ",".join(fields) if fields else "kllm-w4a4"


@dataclasses.dataclass(frozen=True)
class _Lane:
    """The blocks that make the sums of one lane: its columns, and what they share."""

    config: KllmPeLaneConfig | LaneConfig
    reports: tuple[tuple[AreaReport, int], ...]  # a block, and how many of it the lane has
    columns_um2: float  # of all columns

    @property
    def um2(self) -> float:
        return sum(report.um2 * count for report, count in self.reports)

    @property
    def um2_28nm(self) -> float:
        return sum(report.um2_28nm * count for report, count in self.reports)

    @property
    def flip_flops(self) -> int:
        return sum(report.flip_flops * count for report, count in self.reports)

    def kge(self, um2: float) -> float:
        return um2 / self.reports[0][0].nand2_um2 / 1000

    def cycles(self, length: int) -> int:
        """The cycles of a job in steady state: adding up overlaps reducing, or giving the sums."""
        if isinstance(self.config, LaneConfig):
            return self.config.cycles(length)
        return max(-(-length // self.config.elements), self.config.reduce_cycles)


def _columns_um2(report: AreaReport, columns: int) -> float:
    """Area of the modules that a lane holds once per column."""
    return sum(module.um2 * columns for module in report.modules if module.instances == columns)


def _own(config: KllmPeLaneConfig, map_block: Map) -> _Lane:
    """The lane of kllm_pe_lane, from weight indices to dense sums."""
    if config.counter == "select":
        shape = dataclasses.replace(config.select_config, tag_bits=0)
        look_up = map_block(KllmRowLookup(shape), "kllm_row_lookup")
        path = map_block(KllmLaneSelect(config), "kllm_lane_select")
        return _Lane(config, ((look_up, 1), (path, 1)), _columns_um2(path, config.columns))
    counter = map_block(IndexHistogramParallel(config.counter_config), "index_histogram_parallel")
    reducer = map_block(IndexReducer(config.reducer_config), "index_reducer")
    return _Lane(config, ((counter, config.columns), (reducer, 1)), config.columns * counter.um2)


def _rival(block: str, named: str, map_block: Map) -> _Lane:
    registered = find(block)
    config = registered.configs[named]
    assert isinstance(config, LaneConfig)
    report = map_block(registered.component(config), block)
    return _Lane(config, ((report, 1),), _columns_um2(report, config.columns))


def _measured(file: Path, key: str) -> list[dict[str, Any]]:
    return json.loads(file.read_text())[key] if file.exists() else []


def _figure(value: float | None, places: int) -> str:
    return _NOT_MEASURED if value is None else f"{value:,.{places}f}"


def _rows(page: Path, section: str) -> list[list[str]]:
    """The cells of a generated table of ``page``."""
    text = page.read_text().partition(f"<!-- generated: {section} -->")[2].partition("<!--")[0]
    return [line.strip("| ").split(" | ") for line in text.strip().splitlines()[2:]]


@dataclasses.dataclass(frozen=True)
class _Measured:
    """A lane as commands have measured it; None where none has.

    kge: of the lane; cycles: of one job of each of ``LENGTHS``; power: a row of
    senbazuru.runs.lane_power
    """

    name: str
    kge: str
    cycles: list[str]
    scheme: str
    perplexity: float | None
    power: dict[str, Any]


def _measured_lanes() -> list[_Measured]:
    power = {
        each["lane"]: each for each in _measured(_POWER, "lanes") if each["library"] == _LIBRARY
    }
    perplexity = {
        row["method"]: row["perplexity"]
        for row in _measured(_ACCURACY, "rows")
        if (row["text"], row["seed"]) == (_TEXT, _SEED)
    }
    cycles = {row[0]: row[1 : 1 + len(LENGTHS)] for row in _rows(_PAGE, "rivals_cycles")}
    found = []
    for name, _, _, kge, *_ in _rows(_PAGE, "rivals"):
        scheme = _SCHEMES.get(name, "" if name in _RIVALS else _own_scheme(name))
        own = _Measured(
            name, kge, cycles[name], scheme, perplexity.get(scheme), power.get(name, {})
        )
        found.append(own)
    return found


def scheme_table() -> str:
    """Area, clock, energy, cycles and perplexity of each lane, of what commands have measured."""
    rows = []
    for each in _measured_lanes():
        ns = each.power.get("ns")
        rows.append(
            (
                each.name,
                each.kge,
                _figure(ns, 3),
                _figure(ns and 1000 / ns, 0),
                _figure(each.power.get("pj_per_mac"), 3),
                *each.cycles,
                f"`{each.scheme}`" if each.scheme else "",
                _figure(each.perplexity, 3),
            )
        )
    head = (
        "32 columns", "lane, kGE", "ns", "MHz", "pJ per MAC",
        *(f"cycles, K={each}" for each in LENGTHS), "scheme", f"perplexity, {_TEXT}",
    )  # fmt: skip
    return table(head, rows)


def scheme_plot() -> bytes:
    """Perplexity over area of the lanes that have both."""
    from golden.llm.eval.svg import MARKS, new_figure, scale, style, svg_bytes  # torch, only now

    with style():
        figure = new_figure()
        axes = figure.add_subplot()
        shown = [each for each in _measured_lanes() if each.perplexity is not None]
        for mark, each in zip(itertools.cycle(MARKS), shown, strict=False):
            place = float(each.kge.replace(",", "")), each.perplexity
            axes.plot(*place, mark, label=f"{each.name}: {each.scheme.partition(':')[0]}")
        for axis, values in (
            (axes.xaxis, [float(each.kge.replace(",", "")) for each in shown]),
            (axes.yaxis, [each.perplexity for each in shown]),
        ):
            scale(axis, values)  # type: ignore[arg-type]
        axes.set_xlabel("lane of 16 elements and 32 columns, kGE")
        axes.set_ylabel(f"perplexity, {_TEXT}")
        axes.legend(fontsize=7)
        return svg_bytes(figure, "synth.compare")


def rival_tables(map_block: Map) -> dict[str, str]:
    """Sections ``rivals`` and ``rivals_cycles``."""
    configs = find("kllm_pe_lane").configs
    counting, selecting = configs["table1_flipflop"], configs["table1"]
    assert isinstance(counting, KllmPeLaneConfig)
    assert isinstance(selecting, KllmPeLaneConfig)
    lanes = {
        "flipflop, no integer mode": _own(dataclasses.replace(counting, integer_bits=0), map_block),
        "select": _own(selecting, map_block),
        "select, no integer mode": _own(dataclasses.replace(selecting, integer_bits=0), map_block),
    }
    for label, fields in _FORMATS.items():
        own = dataclasses.replace(selecting, **fields)
        lanes[f"select, {label}"] = _own(own, map_block)
        plain = dataclasses.replace(own, integer_bits=0)
        lanes[f"select, {label}, no integer mode"] = _own(plain, map_block)
    lanes |= {name: _rival(*rival, map_block) for name, rival in _RIVALS.items()}
    least = lanes["select, no integer mode"].um2
    areas, cycles = [], []
    for name, lane in lanes.items():
        columns = lane.config.columns
        areas.append(
            (
                name,
                f"{lane.kge(lane.columns_um2) / columns:,.2f}",
                f"{lane.kge(lane.um2 - lane.columns_um2):,.1f}",
                f"{lane.kge(lane.um2):,.1f}",
                f"{lane.flip_flops:,}",
                f"{lane.um2_28nm / 1e6:.3f}",
                f"{lane.um2 / least:.2f}",
            )
        )
        cycles.append(
            (
                name,
                *(f"{lane.cycles(length)}" for length in LENGTHS),
                *(f"{lane.kge(lane.um2) * lane.cycles(n) / 1000:,.1f}" for n in LENGTHS),
            )
        )
    area_head = (
        "32 columns", "kGE per column", "shared, kGE", "lane, kGE", "flip-flops",
        "28 nm eq., mm2", "select, no integer mode = 1",
    )  # fmt: skip
    cycle_head = (
        "32 columns", *(f"cycles, K={each}" for each in LENGTHS),
        *(f"MGE x cycles, K={each}" for each in LENGTHS),
    )  # fmt: skip
    return {"rivals": table(area_head, areas), "rivals_cycles": table(cycle_head, cycles)}


TABLES = {
    "rivals": Tables(
        ("rivals", "rivals_cycles"),
        lambda options: (rival_tables(mapper(load_libraries())), 0.0),
    ),
    "schemes": Tables(
        ("rivals_schemes",),
        lambda options: ({"rivals_schemes": scheme_table()}, 0.0),
        plot=scheme_plot,
    ),
}
