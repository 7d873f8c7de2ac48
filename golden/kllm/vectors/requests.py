"""Requests of a KLLM lane with what golden says comes back, corners included."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from golden.fp16.format import FP16
from golden.kllm.format import NO_OUTPUT, product_index
from golden.kllm.matmul import integer_matmul, matmul
from golden.kllm.products import codebook_words, integer_words
from golden.kllm.records import Codebooks, Packet, Tokens, Weight

Int64 = npt.NDArray[np.int64]
_ONE = 0x3C00


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneRequest:
    """One request, its codebooks and its result; FP16 values are words in int64 arrays.

    name: what the request is there for. integer: Integer x K-Means in place of K-Means x K-Means.
    values: (K,) activation indices or unsigned integers; outlier: (K,) bool; x: (K,) words, 0
    where the element is no outlier; s_a: word. idx_b: (K, N); s_b: (N,).
    codebook_a: (2**bits_a,), empty in integer mode; codebook_b: (2**bits_b,), C_V in integer mode.
    packet: the codebook packet that loads them. y: (N,) words, empty when status has a NO_OUTPUT
    bit; status: ``golden.kllm.format.Status`` bits.
    """

    name: str
    integer: bool
    values: Int64
    outlier: npt.NDArray[np.bool_]
    x: Int64
    s_a: int
    idx_b: Int64
    s_b: Int64
    codebook_a: Int64
    codebook_b: Int64
    packet: Int64
    y: Int64
    status: int


def codebook_packet(
    codebook_a: npt.ArrayLike,
    codebook_b: npt.ArrayLike,
    product: str = "rounded",
    antisymmetric: bool = False,
) -> Int64:
    """Words of the K-Means packet that loads these codebooks (order: golden.kllm.format).

    ConfigError: ``antisymmetric``, and C_B is not.
    """
    a, b = np.asarray(codebook_a, dtype=np.int64), np.asarray(codebook_b, dtype=np.int64)
    words = codebook_words(torch.from_numpy(a), torch.from_numpy(b), product, antisymmetric).numpy()
    stored = len(b) >> antisymmetric
    bits_b = (stored - 1).bit_length()
    assert len(words) == product_index(len(a) - 1, stored - 1, bits_b) + 1 + stored
    return words


def integer_packet(
    codebook_v: npt.ArrayLike, bits_a: int, product: str = "rounded", antisymmetric: bool = False
) -> Int64:
    """Words of the Integer packet that loads C_V; bits_a: of the lane's activation indices.

    ConfigError: ``antisymmetric``, and C_V is not.
    """
    v = torch.from_numpy(np.asarray(codebook_v, dtype=np.int64))
    return integer_words(v, bits_a, product, antisymmetric).numpy()


def _finite(rng: np.random.Generator, shape: int | tuple[int, ...]) -> Int64:
    """FP16 words over every exponent but that of infinity."""
    return rng.integers(0, 2, shape) << 15 | rng.integers(0, FP16.infinity, shape)


def _moderate(rng: np.random.Generator, shape: int | tuple[int, ...]) -> Int64:
    """FP16 words of magnitude 2**-6 .. 2**2: sums that neither vanish nor overflow."""
    return rng.integers(0, 2, shape) << 15 | rng.integers(0x2400, 0x4400, shape)


def _codebook(rng: np.random.Generator, bits: int) -> Int64:
    """Ascending FP16 words in -1..1."""
    values = np.sort(rng.uniform(-1, 1, 1 << bits)).astype(np.float16)
    return values.view(np.uint16).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneVectors:
    """A lane as its requests see it; int_bits 0: no integer requests."""

    bits_a: int = 4
    bits_b: int = 4
    elements: int = 16
    columns: int = 32
    k_max: int = 4096
    int_bits: int = 8
    product: str = "rounded"


_TABLE1 = LaneVectors()


@dataclasses.dataclass(kw_only=True)
class _Given:
    """The fixed properties of a request; None is drawn."""

    n: int
    integer: bool = False
    share: float = 0.02
    values: Int64 | int | None = None
    index: int | None = None
    outlier: npt.NDArray[np.bool_] | None = None
    x: Int64 | None = None
    s_a: int | None = None
    s_b: Int64 | None = None
    books: tuple[Int64, Int64] | None = None


def lane_vectors(
    shape: LaneVectors = _TABLE1, seed: int = 0, longest: int = 300, random_requests: int = 8
) -> list[LaneRequest]:
    """Requests of at most ``columns`` outputs each, golden results included.

    K-Means requests come first, then integer ones (none when int_bits is 0). ``longest`` bounds
    the reduction length of all but the "longest" request, which has min(k_max, 4 * longest).
    The names of K-Means requests are random, one_element, ragged, all_largest, all_smallest,
    all_subnormal, outliers_only, outlier_block, extreme, constant, no_outliers, few_columns,
    zero_scale, overflow, scale_nonfinite, nonfinite_scale, nonfinite_outlier and longest. Those of
    integer mode are integer, integer_largest, integer_zero, integer_one_element and
    integer_longest.
    """
    rng = np.random.default_rng(seed)
    bits_a, bits_b, elements = shape.bits_a, shape.bits_b, shape.elements
    columns, k_max, int_bits = shape.columns, shape.k_max, shape.int_bits
    requests: list[LaneRequest] = []
    top_k = min(longest, k_max)

    def length() -> int:
        return int(rng.integers(1, top_k + 1))

    def add(name: str, k: int, **fixed: Any) -> None:
        given = _Given(**{"n": columns} | fixed)
        n, integer, values, outlier = given.n, given.integer, given.values, given.outlier
        bits = int_bits if integer else bits_a
        book_a, book_b = given.books or (_codebook(rng, bits_a), _codebook(rng, bits_b))
        if values is None:
            values = rng.integers(0, 1 << bits, k)
        values = np.broadcast_to(np.asarray(values, dtype=np.int64), k).copy()
        idx_b = rng.integers(0, 1 << bits_b, (k, n))
        if given.index is not None:
            idx_b[:] = given.index
        if outlier is None:
            outlier = rng.random(k) < given.share
        outlier = np.zeros(k, dtype=bool) if integer else outlier
        x = np.where(outlier, _finite(rng, k) if given.x is None else given.x, 0)
        s_a = int(_moderate(rng, 1)[0]) & 0x7FFF if given.s_a is None else given.s_a
        s_b = _moderate(rng, n) if given.s_b is None else given.s_b
        tensor = torch.from_numpy
        token = Tokens(
            tensor(values)[None], tensor(outlier)[None], tensor(x)[None], torch.tensor([s_a])
        )
        weight = Weight(tensor(idx_b), tensor(s_b))
        packet = (
            integer_packet(book_b, bits_a, shape.product)
            if integer
            else codebook_packet(book_a, book_b, shape.product)
        )
        if integer:
            loaded = Packet(tensor(packet), bits_a, bits_b, shape.product)
            result = integer_matmul(token, weight, loaded, int_bits, k_max)
        else:
            books = Codebooks(tensor(book_a), tensor(book_b), shape.product)
            result = matmul(token, weight, books, k_max)
        status = int(result.status[0])
        y = result.y[0].numpy() if not status & NO_OUTPUT else np.zeros(0, dtype=np.int64)
        requests.append(
            LaneRequest(
                name=name,
                integer=integer,
                values=values,
                outlier=outlier,
                x=x,
                s_a=s_a,
                idx_b=idx_b,
                s_b=s_b,
                codebook_a=book_a if not integer else np.zeros(0, dtype=np.int64),
                codebook_b=book_b,
                packet=packet,
                y=y,
                status=status,
            )
        )

    def filled(word: int) -> tuple[Int64, Int64]:
        return np.full(1 << bits_a, word), np.full(1 << bits_b, word)

    last_a, last_b = (1 << bits_a) - 1, (1 << bits_b) - 1
    for _ in range(random_requests):
        add("random", length(), x=None, share=float(rng.choice((0.0, 0.01, 0.1))))
    add("one_element", 1, share=0.0)
    add("one_element", 1, share=1.0)
    for k in {min(top_k, elements + 1), min(top_k, max(1, 2 * elements - 1))}:
        add("ragged", k)
    add("all_largest", top_k, values=last_a, index=last_b, share=0.0, books=filled(_ONE))
    add("all_largest", top_k, share=0.5, x=np.full(top_k, 0x7BFF), books=filled(_ONE))
    add("all_smallest", top_k, values=0, index=0, share=0.0, books=filled(_ONE | 0x8000))
    add("all_smallest", top_k, share=0.5, x=np.full(top_k, 0xFBFF), books=filled(_ONE))
    add("all_subnormal", top_k, share=0.1, x=np.full(top_k, 0x0001), books=filled(0x03FF))
    add("all_subnormal", top_k, share=0.0, s_a=0x0001, s_b=np.full(columns, 0x7BFF),
        books=filled(0x0001))  # fmt: skip
    k = min(top_k, 5)
    add("outliers_only", k, share=1.0)
    k = min(top_k, 3 * elements)
    add("outlier_block", k, outlier=np.arange(k) // elements == 1, x=_moderate(rng, k))
    for _ in range(4):
        k, extremes = length(), np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x7BFF, 0xFBFF])
        add("extreme", k, share=0.2, x=rng.choice(extremes, k), s_a=int(rng.choice(extremes)),
            s_b=rng.choice(extremes, columns))  # fmt: skip
    add("constant", top_k, values=1, index=2, share=0.0)
    add("no_outliers", top_k, share=0.0)
    add("few_columns", length(), n=max(1, columns - 1))
    add("few_columns", length(), n=1)
    add("zero_scale", length(), s_a=0x0000)
    add("zero_scale", length(), s_a=0x8000, share=0.0, s_b=np.full(columns, 0x8000))
    add("overflow", top_k, values=0, index=0, share=0.0, s_a=0x7BFF, books=filled(_ONE))
    bad = _moderate(rng, columns)
    bad[columns // 2], bad[-1] = 0x7C00, 0x7E01
    add("scale_nonfinite", length(), s_b=bad)
    add("nonfinite_scale", length(), s_a=0x7C00)
    add("nonfinite_scale", length(), s_a=0xFE00)
    k = length()
    add("nonfinite_outlier", k, outlier=np.arange(k) == k - 1, x=np.full(k, 0xFC00))
    add("random", length())  # whatever came before leaves no trace
    add("longest", min(k_max, 4 * longest))
    if int_bits:
        largest = (1 << int_bits) - 1
        for _ in range(max(1, random_requests // 2)):
            add("integer", length(), integer=True)
        add(
            "integer_largest", top_k, values=largest, index=last_b, integer=True, books=filled(_ONE)
        )
        add("integer_zero", top_k, values=0, integer=True)
        add("integer_one_element", 1, integer=True, n=1)
        add("integer_longest", min(k_max, 4 * longest), integer=True)
    return requests
