"""PagingPageTable against golden.paging.pages: every answer, and the cycle of every answer.

Shown to fail:

- records after a full page read from it;
- a place beyond the first page given;
- an exact fit that takes a page;
- a straddling record's page with its own token or offset 0;
- trims one page too many or too few;
- ``bytes`` without the first page's offset;
- pages pushed with a wrong link or not linked to their chain;
- tokens that outlive their stream;
- an answer over one not yet taken;
- a sequence's pages not counted down;
- each of the three tables not written after reset;
- a start that falls or outlives its sequence;
- a sequence closed during its transaction.

With forks:

- a shared page that goes back, or a page that nobody has and that does not;
- a count that falls by two, or that reset leaves;
- a page that is not full shared, or a copy without its first token;
- NEXT that follows the parent's link after the tip;
- a commit that changes the link of the tip, or does not write the page after it;
- a child without its parent's start, its tokens, or its count of pages;
- a child that may be forked, and a sequence opened later that may not;
- a FORK of some of the tokens, or without a page for a copy;
- a parent that is trimmed meanwhile.

In ``kinds``: low bits that select another kind, a variable record per vector taken as fixed.
"""

import re

import pytest

import golden.paging.config
from golden.config import ConfigError
from golden.oaken.config import CacheConfig, KvShape
from golden.paging.config import RecordKind, VectorRecords
from hdl.pages.documents import pages_directory
from hdl.paging.page_table import PagingPageTable
from hdl.paging.room import BLOCKS
from tb.simulate.run import simulate


def _kind(name: str, least: int, most: int) -> RecordKind:
    return RecordKind(name=name, least=least, most=most)


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
    # One fixed record per head, nothing else.
    "fixed": golden.paging.config.CacheConfig(
        kv=VectorRecords(heads=3, per_head=(_kind("codes", 24, 24),), per_vector=()),
        sequences=3, layers=2, pages=40, page_bytes=256, max_tokens=50,
    ),
    # Four kinds per head, two of them variable, and a fixed and a variable record per vector.
    "kinds": golden.paging.config.CacheConfig(
        kv=VectorRecords(
            heads=2,
            per_head=(
                _kind("a", 1, 40), _kind("b", 16, 16), _kind("c", 9, 9), _kind("d", 3, 100),
            ),
            per_vector=(_kind("e", 12, 12), _kind("f", 5, 30)),
        ),
        sequences=3, layers=1, pages=60, page_bytes=256, max_tokens=60,
    ),
    # Few sequences with few pages share and part all the time.
    "forks_small": golden.paging.config.CacheConfig(
        kv=VectorRecords(
            heads=1, per_head=(_kind("a", 32, 32), _kind("b", 3, 90)), per_vector=(),
        ),
        sequences=3, layers=2, pages=40, page_bytes=256, max_tokens=60, forks=True,
    ),
    "forks_variable": golden.paging.config.CacheConfig(
        kv=VectorRecords(heads=1, per_head=(_kind("a", 2, 128),), per_vector=()),
        sequences=9, layers=1, pages=60, page_bytes=256, max_tokens=200, forks=True,
    ),
    # Only variable records: no slot has an offset.
    "variable": golden.paging.config.CacheConfig(
        kv=VectorRecords(heads=2, per_head=(_kind("a", 2, 50),), per_vector=()),
        sequences=2, layers=2, pages=30, page_bytes=256, max_tokens=40,
    ),
}  # fmt: skip


@pytest.mark.telling("small", "odd", "forks", "forks_small", "smallest", "kinds", "variable")
@pytest.mark.parametrize("name", CONFIGS)
def test_page_table(name, seed):
    simulate(PagingPageTable(CONFIGS[name]), "tb.paging.tb_page_table", seed=seed)


def test_rejects():
    """A table of streams larger than a RAM: 257 * 2 * 256 streams for each sequence."""
    with pytest.raises(ConfigError, match="must be at most 7 of as many streams, not 8"):
        CacheConfig(kv=KvShape(heads=128), sequences=8, layers=256)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 0}, "heads must be 1..128, not 0"),
        ({"per_head": ()}, r"per_head must be 1, 2 or 4 RecordKinds, not \(\)"),
        ({"per_vector": (1,)}, r"per_vector must be RecordKinds, not \(1,\)"),
        ({"per_vector": (_kind("dense", 1, 1),)}, "per_vector must be RecordKinds of other names"),
    ],
)
def test_rejects_records(fields, message):
    with pytest.raises(ConfigError, match=message):
        VectorRecords(**fields)


@pytest.mark.parametrize(("least", "most"), [(0, 4), (5, 4), (1, 4096), (1, 0)])
def test_rejects_sizes(least, most):
    with pytest.raises(ConfigError, match=r"RecordKind\.(least|most) must be 1"):
        _kind("record", least, most)


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
