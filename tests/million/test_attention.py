"""golden.million.attention against fractions: scores, one maximum, sums, one division, statuses.

Shown to fail:

- a maximum of codes and rows apart;
- the distance of a row from the token before the newest;
- a sink's distance, or that of a code, a token short;
- codes of V where those of K belong;
- BAD_CODE before NONFINITE;
- -infinity counted as a score beyond FP16, or as the lowest finite score.
"""

import dataclasses
import decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.index.packet import normalised
from golden.million.attention import Codebook, Head, attend_head
from golden.million.format import Status
from tests.exact import exact, ordinary, rounded

DIM, SUBSPACES, ENTRIES = 16, 4, 12
PARTS = range(0, DIM, DIM // SUBSPACES)


def _exp(word: int) -> Fraction:
    """exp of a word, as the word that it rounds to."""
    with decimal.localcontext() as context:
        context.prec = 50
        number = exact(word)
        value = (decimal.Decimal(number.numerator) / number.denominator).exp()
    return exact(rounded(Fraction(value)))


def _case(rng, keys: int, sinks: int, recent: int, queries: int = 2):
    """(q, slope, head, book of K, book of V) of ordinary words."""
    books = [
        Codebook(*normalised(torch.tensor(rng.normal(0, 1, (SUBSPACES, ENTRIES, 4)))))
        for _ in range(2)
    ]
    codes = [torch.tensor(rng.integers(0, ENTRIES, (keys, SUBSPACES))) for _ in range(2)]
    rows = [ordinary(rng, sinks + recent, DIM) for _ in range(2)]
    slope = torch.tensor([rounded(Fraction(float(x))) for x in rng.normal(0, 0.2, queries)])
    return ordinary(rng, queries, DIM), slope, Head(*codes, *rows, sinks), *books


def _entry(book: Codebook, m: int, code: int) -> list[Fraction]:
    return [exact(word) * Fraction(2) ** book.exponent for word in book.words[m, code].tolist()]


def _query(q: list[int], slope: int, head: Head, book_k: Codebook, book_v: Codebook) -> list[int]:
    """Output words of one query by the equations of ``attend_head``, as the paper orders them."""
    tokens, keys = head.tokens, len(head.codes_k)
    x = [exact(word) for word in q]
    scores, values = [], []
    for n, (code_k, code_v) in enumerate(zip(head.codes_k, head.codes_v, strict=True)):
        total = Fraction(0)
        for m, code in enumerate(code_k.tolist()):
            part = x[PARTS[m] : PARTS[m] + 4]
            entry = _entry(book_k, m, code)
            total += exact(rounded(sum(a * b for a, b in zip(part, entry, strict=True))))
        distance = tokens - 1 - head.sinks - n
        scores.append(rounded(total + exact(slope) * distance))
        value = [_entry(book_v, m, code) for m, code in enumerate(code_v.tolist())]
        values.append([element for part in value for element in part])
    for n, (k, v) in enumerate(zip(head.rows_k.tolist(), head.rows_v.tolist(), strict=True)):
        token = n if n < head.sinks else keys + n
        total = sum(a * exact(b) for a, b in zip(x, k, strict=True))
        scores.append(rounded(total + exact(slope) * (tokens - 1 - token)))
        values.append([exact(word) for word in v])
    largest = max(exact(word) for word in scores)
    weights = [_exp(rounded(exact(word) - largest)) for word in scores]
    inverse = exact(rounded(1 / exact(rounded(sum(weights), FP32), FP32), FP32), FP32)
    words = []
    for i in range(DIM):
        total = sum(w * value[i] for w, value in zip(weights, values, strict=True))
        words.append(rounded(exact(rounded(total, FP32), FP32) * inverse))
    return words


@pytest.mark.parametrize(
    ("keys", "sinks", "recent"), [(9, 2, 3), (5, 0, 0), (0, 1, 2), (0, 0, 1), (1, 3, 0)]
)
def test_outputs_follow_the_equations(keys, sinks, recent):
    rng = np.random.default_rng([keys, sinks, recent])
    q, slope, head, book_k, book_v = _case(rng, keys, sinks, recent)
    status, words = attend_head(q, slope, head, book_k, book_v)
    assert status == Status.OK
    for n in range(len(q)):
        expected = _query(q[n].tolist(), int(slope[n]), head, book_k, book_v)
        assert words[n].tolist() == expected


def test_any_order_of_keys_gives_the_same_bits():
    """Without slopes, past keys may come in any order, and so may rows."""
    rng = np.random.default_rng(5)
    q, slope, head, book_k, book_v = _case(rng, 60, 3, 7)
    slope = torch.zeros_like(slope)
    _, words = attend_head(q, slope, head, book_k, book_v)
    for _ in range(4):
        keys, rows = (torch.tensor(rng.permutation(n)) for n in (60, 10))
        mixed = Head(
            head.codes_k[keys], head.codes_v[keys], head.rows_k[rows], head.rows_v[rows], 3
        )
        assert torch.equal(attend_head(q, slope, mixed, book_k, book_v)[1], words)


def _spoiled(what: str):
    """(arguments, queries without a result) of a case with one fault."""
    q, slope, head, book_k, book_v = _case(np.random.default_rng(8), 6, 1, 2)
    queries = {0, 1}
    if what == "query":
        q[1, 3], queries = FP16.infinity, {1}
    elif what == "slope":
        slope[0], queries = FP16.canonical_nan, {0}
    elif what in ("code", "code and query"):
        codes = head.codes_v.clone()
        codes[4, 1] = ENTRIES
        head = dataclasses.replace(head, codes_v=codes)
        if what == "code and query":
            q[0, 0] = FP16.canonical_nan
    elif what == "table":
        q[0, :4], queries = 0x7BFF, {0}
        book_k = Codebook(torch.full_like(book_k.words, 0x3C00), 15)
        q[1] = 0x0001
    elif what == "score":
        q[0], queries = 0x7BFF, {0}
        q[1] = 0
        book_k = Codebook(torch.full_like(book_k.words, 0x3400), 0)  # entries of 65504
    return (q, slope, head, book_k, book_v), queries


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("query", Status.NONFINITE), ("slope", Status.NONFINITE), ("code", Status.BAD_CODE),
        ("code and query", Status.NONFINITE), ("table", Status.OVERFLOW),
        ("score", Status.OVERFLOW),
    ],
)  # fmt: skip
def test_what_has_no_result(what, status):
    arguments, queries = _spoiled(what)
    found, words = attend_head(*arguments)
    assert found == status
    is_nan = (words == FP16.canonical_nan).all(1)
    assert {n for n in range(2) if is_nan[n]} == queries
    assert not ((words == FP16.canonical_nan).any(1) & ~is_nan).any()


@pytest.mark.parametrize(("other", "status"), [(0x0000, Status.OK), (0xFBFF, Status.OVERFLOW)])
def test_a_score_below_fp16_has_no_weight(other, status):
    """Unless all scores of the query are so low."""
    q, slope, head, book_k, book_v = _case(np.random.default_rng(9), 0, 1, 1, queries=1)
    rows, q, book_k = head.rows_k.clone(), torch.zeros_like(q), Codebook(book_k.words, 0)
    rows[0], rows[1], slope[0], q[0, 0] = 0xFBFF, other, 0, 0x7BFF  # no table entry is infinite
    head = dataclasses.replace(head, rows_k=rows)
    found, words = attend_head(q, slope, head, book_k, book_v)
    assert found == status
    expected = head.rows_v[1] if status == Status.OK else torch.full((DIM,), FP16.canonical_nan)
    assert torch.equal(words[0], expected)
