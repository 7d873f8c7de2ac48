"""Attention of the queries of one KV head over codes, exact rows, or both: bit for bit.

All scores of a query share one maximum, so partial sums of past and window add exactly and one
division ends it. Words are int64 tensors of FP16 bit patterns, any device.
"""

import dataclasses

import torch
from torch import Tensor

from golden.attention.softmax import row_weights
from golden.fp16.format import FP16
from golden.fp16.ops import is_special
from golden.index.tables import tables
from golden.million.format import Status
from golden.million.output import outputs
from golden.million.scores import past_scores
from golden.million.value import value_sums
from golden.million.window import window_scores, window_sums


@dataclasses.dataclass(frozen=True)
class Codebook:
    """The codebook of K or of V of one KV head: ``2**exponent * words[m][j][i]``.

    words: (M, entries, d / M) FP16 words of magnitude at most 1.
    """

    words: Tensor
    exponent: int


@dataclasses.dataclass(frozen=True)
class Head:
    """The tokens that the queries of a KV head attend, oldest token first in each part.

    codes_k, codes_v: (n, M); rows_k, rows_v: (rows, d) words, the sinks and then the recent
    tokens; distances: (rows,) tokens from the row to the newest token; sinks: rows that are sinks.
    """

    codes_k: Tensor
    codes_v: Tensor
    rows_k: Tensor
    rows_v: Tensor
    sinks: int

    @property
    def tokens(self) -> int:
        return len(self.codes_k) + len(self.rows_k)

    @property
    def distances(self) -> Tensor:
        """(rows,): from each exact row to the newest token."""
        recent = len(self.rows_k) - self.sinks
        sinks = self.tokens - 1 - torch.arange(self.sinks)
        return torch.cat((sinks, torch.arange(recent - 1, -1, -1))).to(self.rows_k.device)


def attend_head(
    q: Tensor, slope: Tensor, head: Head, book_k: Codebook, book_v: Codebook
) -> tuple[Status, Tensor]:
    """(status, (g, d) words) of (g, d) queries times 1/sqrt(d) and (g,) slopes.

        s = rne16(sum_m T[m][code] + slope * distance)      of a code
        s = rne16(q . k + slope * distance)                 of a row
        m = max s;  w = exp(rne16(s - m));  S = sum w
        o = rne16(rne32(2**e * sum_j H[m][j] * C[m][j] + sum w * v) * rne32(1 / rne32(S)))

    A score below FP16 is -infinity, and its weight is 0. A query has no result if a table entry is
    infinite, if a score is +infinity, or if all scores are -infinity.

    A query without a result is NaN (0x7E00) in all elements. The status is the first of NONFINITE,
    BAD_CODE and OVERFLOW that applies to a query. A code beyond the entries makes all
    queries of the head NaN.
    """
    entries = book_k.words.shape[1]
    nonfinite = is_special(q).any(-1) | is_special(slope)
    table, bad = tables(q, book_k.words, book_k.exponent)
    first = head.tokens - 1 - head.sinks
    past = past_scores(table, head.codes_k, slope, max(first, 0), bad)
    exact = window_scores(q, head.rows_k, slope, head.distances)
    weights_rows, weights_past, part = row_weights(exact.T, past.T)
    bad_code = bool((head.codes_k >= entries).any()) or bool((head.codes_v >= entries).any())
    codes_v = head.codes_v.clamp(max=entries - 1)
    sums = value_sums(weights_past, codes_v, book_v.words)
    rows = window_sums(weights_rows, head.rows_v)
    failed = nonfinite | bad | part.bad | bad_code
    words = outputs(sums, book_v.exponent, rows, part.total, failed)
    status = Status.OK
    for applies, name in (
        (bool(nonfinite.any()), Status.NONFINITE),
        (bad_code, Status.BAD_CODE),
        (bool(failed.any()), Status.OVERFLOW),
    ):
        if applies and status == Status.OK:
            status = name
    assert words.shape == q.shape
    return status, torch.where(failed[:, None], FP16.canonical_nan, words)
