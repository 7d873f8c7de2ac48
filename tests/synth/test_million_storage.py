"""golden.million.storage against the RAMs of the netlists, and against the issue's own figures.

Shown to fail: one buffer instead of two; bins of a sum of all keys where P keys share them.
"""

import pytest

from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.storage import storage, sum_bits
from synth.tables.million_storage import holders, netlist_bits

_SMALL = MillionConfig(
    pq=PqShape(head_dim=16, subspaces=4, bits=5), head=HeadShape(heads=2, group=2), layers=3,
    window=WindowShape(sinks=2, keep=3, block=4), max_tokens=1000, sequences=2,
)  # fmt: skip


@pytest.mark.parametrize("keys", [1, 2])
def test_formula_and_netlist(keys):
    """Queues and vectors take something in addition, in the window and with the weights alone."""
    rate = RateShape(macs=8, keys=keys, queries=3, window_macs=8, lanes=8)
    blocks = holders(_SMALL, rate)
    by_formula = storage(_SMALL, rate)
    assert list(blocks) == list(by_formula)
    for what, (block, count) in blocks.items():
        found = netlist_bits(block) * count
        if what in ("scores", "rows"):
            assert by_formula[what] <= found <= 1.2 * by_formula[what]
        else:
            assert found == by_formula[what]


def test_sizes_of_the_paper():
    """Per query and buffer: tables 32 and 256 KiB, bins 80 and 640; K and V's codebooks."""
    for pq, tables, books, bins in ((NAMED["4b"], 32, 128, 80), (NAMED["3b"], 256, 2048, 640)):
        found = storage(MillionConfig(pq=pq), RateShape(queries=1))
        assert [found[each] / 2 / 8192 for each in ("tables", "codebooks", "bins")] == [
            tables, books, bins,
        ]  # fmt: skip


def test_bits_of_a_sum():
    assert sum_bits(32768) == 40
    assert sum_bits(32767) == 39
    assert sum_bits(1) == 25
