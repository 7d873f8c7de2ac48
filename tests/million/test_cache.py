"""golden.million.cache against integers and fractions: every status and every bit of the outputs.

``tests.million.fractions_of_attention`` is the reference. The draws follow ``--seed``.

Shown to fail:

- a flush that takes a token more; a window that is flushed a token early;
- a token of a prompt that goes to the window;
- a token that is refused before its flush;
- recent tokens before the sinks;
- the codebook of head 0 for all heads, in ATTEND or in the encoder;
- codes of K for those of V in RESTORE;
- the last of the nearest entries;
- the last status of several heads.
"""

import numpy as np
import pytest
import torch

from golden.million.attention import Codebook
from golden.million.cache import Cache, Codebooks
from golden.million.config import HeadShape, MillionConfig, PqShape, WindowShape
from golden.million.format import Op, Status
from tests.million.fractions_of_attention import INFINITY, NAN, Book, Layer

DIM, SUBSPACES, ENTRIES, MOST_TOKENS = 16, 4, 16, 40
SUB = DIM // SUBSPACES
ONE = 0x3C00
DRAWS = 3
WINDOWS = {"none": (0, 0), "flush": (0, 7), "sliding": (3, 1), "sliding in blocks": (2, 4)}


def _normal(rng, *shape, width=1.0) -> np.ndarray:
    return rng.normal(0, width, shape).astype(np.float16).view(np.uint16).astype(np.int64)


def _books(rng, count: int) -> list[np.ndarray]:
    """(M, entries, sub) words of magnitude at most 1; some entries are there twice."""
    entries = int(rng.integers(2, ENTRIES + 1))
    books = []
    for _ in range(count):
        book = np.minimum(_normal(rng, SUBSPACES, entries, SUB, width=0.3) & 0x7FFF, ONE)
        book |= rng.integers(0, 2, book.shape) << 15
        book[:, rng.integers(entries)] = book[:, rng.integers(entries)]
        books.append(book)
    return books


def _row(rng, book: np.ndarray, exponent: int) -> np.ndarray:
    """(d,) words: any, large, subnormal, half way between two entries, or a unit from there."""
    kind = rng.integers(5)
    if kind < 2:
        return _normal(rng, DIM, width=(0.3, 300.0)[kind])
    if kind == 2:
        return rng.integers(0, 0x400, DIM) | rng.integers(0, 2, DIM) << 15
    values = book.astype(np.uint16).view(np.float16).astype(float) * 2.0**exponent
    pairs = rng.integers(0, book.shape[1], (2, SUBSPACES))
    middle = sum(values[np.arange(SUBSPACES), pair] for pair in pairs).reshape(DIM) / 2
    words = middle.astype(np.float16).view(np.uint16).astype(np.int64)
    return words ^ (rng.integers(0, 2, DIM) if kind == 4 else 0)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("scope_heads", [False, True])
def test_requests_of_a_layer(window, scope_heads, seed):
    """Tokens by PREFILL, RESTORE and APPEND until the sequence is full; ATTEND now and then."""
    keep, block = WINDOWS[window]
    rng = np.random.default_rng([seed, 195, keep, block, scope_heads])
    seen = set()
    for _ in range(DRAWS):
        heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        config = MillionConfig(
            pq=PqShape(head_dim=DIM, subspaces=SUBSPACES, bits=4),
            head=HeadShape(heads=heads, group=group),
            window=WindowShape(sinks=int(rng.integers(0, 4)), keep=keep, block=block),
            layers=1, max_tokens=int(rng.integers(1, MOST_TOKENS)), pages=64, page_bytes=256,
            scope_heads=scope_heads,
        )  # fmt: skip
        seen |= _run(rng, config)
    assert {Status.OK, Status.NONFINITE, Status.LENGTH_LIMIT, Status.EMPTY} <= seen


def _run(rng, config: MillionConfig) -> set[Status]:
    """Requests to golden and to the reference until the sequence is full; their statuses."""
    heads, group, window = config.head.heads, config.head.group, config.window
    words = [_books(rng, config.books) for _ in range(2)]
    entries = min(book.shape[1] for side in words for book in side)
    words = [[book[:, :entries] for book in side] for side in words]
    exponents = [int(each) for each in rng.integers(-3, 4, 2)]
    cache = Cache(config)
    cache.open()
    cache.load(0, Codebooks(*(
        tuple(Codebook(torch.tensor(book), exponent) for book in side)
        for side, exponent in zip(words, exponents, strict=True)
    )))  # fmt: skip
    of_head = [
        [(side[n if config.scope_heads else 0], exponent)
         for side, exponent in zip(words, exponents, strict=True)]
        for n in range(heads)
    ]  # fmt: skip
    books = [tuple(Book(book.tolist(), exponent) for book, exponent in each) for each in of_head]
    told = Layer(window.sinks, window.keep, window.block, config.max_tokens, books)
    seen: set[Status] = set()

    def attend() -> None:
        q = _normal(rng, heads, group, DIM, width=rng.choice([0.05, 0.5]))
        slope = _normal(rng, heads, group, width=0.05)
        if rng.random() < 0.3:
            q[rng.integers(heads), rng.integers(group), rng.integers(DIM)] = INFINITY
        if rng.random() < 0.3:
            slope[rng.integers(heads), rng.integers(group)] = 0x7BFF
        status, outputs = cache.attend(0, 0, torch.tensor(q), torch.tensor(slope))
        found = None if outputs is None else outputs.tolist()
        assert (status, found) == told.attend(q.tolist(), slope.tolist())
        seen.add(status)

    attend()
    first = True  # a token that is refused
    while Status.LENGTH_LIMIT not in seen:
        kind = rng.choice(["prefill", "restore", "append", "attend"], p=(0.15, 0.1, 0.6, 0.15))
        if kind == "attend":
            attend()
            continue
        if kind == "restore" and not first:
            codes = rng.integers(0, entries, (2, heads, SUBSPACES))
            if rng.random() < 0.02:
                codes[rng.integers(2), rng.integers(heads), 0] = ENTRIES - 1
            found = cache.restore(0, 0, *torch.tensor(codes))
            assert found == told.restore(*codes.tolist())
        else:
            kv = np.array([[_row(rng, *of_head[n][side]) for n in range(heads)]
                           for side in range(2)])  # fmt: skip
            if first or rng.random() < 0.1:
                special = rng.choice([NAN, INFINITY, INFINITY | 0x8000])
                kv[rng.integers(2), rng.integers(heads), rng.integers(DIM)] = special
            op = Op.PREFILL if kind == "prefill" else Op.APPEND
            add = cache.prefill if op == Op.PREFILL else cache.append
            found = add(0, 0, *torch.tensor(kv))
            assert found == told.add(op, *kv.tolist())
            first = False
        seen.add(found)
    attend()
    return seen
