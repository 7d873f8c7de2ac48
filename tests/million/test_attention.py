"""golden.million.attention against integers and fractions: statuses, and every bit of the outputs.

``tests.million.fractions_of_attention`` is the reference. The draws follow ``--seed``.

Shown to fail:

- a maximum of codes and rows apart, or that of another query;
- the distance of a row from the token before the newest;
- a sink's distance, or that of a code, a token short;
- codes of V where those of K belong;
- BAD_CODE before NONFINITE;
- an infinite table entry that no code names, let through;
- -infinity counted as a score beyond FP16, or as the lowest finite score;
- a score, or a table entry, rounded to nearest and ties upwards, or its subnormals flushed;
- a weight two words of FP16 off, or one word off where the page of fp16_exp allows one word;
- the sum of weights, its reciprocal, or the weighted sum kept longer than FP32;
- an output that is a quotient, rounded once;
- the scale of K for that of V;
- a chunk of looked-up entries that loses its last key.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.fp16 import functions
from golden.fp16.format import FP16
from golden.fp16.ops import fixed_point
from golden.index.packet import normalised
from golden.million.attention import Codebook, Head, attend_head
from golden.million.format import Status
from tests.exact import ordinary
from tests.million.fractions_of_attention import (
    INFINITY,
    MINUS,
    NAN,
    Book,
    Kept,
    attend,
    weights_allowed,
)

DIM, SUBSPACES, ENTRIES = 16, 4, 12
SUB = DIM // SUBSPACES
MOST, ONE = 0x7BFF, 0x3C00
SMALL_DRAWS, FAULTY_DRAWS = 120, 15


def _normal(rng, *shape, width=1.0) -> np.ndarray:
    words = rng.normal(0, width, shape).astype(np.float16).view(np.uint16)
    return words.astype(np.int64)


def _words(rng, *shape, top=MOST) -> np.ndarray:
    """Finite words of magnitude up to ``top``, all of one kind."""
    signs = rng.integers(0, 2, shape) << 15
    return (
        lambda: _normal(rng, *shape, width=0.2 * top / MOST),
        lambda: _normal(rng, *shape, width=0.02),
        lambda: rng.integers(0, top + 1, shape) | signs,
        lambda: rng.integers(0, 0x400, shape) | signs,
        lambda: top | signs,
        lambda: rng.integers(0, top + 1, shape) * (rng.random(shape) < 2 / shape[-1]) | signs,
        lambda: np.zeros(shape, dtype=np.int64) | signs,
    )[rng.choice(7, p=(0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1))]()


@dataclasses.dataclass
class _Draw:
    """Arrays of words and codes; ``kept`` and ``books`` for the reference, ``head`` for golden."""

    q: np.ndarray  # (g, d)
    slope: np.ndarray
    codes: list[np.ndarray]  # of K and of V, (n, M)
    rows: list[np.ndarray]  # of K and of V, (r, d)
    sinks: int
    books: list[np.ndarray]  # of K and of V, (M, entries, d / M)
    exponents: list[int]

    def check(self) -> Status:
        """Golden and the reference agree in all bits."""
        kept = Kept(*(each.tolist() for each in (*self.codes, *self.rows)), self.sinks)
        lists = map(np.ndarray.tolist, self.books)
        books = [Book(*each) for each in zip(lists, self.exponents, strict=True)]
        expected = attend(self.q.tolist(), self.slope.tolist(), kept, *books)
        head = Head(*(torch.tensor(each) for each in (*self.codes, *self.rows)), self.sinks)
        codebooks = [
            Codebook(torch.tensor(words), exponent)
            for words, exponent in zip(self.books, self.exponents, strict=True)
        ]
        q, slope = torch.tensor(self.q), torch.tensor(self.slope)
        status, words = attend_head(q, slope, head, *codebooks)
        assert (status, words.tolist()) == expected
        return status


def _ordinary(rng, tokens: int) -> _Draw:
    """Any words. Nearly every draw has codes, sinks and recent tokens."""
    rows = int(rng.choice([0, tokens, rng.integers(0, min(tokens, 40) + 1)], p=(0.1, 0.1, 0.8)))
    rows = min(rows, 64)
    queries, entries = int(rng.integers(1, 4)), int(rng.integers(1, ENTRIES + 1))
    slope = _words(rng, queries) if rng.random() < 0.3 else _normal(rng, queries, width=0.02)
    slope[rng.random(queries) < 0.4] = 0
    return _Draw(
        _words(rng, queries, DIM), slope,
        [rng.integers(0, entries, (tokens - rows, SUBSPACES)) for _ in range(2)],
        [_words(rng, rows, DIM) for _ in range(2)],
        int(rng.integers(0, rows + 1)),
        [_words(rng, SUBSPACES, entries, SUB, top=ONE) for _ in range(2)],
        [int(each) for each in rng.integers(-8, 16, 2)],
    )  # fmt: skip


def _placed(rng, tokens: int, places: np.ndarray, exponent: int) -> _Draw:
    """Each score is one of ``places``, words of magnitude at most 1, times 2**exponent."""
    draw = _ordinary(rng, tokens)
    draw.q[:], draw.slope[:] = 0, 0
    draw.q[:, 0] = ONE
    draw.books[0][:], draw.exponents[0] = 0, exponent
    draw.books[0][0, :, 0] = rng.choice(places, draw.books[0].shape[1])
    scaled = places.astype(np.uint16).view(np.float16).astype(float) * 2.0**exponent
    rows = scaled.astype(np.float16).view(np.uint16).astype(np.int64)
    draw.rows[0][:] = 0
    draw.rows[0][:, 0] = rng.choice(rows, len(draw.rows[0]))
    return draw


def _one_ulp_apart(rng, tokens: int) -> _Draw:
    """Scores that are equal, or neighbours, so that the maximum is met many times."""
    base = int(rng.integers(0x2800, ONE - 4)) | int(rng.integers(0, 2)) << 15
    return _placed(rng, tokens, base + rng.integers(-3, 4, 6), int(rng.integers(0, 12)))


def _lowest(rng, tokens: int) -> _Draw:
    """Scores of -65504 and of -infinity."""
    draw = _placed(rng, tokens, np.array([0xBBFF]), 15)
    draw.q[:, [0, SUB]] = 0x4000
    draw.rows[0][:, 0] = 0xF7FF
    draw.rows[0][:, SUB] = rng.choice([0, 0xF7FF], len(draw.rows[0]))
    draw.books[0][1, :, 0] = rng.choice([0, 0xBBFF], draw.books[0].shape[1])
    return draw


def _all_weights(rng, tokens: int) -> _Draw:
    """Scores down to 18 below the maximum: weights of each binade, subnormals and none."""
    away = np.array([0, *rng.uniform(-18.5, 0, ENTRIES - 1)]) / 32
    return _placed(rng, tokens, away.astype(np.float16).view(np.uint16).astype(np.int64), 5)


def _ties(rng, tokens: int) -> _Draw:
    """Entries, scores of codes and scores of rows half an ulp from a word, or a unit from there."""
    draw = _ordinary(rng, tokens)
    draw.q[:], draw.slope[:], draw.exponents[0] = ONE, 0, 0

    def half_way(vectors: np.ndarray) -> None:
        for vector in vectors:
            vector[:] = 0
            exponent = int(rng.integers(2, 15))
            places = rng.permutation(len(vector))[:3]
            half = (exponent - 11) << 10 if exponent > 11 else 1 << exponent - 2
            sign = int(rng.integers(0, 2)) << 15
            vector[places] = (
                exponent << 10 | int(rng.integers(0, 0x400)) | sign,
                half | int(rng.integers(0, 2)) << 15,
                int(rng.choice([0, 1, MINUS | 1])),
            )

    half_way(draw.rows[0])
    if rng.random() < 0.5:
        half_way(draw.books[0].reshape(-1, SUB))
    else:  # the parts of one entry are a tie together
        rows = np.zeros((draw.books[0].shape[1], SUBSPACES), dtype=np.int64)
        half_way(rows)
        draw.books[0][:], draw.books[0][:, :, 0] = 0, rows.T
        draw.codes[0] = draw.codes[0][:, :1].repeat(SUBSPACES, 1)
    return draw


def _means(rng, tokens: int) -> _Draw:
    """Equal scores of few keys: outputs half way between two neighbours, subnormal ones too."""
    draw = _placed(rng, min(tokens, int(rng.choice([1, 2, 4]))), np.array([0]), 0)
    base = rng.integers(0, 0x400, DIM) if rng.random() < 0.3 else rng.integers(0, ONE - 1, DIM)
    base |= int(rng.integers(0, 2)) << 15
    draw.rows[1] = base + rng.integers(0, 2, draw.rows[1].shape)
    book = base.reshape(SUBSPACES, 1, SUB) + rng.integers(0, 2, draw.books[1].shape)
    draw.books[1], draw.exponents[1] = book, int(rng.choice([0, -1, -8, 15]))
    return draw


def _half_way_outputs(rng, tokens: int) -> _Draw:
    """All values of an element are half way between two subnormal words: FP32 decides."""
    draw = _all_weights(rng, tokens)
    entries = draw.books[1].shape[1]
    draw.codes = [rng.integers(0, entries, (tokens, SUBSPACES)) for _ in range(2)]
    draw.rows, draw.sinks = [rows[:0] for rows in draw.rows], 0
    halves = (2 * rng.integers(0, 1 << 10, DIM) + 1) * rng.choice([-1, 1], DIM) * 2.0**-17
    words = halves.astype(np.float16).view(np.uint16).astype(np.int64)
    draw.books[1][:], draw.exponents[1] = words.reshape(SUBSPACES, 1, SUB), -8
    return draw


def _faulty(rng, tokens: int, faults) -> _Draw:
    """NaN or infinity in q (0) or a slope (1), a code too large (2), sums beyond FP16 (3, 4)."""
    draw = _KINDS[rng.integers(len(_KINDS))](rng, tokens)
    while 2 in faults and not len(draw.codes[0]):
        draw = _ordinary(rng, tokens)
    special = rng.choice([NAN, NAN | MINUS, 0x7C01, INFINITY, INFINITY | MINUS], 2)
    query, place = int(rng.integers(len(draw.q))), int(rng.integers(DIM))
    for fault in faults:
        side = int(rng.integers(2))
        if fault == 0:
            draw.q[query, place] = special[0]
        elif fault == 1:
            draw.slope[query] = special[1]
        elif fault == 2:
            code = draw.books[side].shape[1] + int(rng.integers(0, 3))
            draw.codes[side][rng.integers(len(draw.codes[side])), rng.integers(SUBSPACES)] = code
        elif fault == 3:  # an entry beyond FP16, named by a code or not
            draw.q[query, place] = MOST
            draw.books[0][place // SUB, -1, place % SUB] = ONE | int(rng.integers(0, 2)) << 15
            draw.exponents[0] = int(rng.integers(1, 3))
            if rng.random() < 0.3 and len(draw.rows[0]):  # there is no code
                draw.codes = [codes[:0] for codes in draw.codes]
        elif fault == 4:  # scores beyond FP16, upwards or downwards
            draw.slope[query] = rng.choice([MOST, MOST | MINUS])
    return draw


_KINDS = (
    _ordinary, _one_ulp_apart, _lowest, _all_weights, _ties, _means, _half_way_outputs
)  # fmt: skip


def test_small_draws(seed):
    """1 to 60 tokens. Every kind of draw comes equally often."""
    rng = np.random.default_rng([seed, 193])
    for _ in range(SMALL_DRAWS // len(_KINDS)):
        found = {kind.__name__: kind(rng, int(rng.integers(1, 61))).check() for kind in _KINDS}
        for kind in (_one_ulp_apart, _all_weights, _means, _half_way_outputs):
            assert found[kind.__name__] == Status.OK


def test_faulty_draws(seed):
    """Each fault alone, and two of them."""
    rng = np.random.default_rng([seed, 196])
    found = set()
    for n in range(2 * FAULTY_DRAWS):
        others = rng.integers(0, 5, 1) if n >= FAULTY_DRAWS else ()
        found.add(_faulty(rng, int(rng.integers(1, 61)), {n % 5, *others}).check())
    assert found >= {Status.NONFINITE, Status.BAD_CODE, Status.OVERFLOW}


def test_long_draws(seed):
    """1,000 to 3,000 tokens."""
    rng = np.random.default_rng([seed, 194])
    for kind in _KINDS:
        kind(rng, int(rng.integers(1000, 3001))).check()


def test_the_page_allows_every_weight():
    """The page of fp16_exp leaves a choice for 371 words, and golden takes one of the two."""
    differences = range(MINUS, (MINUS | INFINITY) + 1)
    given = fixed_point(functions.exp(torch.tensor(differences))).tolist()
    allowed = [weights_allowed(word) for word in differences]
    assert all(weight in each for weight, each in zip(given, allowed, strict=True))
    assert sum(each != (0,) for each in allowed) == 19542
    assert sum(len(each) > 1 for each in allowed) == 371


def _case(rng, keys: int, sinks: int, recent: int, queries: int = 2):
    """(q, slope, head, book of K, book of V) of ordinary words."""
    books = [
        Codebook(*normalised(torch.tensor(rng.normal(0, 1, (SUBSPACES, ENTRIES, SUB)))))
        for _ in range(2)
    ]
    codes = [torch.tensor(rng.integers(0, ENTRIES, (keys, SUBSPACES))) for _ in range(2)]
    rows = [ordinary(rng, sinks + recent, DIM) for _ in range(2)]
    slope = torch.tensor(_normal(rng, queries, width=0.2))
    return ordinary(rng, queries, DIM), slope, Head(*codes, *rows, sinks), *books


def test_any_order_of_keys_gives_the_same_bits():
    """Past keys may come in any order without slopes, and so may rows."""
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
