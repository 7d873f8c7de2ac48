"""MILLION: on-chip memory by formula, and of the blocks' netlists."""

from golden.markers import table
from golden.million.config import NAMED, HeadShape, MillionConfig, RateShape
from golden.million.storage import storage
from hdl.attention.weights import AttentionWeights
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.index.codebook_store import IndexCodebookStore
from hdl.million.attention_config import MillionAttentionConfig
from hdl.million.score_engine import MillionScoreEngine
from hdl.million.value_engine import MillionValueEngine
from hdl.million.verdict import weights_config
from hdl.million.window import MillionWindow
from synth.tables.common import Tables

# One layer, so that the window is that of a layer.
CASES = {
    "(64, 8) at 128, 4 queries": (MillionConfig(layers=1), RateShape()),
    "(64, 8) at 128, 1 query": (MillionConfig(layers=1), RateShape(queries=1)),
    "(32, 12) at 128, 1 query": (MillionConfig(pq=NAMED["3b"], layers=1), RateShape(queries=1)),
    "(32, 8) at 64, 3 queries": (
        MillionConfig(pq=NAMED["4b_64"], head=HeadShape(heads=3, group=3), layers=1),
        RateShape(queries=3),
    ),
}


def holders(cache: MillionConfig, rate: RateShape) -> dict[str, tuple[Block, int]]:
    """The block of each stored thing, in the order of ``storage``, and the number of its blocks."""
    whole = MillionAttentionConfig(cache=cache, rate=rate)
    return {
        "tables": (MillionScoreEngine(whole.score_engine), 1),
        "codebooks": (IndexCodebookStore(whole.store), 2),
        "bins": (MillionValueEngine(whole.value_engine), 1),
        "scores": (AttentionWeights(weights_config(cache, rate)), 1),
        "rows": (MillionWindow(whole.window), 1),
    }


def netlist_bits(block: Block) -> int:
    """Bits of all RAMs of a block's netlist."""
    memories = convert(block, "part").description["memories"]
    return sum(each["width"] * each["depth"] * each["count"] for each in memories)


def storage_table() -> dict[str, str]:
    """Section ``million_storage``: KB by formula, and KB of the netlists."""
    columns = []
    for cache, rate in CASES.values():
        blocks = holders(cache, rate)
        columns.append(
            {
                what: (bits, netlist_bits(blocks[what][0]) * blocks[what][1])
                for what, bits in storage(cache, rate).items()
            }
        )
    head = ["KB, formula / netlist", *CASES]
    rows = [
        [what, *(f"{each[what][0] / 8192:,.1f} / {each[what][1] / 8192:,.1f}" for each in columns)]
        for what in columns[0]
    ]
    return {"million_storage": table(head, rows)}


TABLES = {"storage": Tables(("million_storage",), lambda options: (storage_table(), 0.0))}
