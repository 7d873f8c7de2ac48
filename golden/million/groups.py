"""Groups of queries of an ATTEND, and the reads of codes that serve them. Pure Python."""

from typing import NamedTuple

from golden.paging.format import Kv


class Group(NamedTuple):
    """Queries of one KV head that the engines take side by side."""

    head: int  # KV head
    queries: int  # of the group, 1 or more
    last: bool  # last group of the ATTEND


class Read(NamedTuple):
    """A read of the K or V codes of one KV head."""

    kv: Kv
    head: int


def groups(heads: int, group: int, queries: int) -> list[Group]:
    """The groups of ``group`` queries of each of ``heads`` heads, at most ``queries`` at a time."""
    sizes = [min(queries, group - first) for first in range(0, group, queries)]
    found = [(head, size) for head in range(heads) for size in sizes]
    return [Group(*each, n == len(found) - 1) for n, each in enumerate(found)]


def reads(heads: int, group: int, queries: int) -> list[Read]:
    """K of each group, then V of the group before it; V of the last group at the end."""
    found: list[Read] = []
    before: list[Read] = []
    for each in groups(heads, group, queries):
        found += [Read(Kv.K, each.head), *before]
        before = [Read(Kv.V, each.head)]
    return found + before
