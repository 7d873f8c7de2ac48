"""``python -m synth.compare kllm | fp16 | libraries``: the generated tables of docs/area.md.

``libraries`` maps a few blocks to other libraries, given as ``--set NAME=FILE[,FILE...]``.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from golden.config import Config
from hdl.block import Block
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.kllm.idx_counter import KllmIdxCounter
from hdl.kllm.pe_lane import KllmPeLaneConfig
from hdl.kllm.reducer import KllmReducer
from hdl.registry import find
from synth.area import AreaReport, Libraries, SynthesisError, load_libraries, synthesize
from synth.liberty import LibraryError
from synth.yosys import YosysError

__all__ = ["SRAM_UM2_PER_BIT", "fill", "fp16_tables", "kllm_tables", "library_tables", "main"]

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
LENGTHS = (576, 4096, 11008)

Map = Callable[[Block, str], AreaReport]


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
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
            map_block(KllmIdxCounter(config.counter_config), "kllm_idx_counter"),
            map_block(KllmReducer(config.reducer_config), "kllm_reducer"),
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
    return {"kllm_units": _table(unit_head, units), "kllm_lanes": _table(lane_head, rows)}


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
    return {"fp16": _table(head, rows)}


def library_tables(sets: dict[str, Map]) -> dict[str, str]:
    """Section ``libraries``: the same blocks in several libraries, kGE and um2."""
    lane = find("kllm_pe_lane").configs["table1"]
    assert isinstance(lane, KllmPeLaneConfig)
    # A block is elaborated once: each library gets one of its own.
    blocks: dict[str, tuple[Callable[[Any], Block], Config, str]] = {
        "kllm_idx_counter, table1": (KllmIdxCounter, lane.counter_config, "kllm_idx_counter"),
        "kllm_reducer, table1": (KllmReducer, lane.reducer_config, "kllm_reducer"),
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
    return {"libraries": _table(head, rows)}


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
    parser.add_argument("what", choices=("kllm", "fp16", "libraries"))
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="NAME=FILE[,FILE...]"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    try:
        own = _mapper(load_libraries())
        if options.what == "kllm":
            sections = kllm_tables(own)
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
