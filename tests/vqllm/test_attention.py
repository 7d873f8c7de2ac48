"""Attention on CQ codes against fractions, and its images against a second reading.

Shown to fail: K's exponent for V; groups of a pass that are not neighbours; the status of the last
fault that applies.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.axi.format import RESP_DECERR, RESP_SLVERR
from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import float_from_bits
from golden.million.attention import Codebook
from golden.million.config import PqShape
from golden.million.format import Status
from golden.vqllm import timing
from golden.vqllm.attention import attend, book_image, code_image
from golden.vqllm.config import ATTEND, AttendShape
from tests.exact import rounded

NAN, INFINITY, ONE = 0x7E00, 0x7C00, 0x3C00
SHAPES = {
    "small": AttendShape(
        pq=PqShape(head_dim=32, subspaces=8, bits=4), groups=4, queries=2, data_bits=64
    ),
    "all_groups": AttendShape(
        pq=PqShape(head_dim=32, subspaces=8, bits=8), groups=8, queries=1, data_bits=128
    ),
}


def head(shape, tokens, seed=3, queries=2):
    rng = np.random.default_rng(seed)
    pq = shape.pq

    def words(*size, width):
        made = np.clip(rng.normal(0, width, size), -1, 1).astype(np.float16)
        return torch.tensor(made.view(np.uint16).astype(np.int64))

    books = [
        Codebook(words(pq.subspaces, pq.entries, pq.sub, width=0.4), exponent)
        for exponent in (1, -2)
    ]
    codes = [torch.tensor(rng.integers(0, pq.entries, (tokens, pq.subspaces))) for _ in range(2)]
    return words(queries, pq.head_dim, width=1), codes, books


def fraction(word) -> Fraction:
    return Fraction(float(float_from_bits(torch.as_tensor(word), FP16)))


def vector(book, codes):
    """Elements of a token, as fractions."""
    return [fraction(word) for m, code in enumerate(codes.tolist()) for word in book.words[m, code]]


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("name", SHAPES)
def test_attend(name, tokens):
    shape = SHAPES[name]
    q, (codes_k, codes_v), (book_k, book_v) = head(shape, tokens)
    status, words = attend(q, codes_k, codes_v, book_k, book_v)
    assert status == Status.OK
    keys = [vector(book_k, codes) for codes in codes_k]
    values = [vector(book_v, codes) for codes in codes_v]
    for query, out in zip(q, words, strict=True):
        elements = [fraction(word) for word in query]
        scores = [
            rounded(2 * sum(a * b for a, b in zip(elements, key, strict=True)), FP16)
            for key in keys
        ]
        top = max(fraction(score) for score in scores)
        weights = []
        for score in scores:
            less = fraction(rounded(fraction(score) - top, FP16))
            weights.append(fraction(rounded(Fraction(math.exp(less)), FP16)))
        single = rounded(sum(weights), FP32)
        inverse = rounded(1 / _single(single), FP32)
        for i, word in enumerate(out.tolist()):
            total = sum(w * value[i] for w, value in zip(weights, values, strict=True)) / 4
            product = _single(rounded(total, FP32)) * _single(inverse)
            assert word == rounded(product, FP16)


def _single(word) -> Fraction:
    return Fraction(float(float_from_bits(torch.as_tensor(word), FP32)))


def test_statuses():
    shape = SHAPES["small"]
    q, codes, books = head(shape, 4)

    def run(q=q, codes=codes, books=books, **more):
        status, words = attend(q, *codes, *books, **more)
        return status, (words == NAN).all(1).tolist()

    assert run() == (Status.OK, [False, False])
    assert run(response=RESP_SLVERR) == (Status.SLAVE_ERROR, [True, True])
    assert run(response=RESP_DECERR) == (Status.DECODE_ERROR, [True, True])
    special = q.clone()
    special[1, 3] = INFINITY
    assert run(q=special) == (Status.NONFINITE, [False, True])
    for side in range(2):
        beyond = [each.clone() for each in codes]
        beyond[side][2, 1] = shape.pq.entries
        assert run(codes=beyond) == (Status.BAD_CODE, [True, True])
        for word, status in ((ONE + 1, Status.BAD_REQUEST), (NAN, Status.NONFINITE)):
            wrong = [Codebook(each.words.clone(), each.exponent) for each in books]
            wrong[side].words[1, 2, 0] = word
            assert run(books=wrong) == (status, [True, True])
            assert run(books=wrong, q=special, codes=beyond)[0] == status
    large = torch.full_like(q, 0x7BFF)
    ones = Codebook(torch.full_like(books[0].words, ONE), 15)
    assert run(q=large, books=[ones, books[1]]) == (Status.OVERFLOW, [True, True])
    assert run(q=large | 0x8000, books=[ones, books[1]]) == (Status.OVERFLOW, [True, True])


@pytest.mark.parametrize("name", SHAPES)
def test_images(name):
    """Bit by bit and element by element, as the pages say."""
    shape = SHAPES[name]
    pq = shape.pq
    _, (codes, _), (book, _) = head(shape, 5)
    image = code_image(codes, shape)
    assert image.shape == (shape.passes, shape.code_words(5) * shape.data_bits // 8)
    for number, row in enumerate(image.tolist()):
        bits = int.from_bytes(bytes(row), "little")
        for token in range(5):
            for group in range(shape.groups):
                at = (token * shape.groups + group) * pq.bits
                code = bits >> at & (1 << pq.bits) - 1
                assert code == codes[token, number * shape.groups + group]
        assert bits >> 5 * shape.token_bits == 0
    content = book_image(book.words, shape).numpy().view("<u2").tolist()
    at = 0
    for number in range(shape.passes):
        for entry in range(pq.entries):
            for group in range(shape.groups):
                for element in range(pq.sub):
                    m = number * shape.groups + group
                    assert content[at] == book.words[m, entry, element]
                    at += 1
    assert at == len(content)
    assert 2 * at == shape.passes * shape.book_words(pq.entries) * shape.data_bits // 8


def test_refused_shapes():
    shape, (_, codes, books) = SHAPES["small"], head(SHAPES["small"], 2)
    with pytest.raises(ConfigError, match=r"^codes must have 8 groups, not 3$"):
        code_image(codes[0][:, :3], shape)
    with pytest.raises(ConfigError, match=r"^codebooks must be 8 of 4 elements, not 7 of 4$"):
        book_image(books[0].words[:7], shape)
    with pytest.raises(ConfigError, match=r"^codes must be of K and V of 1 token or more, not "):
        attend(torch.zeros(1, 32), codes[0][:0], codes[1][:0], *books)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"groups": 24}, "AttendShape.groups must be a divisor of pq.subspaces = 64, not 24"),
        (
            {"data_bits": 512},
            "AttendShape.data_bits must be a divisor of 256, of whole entries, not 512",
        ),
    ],
)  # fmt: skip
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        AttendShape(**wrong)
    assert str(error.value) == message


def test_bound():
    """SmolLM2: 256 words of codebooks and 32 of codes in each of 8 passes; then a token a cycle."""
    assert timing.attend_bound(ATTEND["cq4_64"], 128, 256) == 8 * 288
    assert timing.attend_bound(ATTEND["cq4_64"], 1024, 256) == 8 * 1024
    assert timing.attend_pass(ATTEND["cq2"], 100, 16) == {"memory": 16 + 13, "tokens": 100}
