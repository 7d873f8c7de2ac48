"""Index-based matrix products of K-Means-quantized operands, bit-true (docs/kllm.md).

K-Means x K-Means, per token and output n:
    D = sum over inliers k of P[ia_k * 2**nB + ib_kn],  S = sum over outliers k of x_k * C_B[ib_kn],
    t = fma32(s_A, rne32(D), rne32(S)),                 Y = rne16(t * s_B[n]).
Integer x K-Means:
    D = sum over j of C_V[j] * N_j,  N_j = sum over k of a_k [ib_kn = j],  S = 0.

D and S are exact integers on a grid, so the order of summation does not matter. The only roundings
are that of P (``product`` of Codebooks), rne32 (D), rne32 (S), fma32 and rne16 (Y). Signs of zero
follow IEEE 754-2019: an exact D or S of 0 is +0. FP16 and FP32 values are integer bit patterns.

The golden groups the elements by weight index j: 2**nB products of a matrix of integers with a
0/1 matrix. They are in float64 but exact, because every sum stays below 2**53. The counter block
holds the histogram ``golden.index.histogram.counts``. Source: KLLM, section III-B and III-D.
"""

import dataclasses

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import LIMB_BITS, fixed_point, float_from_bits, fma, from_fixed, mul
from golden.index.codebook import check_codebook
from golden.index.format import (
    GRID_PRODUCT_EXACT,
    GRID_PRODUCT_ROUNDED,
    INT_BITS,
    K_MAX,
)
from golden.index.histogram import check_indices, grouped_sums, integer_counts
from golden.kllm.format import (
    GRID_SPARSE,
    NO_OUTPUT,
    Status,
    integer_grid,
    integer_packet_length,
    kmeans_packet_length,
    packet_fits,
    product_grid,
)
from golden.kllm.products import check_product, exact_products, mirrored, product_words, word_values
from golden.kllm.records import Codebooks, Packet, Tokens, Weight

_FLOAT32_EXACT = 1 << 24  # integers up to here are float32 values
_OUTER_MAX = 1 << 13
_FEW = 32  # outliers of a token that are summed one by one
_HALF = 20  # bits of the low part of an FP16 value on grid 2**-24, which has 40


@dataclasses.dataclass(frozen=True)
class MatmulResult:
    """The results that a lane produces, and the exact values from which they come.

    y: (T, N) int64 FP16 words; canonical NaN in the rows whose status has a NO_OUTPUT bit.
    status: (T,) int64 ``Status`` bits.
    d: (T, N) int64, the dense sum on grid 2**d_grid.
    s_hi, s_lo: (T, N) int64, the sparse sum (s_hi * 2**62 + s_lo) * 2**-48, 0 <= s_lo < 2**62.
    t: (T, N) int64 FP32 words, before the output scale.
    """

    y: Tensor
    status: Tensor
    d: Tensor
    d_grid: int
    s_hi: Tensor
    s_lo: Tensor
    t: Tensor

    @property
    def has_output(self) -> Tensor:
        """(T,) bool: rows that leave the lane."""
        return self.status & int(NO_OUTPUT) == 0


def _nonfinite(word: Tensor) -> Tensor:
    return word & FP16.infinity == FP16.infinity


def _products(codebook_a: Tensor, codebook_b: Tensor, product: str) -> tuple[Tensor, int]:
    """Product codebook as int64 on its grid, shape (2**nA, 2**nB), and that grid."""
    check_product(product, in_packet=False)
    if product == "exact":
        return exact_products(codebook_a, codebook_b), GRID_PRODUCT_EXACT
    words = product_words(codebook_a, codebook_b, product)
    table = word_values(words, product).reshape(codebook_a.numel(), codebook_b.numel())
    return table, product_grid(product)


def _dense(idx_a: Tensor, inlier: Tensor, idx_b: Tensor, table: Tensor) -> Tensor:
    """(T, N) sum of table[ia, ib] over inliers."""
    a, b = _outer(table)
    rest = table - a[:, None] * b[None, :]
    if len(idx_b) * int(rest.abs().max()) < _FLOAT32_EXACT:
        return _narrow_dense(idx_a, inlier, idx_b, a, b, rest)
    tokens, outputs = idx_a.shape[0], idx_b.shape[1]
    # Two limbs of 24 bits: an exact product has up to 48, and 2**24 * K_MAX < 2**38 is exact.
    value = table[idx_a].permute(2, 0, 1) * inlier  # (2**nB, T, K)
    wide = int(table.abs().max()) > 1 << 24
    rows = torch.cat((value >> 24, value & 0xFFFFFF), dim=1) if wide else value
    d = torch.zeros(tokens, outputs, dtype=torch.int64, device=idx_a.device)
    for columns, part in grouped_sums(rows, idx_b):
        total = part.sum(0)
        d[:, columns] = (total[:tokens] << 24) + total[tokens:] if wide else total
    return d


def _outer(table: Tensor) -> tuple[Tensor, Tensor]:
    """Integers a, b of at most 14 bits: products of centroids are near ``a[:, None] * b``."""
    u, s, v = torch.linalg.svd(table.double())

    def integers(x: Tensor) -> Tensor:
        return (x * s[0].sqrt()).clamp(-_OUTER_MAX, _OUTER_MAX).round().long()

    return integers(u[:, 0]), integers(v[0])


def _narrow_dense(
    idx_a: Tensor, inlier: Tensor, idx_b: Tensor, a: Tensor, b: Tensor, rest: Tensor
) -> Tensor:
    """``_dense`` of the table ``a[:, None] * b + rest``: one product in float64, 2**nB in float32.

    Exact in any order: |a * b| * K_MAX is at most 2**40, every sum of ``rest`` below 2**24.
    """
    d = (a[idx_a] * inlier).double() @ b[idx_b.long()].double()
    rows = (rest[idx_a].permute(2, 0, 1) * inlier).float()  # (2**nB, T, K)
    found = torch.zeros(d.shape, device=d.device)
    code = idx_b.to(torch.uint8)
    for j in rest.any(0).nonzero().flatten().tolist():
        found.addmm_(rows[j], (code == j).float())
    return d.long() + found.long()


def sparse_sums(
    x: Tensor, outlier: Tensor, idx_b: Tensor, codebook_b: Tensor
) -> tuple[Tensor, Tensor]:
    """``S[n] = sum over outliers k of x_k * C_B[ib_kn]``, exact: (T, N) int64 limbs (hi, lo).

    The sum is (hi * 2**62 + lo) * 2**-48, 0 <= lo < 2**62.

    x: (T, K) FP16 words, finite at outliers
    outlier: (T, K) bool
    idx_b: (K, N)
    codebook_b: FP16 words, magnitude <= 1
    """
    tokens, outputs = x.shape[0], idx_b.shape[1]
    hi = torch.zeros(tokens, outputs, dtype=torch.int64, device=x.device)
    lo = torch.zeros_like(hi)
    taken = outlier.any(dim=0).nonzero().flatten()
    if taken.numel() == 0:
        return hi, lo
    most = int(outlier.sum(1).max())
    if most <= _FEW:
        _few_outliers(x, outlier, idx_b, codebook_b, most, hi, lo)
    else:
        _many_outliers(x, outlier, idx_b, codebook_b, taken, hi, lo)
    # (hi, lo) are 2**20 apart: carry, then cut at 2**62.
    hi += lo >> _HALF
    lo = (hi & ((1 << LIMB_BITS - _HALF) - 1)) << _HALF | lo & ((1 << _HALF) - 1)
    return hi >> LIMB_BITS - _HALF, lo


def _few_outliers(
    x: Tensor, outlier: Tensor, idx_b: Tensor, codebook_b: Tensor, most: int, hi: Tensor, lo: Tensor
) -> None:
    """Adds the sums, 2**20 apart, to hi and lo: the n-th outlier of every token at a time."""
    # A token with fewer takes inliers, whose value is 0.
    place = outlier.to(torch.uint8).topk(most, 1).indices
    value = torch.where(outlier, fixed_point(x), 0).gather(1, place)
    centroid = fixed_point(codebook_b)
    for k, each in zip(place.t(), value.t(), strict=True):
        c = centroid[idx_b[k].long()]
        hi += (each >> _HALF)[:, None] * c
        lo += (each & ((1 << _HALF) - 1))[:, None] * c


def _many_outliers(
    x: Tensor, outlier: Tensor, idx_b: Tensor, codebook_b: Tensor, taken: Tensor, hi: Tensor,
    lo: Tensor,
) -> None:  # fmt: skip
    """Does what ``_few_outliers`` does; taken: elements that are an outlier of any token."""
    tokens = len(x)
    value = torch.where(outlier, fixed_point(x), 0)[:, taken]
    rows = torch.cat((value >> _HALF, value & ((1 << _HALF) - 1)))  # each below 2**20
    centroid = fixed_point(codebook_b)[:, None, None]
    # |part| <= 2**20 * K_MAX < 2**34, times a centroid of at most 2**24: below 2**58.
    for columns, part in grouped_sums(rows.expand(len(centroid), -1, -1), idx_b[taken]):
        total = (part * centroid).sum(0)
        hi[:, columns], lo[:, columns] = total[:tokens], total[tokens:]


def finish(
    d: Tensor, d_grid: int, s_hi: Tensor, s_lo: Tensor, s_a: Tensor, s_b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``t = fma32(s_A, rne32(D), rne32(S)); Y = rne16(t * s_B)``: (y words, t words, status (T,)).

    d, s_hi, s_lo: (T, N) as in MatmulResult; s_a: (T,), s_b: (N,) or (T, N) FP16 words.
    Rows with a NaN or infinite s_A get NONFINITE and canonical NaN.
    """
    s_a, s_b = s_a.long(), s_b.long()
    bad_a, bad_b = _nonfinite(s_a), _nonfinite(s_b)
    dense = from_fixed(d, d_grid, FP32)
    sparse = from_fixed(s_lo, GRID_SPARSE, FP32, high=s_hi)
    t = fma(s_a[:, None], dense, sparse, FP16, FP32, FP32, FP32)
    t = torch.where(bad_a[:, None], FP32.canonical_nan, t)
    y = mul(t, s_b, FP32, FP16, FP16)
    overflow = (y & 0x7FFF == FP16.infinity) & ~bad_b
    status = bad_a.long() * int(Status.NONFINITE)
    status |= bad_b.any(dim=-1).long() * int(Status.SCALE_NONFINITE)
    status |= overflow.any(dim=1).long() * int(Status.OVERFLOW)
    return y, t, status


def _result(
    d: Tensor, d_grid: int, s: tuple[Tensor, Tensor], s_a: Tensor, s_b: Tensor, faults: Tensor
) -> MatmulResult:
    y, t, status = finish(d, d_grid, *s, s_a, s_b)
    status |= faults
    silent = status & int(NO_OUTPUT) != 0
    # A request without outputs reports no fault that only an output could show.
    status = torch.where(silent, status & int(NO_OUTPUT), status)
    y = torch.where(silent[:, None], FP16.canonical_nan, y)
    return MatmulResult(y=y, status=status, d=d, d_grid=d_grid, s_hi=s[0], s_lo=s[1], t=t)


def _length_fault(length: int, k_max: int) -> int:
    if length == 0:
        return int(Status.LENGTH_ZERO)
    return int(Status.LENGTH_TOO_LONG) if length > k_max else 0


def _refused(
    fault: int, s_a: Tensor, s_b: Tensor, d_grid: int, device: torch.device
) -> MatmulResult:
    """A request of impossible length: the faults of its length and of s_a, and no outputs."""
    zeros = torch.zeros(s_a.numel(), s_b.shape[-1], dtype=torch.int64, device=device)
    nan = torch.full_like(zeros, FP16.canonical_nan)
    # Both are faults of a job's header, and a lane reports them together.
    status = fault | _nonfinite(s_a.long()).long() * int(Status.NONFINITE)
    t = torch.full_like(zeros, FP32.canonical_nan)
    return MatmulResult(
        y=nan, status=status, d=zeros, d_grid=d_grid, s_hi=zeros, s_lo=zeros.clone(), t=t
    )


@dataclasses.dataclass(frozen=True)
class _Loaded:
    """The tables of the lanes: products (2**nA, 2**nB) as integers on grid 2**grid, and C_B."""

    table: Tensor
    grid: int
    b: Tensor
    bits_a: int
    bits_b: int


def _loaded(books: Codebooks | Packet) -> _Loaded:
    if isinstance(books, Codebooks):
        bits_a, bits_b = (
            check_codebook(books.a, "codebook_a"),
            check_codebook(books.b, "codebook_b"),
        )
        table, grid = _products(books.a, books.b, books.product)
        return _Loaded(table, grid, books.b, bits_a, bits_b)
    bits_a, stored, product = books.bits_a, books.stored_bits_b, books.product
    packet = _packet_words(books, kmeans_packet_length(bits_a, stored))
    b = packet[-(1 << stored) :]
    table = word_values(packet[: 1 << bits_a + stored], product).reshape(1 << bits_a, 1 << stored)
    if books.antisymmetric:
        table, b = mirrored(table), torch.cat([b, b.flip(0) ^ FP16.sign_bit])
    check_codebook(b, "codebook_b")
    return _Loaded(table, product_grid(product), b, bits_a, books.bits_b)


def _packet_words(packet: Packet, count: int) -> Tensor:
    check_product(packet.product)
    if packet.words.shape != (count,):
        raise ValueError(f"a packet of {count} words needed, not {tuple(packet.words.shape)}")
    if not packet_fits(
        packet.words.tolist(), packet.bits_a, packet.stored_bits_b, packet.product
    ):
        raise ConfigError("packet must have words in -1..1")
    return packet.words


def _check_k_max(k_max: int) -> None:
    if not 1 <= k_max <= K_MAX:
        raise ConfigError(f"k_max must be 1..{K_MAX}, not {k_max}")


def matmul(
    tokens: Tokens, weight: Weight, books: Codebooks | Packet, k_max: int = K_MAX
) -> MatmulResult:
    """K-Means x K-Means with outliers; the equation and its roundings are the module's.

    tokens.index below 2**nA, weight.index below 2**nB. k_max: longest request accepted, at most
    16383. ConfigError: a codebook entry, product or k_max out of range; ValueError: an index out
    of range, a packet of another length.
    """
    loaded = _loaded(books)
    _check_k_max(k_max)
    s_a, s_b, idx_b = tokens.scale, weight.scale, weight.index
    fault = _length_fault(idx_b.shape[0], k_max)
    if fault:
        return _refused(fault, s_a, s_b, loaded.grid, idx_b.device)
    outlier, x = tokens.outlier.bool(), tokens.words.long()
    idx_a = torch.where(outlier, 0, tokens.index.long())
    check_indices(idx_a, loaded.bits_a, "tokens.index")
    check_indices(idx_b, loaded.bits_b, "weight.index")
    bad = outlier & _nonfinite(x)
    faults = bad.any(dim=1).long() * int(Status.NONFINITE)
    d = _dense(idx_a, ~outlier, idx_b, loaded.table)
    s = sparse_sums(torch.where(bad, 0, x), outlier, idx_b, loaded.b)
    return _result(d, loaded.grid, s, s_a, s_b, faults)


def integer_matmul(
    tokens: Tokens,
    weight: Weight,
    codebook_v: Tensor | Packet,
    int_bits: int = 8,
    k_max: int = K_MAX,
) -> MatmulResult:
    """Integer x K-Means (score x V): ``D = sum_j C_V[j] * N_j``, no outliers.

    tokens.index: (T, K) integers 0 .. 2**int_bits - 1, one row per query and head; outlier and
    words are not read. weight: of V. codebook_v: FP16 words, magnitude <= 1, or an Integer packet.
    Errors as ``matmul``.
    """
    if isinstance(codebook_v, Packet):
        bits_b, product = codebook_v.bits_b, codebook_v.product
        words = _packet_words(codebook_v, integer_packet_length(codebook_v.stored_bits_b))
        centroid, grid = word_values(words, product), integer_grid(product, codebook_v.bits_a)
        centroid = mirrored(centroid) if codebook_v.antisymmetric else centroid
    else:
        bits_b = check_codebook(codebook_v, "codebook_v")
        centroid, grid = fixed_point(codebook_v), GRID_PRODUCT_ROUNDED
    if int_bits not in INT_BITS:
        raise ConfigError(f"int_bits must be 4 or 8, not {int_bits}")
    _check_k_max(k_max)
    a, s_a, s_b = tokens.index, tokens.scale, weight.scale
    fault = _length_fault(weight.index.shape[0], k_max)
    if fault:
        return _refused(fault, s_a, s_b, grid, weight.index.device)
    check_indices(a, int_bits, "tokens.index")
    check_indices(weight.index, bits_b, "weight.index")
    d = (integer_counts(a, weight.index, bits_b) * centroid).sum(-1)
    s = torch.zeros_like(d)
    faults = torch.zeros(a.shape[0], dtype=torch.int64, device=d.device)
    return _result(d, grid, (s, s.clone()), s_a, s_b, faults)


def concatenate(idx_a: Tensor, idx_b: Tensor, bits_b: int) -> Tensor:
    """``pair = idx_a * 2**bits_b + idx_b``, element by element: int64 of the broadcast shape."""
    return idx_a.long() << bits_b | idx_b.long()


def dequantized_matmul(
    tokens: Tokens, weight: Weight, books: Codebooks, dtype: torch.dtype = torch.float64
) -> Tensor:
    """``(s_A * C_A[ia] or x) @ C_B[ib] * s_B`` in ``dtype``: (T, N), the plain reference.

    Roundings are those of ``dtype`` and of the library's matmul.
    """
    a = tokens.value(books.a).to(dtype)
    b = float_from_bits(books.b)[weight.index.long()].to(dtype)
    return (a @ b) * float_from_bits(weight.scale).to(dtype)
