"""One image of a KV head for two engines of attention: its bytes, and how far results may differ.

The image has MILLION's layout: token after token, a record of the codes of all groups. A codebook
is entry 0 of all groups, then entry 1. vq_attention reads the same bytes where a pass has all
groups. With fewer groups in a pass it reads them pass by pass.
"""

import dataclasses
import math

import torch
from torch import Tensor

from golden.attention.softmax import partial
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index.codes import pack
from golden.index.packet import packet
from golden.index.tables import tables
from golden.million.attention import Codebook
from golden.million.config import PqShape
from golden.million.decode import decode_scores, decode_sums
from golden.million.output import outputs
from golden.million.scores import past_scores
from golden.vqllm.attention import book_image, code_image
from golden.vqllm.config import AttendShape

_SPREAD = 2.4  # standard deviation of the scores
_EPSILON = 2.0**-11  # of a rounding to FP16, relative
_LEAST = 2.0**-25  # of one below the normal numbers


@dataclasses.dataclass(frozen=True)
class OneImage:
    """Codebooks of K and V, (n, M) codes of K and V, and (L, d) queries times 1/sqrt(d)."""

    pq: PqShape
    books: tuple[Codebook, Codebook]
    codes: tuple[Tensor, Tensor]
    q: Tensor

    @classmethod
    def random(cls, pq: PqShape, queries: int, tokens: int, seed: int = 1) -> "OneImage":
        """Normal entries and queries, and equally likely codes."""
        generator = torch.Generator().manual_seed(seed)

        def words(width: float, *shape: int) -> Tensor:
            real = (width * torch.randn(*shape, generator=generator)).clamp(-1, 1)
            return real.half().view(torch.int16).long() & 0xFFFF

        size = (pq.subspaces, pq.entries, pq.sub)
        books = Codebook(words(0.3, *size), 0), Codebook(words(0.3, *size), 0)
        shape = (2, tokens, pq.subspaces)
        k, v = torch.randint(pq.entries, shape, generator=generator)
        q = words(_SPREAD / 0.3 / math.sqrt(pq.head_dim), queries, pq.head_dim)
        return cls(pq, books, (k, v), q)

    def first(self, tokens: int) -> "OneImage":
        """The image of the first ``tokens`` tokens."""
        k, v = self.codes
        return dataclasses.replace(self, codes=(k[:tokens], v[:tokens]))

    @property
    def tokens(self) -> int:
        return len(self.codes[0])

    def image(self) -> dict[str, bytes]:
        """Bytes of the codes, and of the codebooks."""
        found = {}
        for side, book, codes in zip("kv", self.books, self.codes, strict=True):
            found[f"codes_{side}"] = bytes(pack(codes, self.pq.bits).flatten().tolist())
            found[f"books_{side}"] = bytes(packet(book.words).tolist())
        return found

    def in_passes(self, shape: AttendShape) -> dict[str, bytes]:
        """The bytes as vq_attention reads them, pass after pass.

        AssertionError unless they are those of ``image``: in its order with all groups in a pass,
        else with the pass as the first axis. A pass must end with a memory word.
        """
        found = {}
        for side, book, codes in zip("kv", self.books, self.codes, strict=True):
            found[f"codes_{side}"] = bytes(code_image(codes, shape).flatten().tolist())
            found[f"books_{side}"] = bytes(book_image(book.words, shape).tolist())
        for name, content in self.image().items():
            rows = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            size = shape.groups * (shape.pq.bits if "codes" in name else 16 * shape.pq.sub) // 8
            moved = rows.reshape(-1, shape.passes, size).transpose(0, 1).flatten()
            assert bytes(moved.tolist()) == found[name], f"{name}: not the bytes of the image"
            assert shape.passes > 1 or found[name] == content
        return found


@dataclasses.dataclass(frozen=True)
class Softmax:
    """Scores of an engine, (n, L) words, and what the softmax makes of them."""

    scores: Tensor
    weights: Tensor  # (L, n) words
    total: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> "Softmax":
        part = partial(scores.T)
        assert not part.bad.any()
        return cls(scores, part.weight, part.total)

    @classmethod
    def decoded(cls, image: OneImage) -> "Softmax":
        """The softmax of vq_attention and of million_decode_engine."""
        book, codes = image.books[0], image.codes[0]
        slope = torch.zeros(len(image.q), dtype=torch.int64)
        scores = decode_scores(
            image.q, book.words, book.exponent, codes, slope, distance=len(codes) - 1
        )
        return cls.of(scores)

    @classmethod
    def looked_up(cls, image: OneImage) -> tuple["Softmax", Tensor]:
        """The softmax of MILLION's tables; the (L, M, entries) words of the tables."""
        book, codes = image.books[0], image.codes[0]
        slope = torch.zeros(len(image.q), dtype=torch.int64)
        table, bad = tables(image.q, book.words, book.exponent)
        return cls.of(past_scores(table, codes, slope, len(codes) - 1, bad)), table

    def outputs(self, image: OneImage) -> Tensor:
        """(L, d) words of decoded values; MILLION's bins have the same sums."""
        book = image.books[1]
        sums = decode_sums(self.weights.T, book.words, image.codes[1])
        none = torch.zeros(len(image.q), dtype=torch.bool)
        return outputs(sums, book.exponent, torch.zeros_like(sums.low), self.total, none)


@dataclasses.dataclass(frozen=True)
class Differences:
    """The differences of the outputs of two engines.

    equal : share of equal words; most : the largest difference; bound : the largest that roundings
    explain; apart : norm of the difference over that of the exact outputs; errors : of both engines
    to the exact outputs, likewise
    """

    equal: float
    most: float
    bound: float
    apart: float
    errors: tuple[float, float]


def _real(words: Tensor) -> Tensor:
    return float_from_bits(words, FP16)


def _half_ulp(real: Tensor) -> Tensor:
    """No rounding to ``real`` moved it further."""
    return (real.abs() * _EPSILON).clamp(min=_LEAST)


def _decoded(book: Codebook, codes: Tensor) -> Tensor:
    groups = torch.arange(codes.shape[1])
    return 2.0**book.exponent * _real(book.words)[groups, codes].flatten(1)


def differences(image: OneImage, first: Tensor, second: Tensor) -> Differences:
    """Compares the outputs of vq_attention and of MILLION, each (L, d) words.

    AssertionError where a score or an output differs by more than its roundings explain. These are
    of table entries, scores, differences to the maximum, weights and outputs.
    """
    one = Softmax.decoded(image)
    other, table = Softmax.looked_up(image)
    groups = torch.arange(image.pq.subspaces)
    entries = _half_ulp(_real(table))[:, groups, image.codes[0]].sum(-1)  # (L, n)
    s, t = _real(one.scores).T, _real(other.scores).T
    apart = entries + _half_ulp(s) + _half_ulp(t)
    assert bool(((s - t).abs() <= apart).all()), "a score differs by more than its roundings"

    # The logarithms of a key's weights differ by no more than ``off``, but for a constant of the
    # query. A weight below the normal numbers is off by ``_LEAST``.
    shifts = [_half_ulp(x - x.amax(-1, keepdim=True)) for x in (s, t)]
    off = apart + sum(shifts) + 4 * _EPSILON
    weights = _real(one.weights)
    p = weights / weights.sum(-1, keepdim=True)
    most = off.exp() / (p * (-off).exp()).sum(-1, keepdim=True) - 1
    least = 1 - (-off).exp() / (p * off.exp()).sum(-1, keepdim=True)
    values = _decoded(image.books[1], image.codes[1])
    moved = p * torch.maximum(most, least) + 4 * _LEAST
    x, y = _real(first), _real(second)
    bound = moved @ values.abs() + 2 * (_half_ulp(x) + _half_ulp(y))
    assert bool(((x - y).abs() <= bound).all()), "an output differs by more than its roundings"

    exact_scores = _real(image.q) @ _decoded(image.books[0], image.codes[0]).T
    exact = exact_scores.softmax(-1) @ values
    norm = exact.norm()
    return Differences(
        equal=float((first == second).double().mean()),
        most=float((x - y).abs().max()),
        bound=float(bound.max()),
        apart=float((x - y).norm() / norm),
        errors=(float((x - exact).norm() / norm), float((y - exact).norm() / norm)),
    )
