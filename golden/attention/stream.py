"""Attention of the queries of some KV heads on streams of exact rows.

Words are int64 tensors of FP16 bit patterns, any device. Rounding points, each to nearest even:

- s = rne16(sum_i q_i * k_i), of the exact sum
- with a cap: those of golden.attention.caps
- e = exp(rne16(s - m)) of each score, m the largest score of the query: the difference, exp
- o = rne16(rne32(W) * rne32(1 / rne32(S))), of the exact sums W = sum e * v and S = sum e

Nothing else rounds, so that the order of rows never matters.
"""

import dataclasses

import torch
from torch import Tensor

from golden.attention.caps import cap_scores
from golden.attention.exact import products, quotients, scores
from golden.attention.format import NO_SINK, PRODUCT_GRID, Status
from golden.attention.softmax import row_weights
from golden.fp16.format import FP16
from golden.fp16.ops import is_nan, is_special


@dataclasses.dataclass(frozen=True)
class Attended:
    """The end of a job."""

    words: Tensor  # (H, L, d) outputs, canonical NaN for each query that is bad
    bad: Tensor  # (H, L) bool: queries without a result
    status: Status  # the first that applies to the job or to one of its queries


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_rows: int,
    error: bool = False,
    cap: int = 0,
    sinks: Tensor | None = None,
) -> Attended:
    """Outputs of ``L`` queries of each of ``H`` KV heads on ``n`` rows of K and V.

        s = cap(q . k);  w = exp(s - max s);  o = sum w * v / sum w, of each head and query

    q : (H, L, d) words, with 1 / sqrt(d) in them; k, v : (n, H, d) words
    max_rows : most rows of a job; error: a row was decoded from bad data
    cap : of the scores, as ``golden.attention.caps.cap_scores`` has it; 0: none
    sinks : (H, L) words, one score more of each query, in maximum and sum, that has no value and no
        cap; None: none, which is the same as -infinity

    No query has a result if there is no row, or more than ``max_rows``. The same holds after an
    ``error``, and with a NaN or an infinity in K or V. One query alone has no result in three more
    cases. A word of it is NaN or infinite, or its sink is NaN or +infinity. A score is +infinity
    after the cap. All its scores are -infinity, its sink among them.
    """
    q, k, v = (torch.as_tensor(x).to(torch.int64) & 0xFFFF for x in (q, k, v))
    status = Status.OK
    if not 1 <= len(k) <= max_rows:
        status = Status.LENGTH
    elif error:
        status = Status.DATA
    elif is_special(k).any() or is_special(v).any():
        status = Status.NONFINITE
    if status:
        return Attended(torch.full_like(q, FP16.canonical_nan), q[..., 0] >= 0, status)
    if sinks is None:
        sinks = torch.full_like(q[..., 0], NO_SINK)
    sinks = torch.as_tensor(sinks).to(torch.int64) & 0xFFFF
    unusable = is_special(q).any(dim=-1) | is_nan(sinks) | (sinks == FP16.infinity)
    heads = [_head(q[n], k[:, n], v[:, n], unusable[n], cap, sinks[n]) for n in range(len(q))]
    words, bad = (torch.stack(found) for found in zip(*heads, strict=True))
    if unusable.any():
        status = Status.NONFINITE
    elif bad.any():
        status = Status.OVERFLOW
    return Attended(words, bad, status)


def _head(
    q: Tensor, k: Tensor, v: Tensor, unusable: Tensor, cap: int, sinks: Tensor
) -> tuple[Tensor, Tensor]:
    """(outputs, queries without a result) of one head; ``unusable`` queries have none."""
    score = cap_scores(scores(torch.where(unusable[:, None], 0, q), k), cap)
    _, weight, part = row_weights(sinks[:, None], score)
    bad = part.bad | unusable
    return quotients(products(weight, v), PRODUCT_GRID, part.total, bad), bad


def phases(rows: list[int]) -> list[tuple[bool, int]]:
    """(whether it is V, job) of each stretch of rows of a run of jobs: K0 K1 V0 K2 V1 ... V.

    K of the next job comes before V, so that its scores hide the softmax.
    """
    order = []
    for job in range(len(rows)):
        order.append((False, job))
        if job:
            order.append((True, job - 1))
    return [*order, (True, len(rows) - 1)]
