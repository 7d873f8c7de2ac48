"""golden.million.bounds: figures by hand, and what decides at few and at many keys.

Shown to fail: one query's tables instead of a group's; codes of K only; groups rounded down.
"""

import pytest

from golden.million.bounds import Bound, bound, load_beats, step_bound
from golden.million.config import NAMED, SYSTEMS, RateShape

LLAMA = RateShape(macs=256, keys=1, queries=4)


def test_by_hand():
    """256 entries of 128 elements at 256 products per cycle, 4 queries: 512 cycles."""
    assert bound(NAMED["4b"], LLAMA, 4, 1000, 256) == Bound(512, 1000, 1000, 512, 4000, 1)
    assert bound(NAMED["4b"], LLAMA, 4, 1000, 1024) == Bound(512, 1000, 1000, 512, 1000, 1)
    three_bits = bound(NAMED["3b"], RateShape(macs=64, keys=2, queries=2), 8, 7, 64)
    assert three_bits == Bound(4096 * 128 // 64 * 2, 4, 4, 4096 * 128 // 64 * 2, 2 * 7 * 6, 4)


@pytest.mark.parametrize(
    ("keys", "data_bits", "limit", "interval"),
    [
        (0, 1024, "build", 512),
        (511, 1024, "build", 512),
        (514, 1024, "score", 514),
        (513, 256, "memory", 2052),
    ],
)
def test_what_decides(keys, data_bits, limit, interval):
    found = bound(NAMED["4b"], LLAMA, 4, keys, data_bits)
    assert (found.limit, found.interval) == (limit, interval)


@pytest.mark.parametrize(("group", "groups"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_groups_of_a_head(group, groups):
    found = bound(NAMED["4b"], LLAMA, group, 2000, 1024)
    assert found.groups == groups
    assert found.head == groups * 2000


def test_first_group_passes_all_engines():
    found = bound(NAMED["4b"], LLAMA, 4, 2000, 1024)
    assert found.attend(1) == 512 + 2000 + 2000 + 512
    assert found.attend(3) == found.attend(1) + 2 * 2000
    slow = bound(NAMED["4b"], LLAMA, 4, 2000, 64)
    assert slow.attend(1) == 512 + 2 * 2000 * 8 + 512


def test_steps():
    """SmolLM2, 64 products: 3 queries of a head take 768 cycles, a LOAD of 32,768 words 2,048.

    The first of three heads passes the tables, 200 words of memory and the finish.
    """
    config = SYSTEMS["smollm2"]
    assert load_beats(config, 16) == 2048
    first, more = 768 + 200 + 768, 2 * 768
    assert step_bound(config, RateShape(queries=3), 100, 256, 2) == 2 * (first + more)
    first, more = 1536 + 200 + 1536, 2 * 1536
    assert step_bound(config, RateShape(queries=3, macs=32), 100, 256, 1) == first + more
    assert step_bound(config, RateShape(queries=3, lanes=4), 100, 256, 1) == 8192
