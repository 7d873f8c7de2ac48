"""Attention over codes and exact rows, and its cache, in Python's integers and fractions.

All of it follows docs/million.md and the equations of ``golden.million.attention``. Decoding of
words, exponential, search of the nearest entry and policy of the window are its own.

The page of fp16_exp says that a weight errs by less than 0.51 ulp. For 98 words of 100 that leaves
one weight. For the others it leaves two, and only there ``golden.fp16.functions.exp`` is asked.
"""

import dataclasses
import functools
import struct
from collections.abc import Sequence
from fractions import Fraction

import torch

from golden.fp16 import functions
from golden.fp16.format import FP32
from golden.million.format import Op, Status
from tests.exact import rounded

INFINITY, MINUS, NAN = 0x7C00, 0x8000, 0x7E00
_ONE = 1 << 24  # words are integers in units of 2**-24
_PLACES = 160  # of the exponential; its error is below 2**-140
_NO_WEIGHT = Fraction(-1733, 100)  # below it the page's table says +0

Words = Sequence[int]


@dataclasses.dataclass(frozen=True)
class Book:
    """2**exponent * words[m][j][i]."""

    words: list[list[list[int]]]
    exponent: int

    @property
    def entries(self) -> int:
        return len(self.words[0])


@dataclasses.dataclass(frozen=True)
class Kept:
    """The store of one KV head: codes (n, M), rows (r, d), the sinks first among the rows."""

    codes_k: Sequence[Words]
    codes_v: Sequence[Words]
    rows_k: Sequence[Words]
    rows_v: Sequence[Words]
    sinks: int


def _is_finite(word: int) -> bool:
    return word & INFINITY != INFINITY


@functools.cache
def _fixed(word: int) -> int:
    """The number of a finite word in units of 2**-24."""
    (number,) = struct.unpack("<e", struct.pack("<H", word))
    return int(Fraction(number) * _ONE)


@functools.cache
def _single(word: int) -> Fraction:
    (number,) = struct.unpack("<f", struct.pack("<I", word))
    return Fraction(number)


def _exponential(x: Fraction) -> Fraction:
    """exp(x) of -32 < x <= 0: a series of x / 2**8, squared eight times."""
    small = int(x * (1 << _PLACES - 8))
    term = total = 1 << _PLACES
    for n in range(1, 40):
        term = term * small // (n << _PLACES)
        total += term
    for _ in range(8):
        total = total * total >> _PLACES
    return Fraction(total, 1 << _PLACES)


@functools.cache
def weights_allowed(word: int) -> tuple[int, ...]:
    """Weights in units of 2**-24 that the page of fp16_exp allows for a word of 0 or less."""
    if word == MINUS | INFINITY or Fraction(_fixed(word), _ONE) < _NO_WEIGHT:
        return (0,)
    x = Fraction(_fixed(word), _ONE)
    if not x:
        return (_ONE,)
    value = _exponential(x)
    unit = Fraction(1, _ONE)
    while value >= unit * 2048:
        unit *= 2
    below = value // unit
    errors = {steps: abs(steps - value / unit) for steps in (below, below + 1)}
    assert all(abs(each - Fraction(51, 100)) > Fraction(1, 1 << 100) for each in errors.values())
    return tuple(int(s * unit * _ONE) for s, e in errors.items() if e < Fraction(51, 100))


@functools.cache
def _weight(word: int) -> int:
    allowed = weights_allowed(word)
    if len(allowed) == 1:
        return allowed[0]
    found = _fixed(int(functions.exp(torch.tensor(word))))
    assert found in allowed, f"exp({word:#06x})"
    return found


def _table(q: Words, book: Book) -> list[list[int]]:
    """Words of rne16(2**e * q_m . C_m[j])."""
    table, at, scale = [], 0, Fraction(2) ** book.exponent / _ONE**2
    for part in book.words:
        own = [_fixed(word) for word in q[at : at + len(part[0])]]
        sums = (sum(a * _fixed(b) for a, b in zip(own, row, strict=True)) for row in part)
        table.append([rounded(scale * each) for each in sums])
        at += len(part[0])
    return table


def _scores(q: Words, slope: int, kept: Kept, table: list[list[int]]) -> list[int]:
    """Words of all scores, the codes' before the rows'."""
    keys, scores = len(kept.codes_k), []
    newest = keys + len(kept.rows_k) - 1
    entries = [[_fixed(word) for word in part] for part in table]
    for n, code in enumerate(kept.codes_k):
        total = sum(part[j] for part, j in zip(entries, code, strict=True))
        away = newest - (kept.sinks + n)
        scores.append(rounded(Fraction(total + _fixed(slope) * away, _ONE)))
    x = [_fixed(word) for word in q]
    for n, row in enumerate(kept.rows_k):
        total = sum(a * _fixed(b) for a, b in zip(x, row, strict=True))
        away = newest - (n if n < kept.sinks else keys + n)
        scores.append(rounded(Fraction(total + _fixed(slope) * _ONE * away, _ONE**2)))
    return scores


def _query(q: Words, slope: int, kept: Kept, book_k: Book, book_v: Book) -> list[int] | None:
    """The outputs of a finite query on codes below ``entries``; None: they are beyond FP16."""
    table = _table(q, book_k)
    if not all(_is_finite(word) for part in table for word in part):
        return None
    scores = _scores(q, slope, kept, table)
    numbers = [_fixed(word) for word in scores if _is_finite(word)]
    if INFINITY in scores or not numbers:
        return None
    largest, weights = max(numbers), []
    for word in scores:
        away = Fraction(_fixed(word) - largest, _ONE) if _is_finite(word) else None
        weights.append(0 if away is None else _weight(rounded(away)))
    past, rows = weights[: len(kept.codes_k)], weights[len(kept.codes_k) :]
    inverse = _single(rounded(1 / _single(rounded(Fraction(sum(weights), _ONE), FP32)), FP32))
    outputs: list[int] = []
    scale = Fraction(2) ** book_v.exponent
    for m, part in enumerate(book_v.words):
        for i in range(len(part[0])):
            element = [_fixed(row[i]) for row in part]
            codes = sum(w * element[c[m]] for w, c in zip(past, kept.codes_v, strict=True) if w)
            place = len(outputs)
            exact = sum(w * _fixed(v[place]) for w, v in zip(rows, kept.rows_v, strict=True) if w)
            total = (scale * codes + exact) / _ONE**2
            outputs.append(rounded(_single(rounded(total, FP32)) * inverse))
    return outputs


def attend(
    queries: Sequence[Words], slopes: Words, kept: Kept, book_k: Book, book_v: Book
) -> tuple[Status, list[list[int]]]:
    """The first status that applies to a query of a KV head, and the words of all outputs."""
    beyond = any(c >= book_k.entries for code in kept.codes_k for c in code)
    beyond |= any(c >= book_v.entries for code in kept.codes_v for c in code)
    found, words = [], []
    for q, slope in zip(queries, slopes, strict=True):
        outputs = None
        if not all(_is_finite(word) for word in (*q, slope)):
            found.append(Status.NONFINITE)
        elif beyond:
            found.append(Status.BAD_CODE)
        else:
            outputs = _query(q, slope, kept, book_k, book_v)
            found += [Status.OVERFLOW] if outputs is None else []
        words.append([NAN] * len(q) if outputs is None else outputs)
    return min(found, default=Status.OK), words


def _nearest(x: Words, book: Book) -> list[int]:
    """Codes of the entries at the smallest distance, the first of several."""
    codes, at, scale = [], 0, Fraction(2) ** book.exponent
    for part in book.words:
        own = [_fixed(word) for word in x[at : at + len(part[0])]]
        away = [
            sum((a - scale * _fixed(b)) ** 2 for a, b in zip(own, row, strict=True)) for row in part
        ]
        codes.append(away.index(min(away)))
        at += len(part[0])
    return codes


class Layer:
    """One sequence's tokens of a layer, under a policy of sinks and recent tokens.

    A token is (K of each head, V of each head): rows, or codes once it has become codes.
    """

    def __init__(self, sinks: int, keep: int, block: int, most: int, books: Sequence):
        self.sinks, self.keep, self.block, self.most = sinks, keep, block, most
        self.books = books  # (book of K, book of V) of each head
        self.first: list = []
        self.coded: list = []
        self.recent: list = []

    def add(self, op: Op, k: Sequence[Words], v: Sequence[Words]) -> Status:
        """PREFILL, or APPEND, of one token."""
        tokens = len(self.first) + len(self.coded) + len(self.recent)
        if op == Op.PREFILL and self.recent:
            return Status.TOKEN_ORDER
        if tokens == self.most:
            return Status.LENGTH_LIMIT
        room = self.keep + self.block
        if op == Op.APPEND and room and len(self.recent) == room:
            for token in self.recent[: self.block]:
                self._code(token)
            self.recent = self.recent[self.block :]
        if not all(_is_finite(word) for row in (*k, *v) for word in row):
            return Status.NONFINITE
        if tokens < self.sinks:
            self.first.append((k, v))
        elif op == Op.APPEND and room:
            self.recent.append((k, v))
        else:
            self._code((k, v))
        return Status.OK

    def restore(self, codes_k: Sequence[Words], codes_v: Sequence[Words]) -> Status:
        if self.recent or len(self.first) < self.sinks:
            return Status.TOKEN_ORDER
        if len(self.first) + len(self.coded) == self.most:
            return Status.LENGTH_LIMIT
        self.coded.append((codes_k, codes_v))
        return Status.OK

    def _code(self, token) -> None:
        self.coded.append(
            tuple(
                [_nearest(row, books[side]) for row, books in zip(rows, self.books, strict=True)]
                for side, rows in enumerate(token)
            )
        )

    def attend(self, q: Sequence, slopes: Sequence) -> tuple[Status, list | None]:
        """Attends with (heads, group) queries and slopes."""
        if not (self.first or self.coded or self.recent):
            return Status.EMPTY, None
        statuses, words = [], []
        exact = [*self.first, *self.recent]
        for head, books in enumerate(self.books):
            k, v = ([each[side][head] for each in exact] for side in range(2))
            codes = [[each[side][head] for each in self.coded] for side in range(2)]
            kept = Kept(codes[0], codes[1], k, v, len(self.first))
            status, outputs = attend(q[head], slopes[head], kept, *books)
            statuses += [status] if status else []
            words.append(outputs)
        return min(statuses, default=Status.OK), words
