"""golden.million.groups against lists written by hand, and by their properties.

Shown to fail:

- a group of no query where the queries are a multiple;
- ``last`` of each head;
- V of a group before K of the next;
- V of the first group again.
"""

import pytest

from golden.million.groups import groups, reads
from golden.paging.format import Kv


def test_groups_by_hand():
    assert groups(1, 1, 8) == [(0, 1, True)]
    assert groups(2, 3, 2) == [(0, 2, False), (0, 1, False), (1, 2, False), (1, 1, True)]
    assert groups(1, 4, 2) == [(0, 2, False), (0, 2, True)]


def test_reads_by_hand():
    k, v = Kv.K, Kv.V
    assert reads(1, 1, 8) == [(k, 0), (v, 0)]
    assert reads(2, 3, 2) == [
        (k, 0), (k, 0), (v, 0), (k, 1), (v, 0), (k, 1), (v, 1), (v, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("group", [1, 4, 5, 16])
@pytest.mark.parametrize("queries", [1, 2, 4, 8])
def test_each_query_once_and_each_group_reads_both(heads, group, queries):
    found = groups(heads, group, queries)
    for head in range(heads):
        sizes = [each.queries for each in found if each.head == head]
        assert sum(sizes) == group
        assert max(sizes) <= queries
        assert len(sizes) == -(-group // queries)
    assert [each.head for each in found] == sorted(each.head for each in found)
    assert [each.last for each in found] == [False] * (len(found) - 1) + [True]
    order = reads(heads, group, queries)
    assert len(order) == 2 * len(found)
    for kv in Kv:
        assert [each.head for each in order if each.kv == kv] == [each.head for each in found]
    at = {kv: [n for n, each in enumerate(order) if each.kv == kv] for kv in Kv}
    for n in range(len(found)):
        assert at[Kv.K][n] < at[Kv.V][n]
        if n:
            assert at[Kv.V][n - 1] == at[Kv.K][n] + 1
