"""Floating-point operators at several numbers of stages."""

from golden.markers import table
from hdl.block import Block
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from synth.area import load_libraries
from synth.tables.common import Map, Tables, mapper


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


TABLES = {
    "fp16": Tables(("fp16",), lambda options: (fp16_tables(mapper(load_libraries())), 0.0)),
}
