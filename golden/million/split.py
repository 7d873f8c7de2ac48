"""Queries, K and V as the engines take them: groups of queries, and rows of the window.

Words are int64 tensors of FP16 bit patterns, any device.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from golden.fp16.format import FP16


class Groups(NamedTuple):
    """Groups of queries side by side; queries beyond those of a group are +0."""

    words: Tensor  # (groups, queries, d)
    slope: Tensor  # (groups, queries)
    bad: Tensor  # (groups, queries) an element, or the slope, is NaN or infinite


class Rows(NamedTuple):
    """Rows of the windows, in the order in which they are written."""

    slot: Tensor  # (rows,) window
    row: Tensor  # (rows,) row of the window
    kv: Tensor  # (rows,) 0: K, 1: V
    words: Tensor  # (rows, d)
    nonfinite: Tensor  # (tokens,) an element of the token is NaN or infinite


def nonfinite(words: Tensor) -> Tensor:
    """Says which ``words`` are NaN or infinite."""
    return (words >> FP16.frac_bits & FP16.exp_max) == FP16.exp_max


def groups(words: Tensor, slope: Tensor, jobs: Sequence[tuple[int, bool]], queries: int) -> Groups:
    """(n, d) queries and (n,) slopes as groups of up to ``queries`` of them.

    jobs : (queries of the group, whether they are discarded) of each group; discarded groups are
        no part of the result.

    ValueError: a group of no query or of too many, or groups that are not all ``n`` queries.
    """
    counts = [count for count, _ in jobs]
    if not all(1 <= count <= queries for count in counts) or sum(counts) != len(words):
        raise ValueError(f"{len(words)} queries must be groups of 1..{queries}, not {counts}")
    kept = [n for n, (_, discard) in enumerate(jobs) if not discard]
    out = torch.zeros(len(jobs), queries, words.shape[1], dtype=torch.int64, device=words.device)
    slopes = torch.zeros(len(jobs), queries, dtype=torch.int64, device=words.device)
    at = 0
    for n, count in enumerate(counts):
        out[n, :count] = words[at : at + count]
        slopes[n, :count] = slope[at : at + count]
        at += count
    bad = nonfinite(out).any(-1) | nonfinite(slopes)
    return Groups(out[kept], slopes[kept], bad[kept])


def rows(words: Tensor, slot: Tensor, row: Tensor, discard: Tensor) -> Rows:
    """(tokens, 2, heads, d) words, K then V, as rows: head h of a token goes to ``slot + h``.

    slot, row, discard : (tokens,) window of head 0, row, and whether the token is not written.
    """
    tokens, _, heads, _ = words.shape
    kept = ~discard.bool()
    heads_at = torch.arange(heads, device=words.device)
    kv_at = torch.arange(2, device=words.device)
    shape = (tokens, 2, heads)
    return Rows(
        slot=(slot[:, None, None] + heads_at).expand(shape)[kept].flatten(),
        row=row[:, None, None].expand(shape)[kept].flatten(),
        kv=kv_at[:, None].expand(shape)[kept].flatten(),
        words=words[kept].flatten(0, 2),
        nonfinite=nonfinite(words).flatten(1).any(1),
    )
