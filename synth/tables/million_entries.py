"""MILLION: a table entry in FP16 next to fixed point, by the area of a score and of its tables."""

from golden.fp16.format import FP16
from golden.markers import table
from golden.million.config import NAMED
from golden.sram import ram
from hdl.block import Block
from hdl.million.fixed_lane import MillionFixedLane, MillionFixedLaneConfig
from hdl.million.score_lane import MillionScoreLane, MillionScoreLaneConfig
from synth.area import load_libraries
from synth.tables.common import Map, Tables, mapper

_PQ = NAMED["4b"]
_BITS = (8, 10, 11, 12, 13, 14, 16)


def entry_table(map_block: Map) -> dict[str, str]:
    """Section ``million_entries``: a lane of (64, 8), and both buffers of a query's tables."""
    lanes: list[tuple[str, int, Block, str]] = [
        (
            "FP16", FP16.bits,
            MillionScoreLane(MillionScoreLaneConfig(subspaces=_PQ.subspaces)), "score_lane",
        )
    ]  # fmt: skip
    for bits in _BITS:
        config = MillionFixedLaneConfig(subspaces=_PQ.subspaces, bits=bits)
        lanes.append((f"{bits} bits", bits, MillionFixedLane(config), "fixed_lane"))
    rows, reference = [], 0.0
    for name, bits, block, kind in lanes:
        report = map_block(block, f"million_{kind}")
        rams = _PQ.subspaces * ram("1r1w", 2 * _PQ.entries, bits).um2
        both = (report.um2_28nm + rams) / 1e6
        reference = reference or both
        rows.append(
            (
                name,
                f"{report.um2_28nm / 1e6:.4f}",
                f"{report.flip_flops:,}",
                f"{2 * _PQ.subspaces * _PQ.entries * bits / 8192:.0f}",
                f"{rams / 1e6:.4f}",
                f"{both:.4f}",
                f"{both / reference:.2f}",
            )
        )
    head = (
        "table entry", "lane, mm2", "flip-flops", "tables, KB", "tables, CACTI, mm2", "both, mm2",
        "of FP16",
    )  # fmt: skip
    return {"million_entries": table(head, rows)}


TABLES = {
    "entries": Tables(
        ("million_entries",), lambda options: (entry_table(mapper(load_libraries())), 0.0)
    ),
}
