"""PagingPageTable against golden.paging.pages: every answer, and the cycle of every answer.

Shown to fail: records behind a full page read from it, a place beyond the first page given, an
exact fit that takes a page, a straddling record's page with its own token or offset 0, trims one
page too many or too few, ``bytes`` without the first page's offset, pages pushed with a wrong link
or not linked to their chain, tokens that outlive their stream, an answer over one not yet taken, a
sequence's pages not counted down, each of the three tables not written after reset, a start that
falls or outlives its sequence, a sequence closed during its transaction.
"""

import re

import pytest

from golden.config import ConfigError
from golden.oaken.config import CacheConfig, KvShape
from hdl.pages import pages_directory
from hdl.paging.page_table import PagingPageTable
from hdl.paging.room import BLOCKS
from tb.run import simulate

BLOCK = BLOCKS["paging_page_table"]
CONFIGS = {
    "default": BLOCK.config,
    **BLOCK.configs,
    "odd": CacheConfig(
        kv=KvShape(heads=3, head_dim=48, block=16), sequences=5, layers=3, pages=77,
        page_bytes=256, max_tokens=50,
    ),
    # Offsets and sizes of the full width.
    "large_pages": CacheConfig(
        kv=KvShape(heads=1, head_dim=1024), sequences=2, layers=1, pages=20, page_bytes=65536,
        max_tokens=1 << 20,
    ),
    # One token fills the cache.
    "smallest": CacheConfig(
        kv=KvShape(heads=1, head_dim=16, block=16), sequences=1, layers=1, pages=3,
        page_bytes=256, max_tokens=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_page_table(name, seed):
    simulate(PagingPageTable(CONFIGS[name]), "tb.paging.tb_page_table", seed=seed)


def test_rejects():
    """A table of streams larger than a RAM: 257 * 2 * 256 streams for each sequence."""
    with pytest.raises(ConfigError, match="must be at most 7 of as many streams, not 8"):
        CacheConfig(kv=KvShape(heads=128), sequences=8, layers=256)


def test_page_states_the_memories():
    tables = [PagingPageTable(CONFIGS[name]) for name in ("default", "smollm2", "small")]
    rows = re.findall(
        r"^\| (.*?) \|.*\| (\d+) \| (\d+) \| (\d+) \|$",
        (pages_directory() / "paging_page_table.md").read_text(),
        re.M,
    )
    shapes = [table.memories for table in tables]
    expected = [(name, *(str(each[name].width) for each in shapes)) for name in shapes[0]]
    totals = (str(sum(shape.bits for shape in each.values())) for each in shapes)
    assert rows == [*expected, ("all, bits", *totals)]
    for table in tables:
        table._MustUse__silence = True
