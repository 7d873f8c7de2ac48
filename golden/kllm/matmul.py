"""Index-based matrix products of K-Means-quantized operands, bit-true (docs/kllm.md).

K-Means x K-Means, per token and output n:
    D = sum over inliers k of P[ia_k * 2**nB + ib_kn],  S = sum over outliers k of x_k * C_B[ib_kn],
    t = fma32(s_A, rne32(D), rne32(S)),                 Y = rne16(t * s_B[n]).
Integer x K-Means:
    D = sum over j of C_V[j] * N_j,  N_j = sum over k of a_k [ib_kn = j],  S = 0.

D and S are exact integers on a grid, so the order of summation does not matter; the roundings are
rne16 (P, rounded mode), rne32 (D), rne32 (S), fma32 and rne16 (Y), nothing else. Signs of zero
follow IEEE 754-2019: an exact D or S of 0 is +0. FP16 and FP32 values are integer bit patterns.

The golden groups the elements by weight index j: 2**nB products of a matrix of integers with a
0/1 matrix, in float64 but exact because every sum stays below 2**53. ``counts`` gives the histogram
that the counter block holds. Source: KLLM, section III-B and III-D.
"""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import LIMB_BITS, float_from_bits, fma, from_fixed, mul
from golden.kllm.format import (
    CODEBOOK_BITS_MAX,
    CODEBOOK_BITS_MIN,
    GRID_PRODUCT_EXACT,
    GRID_PRODUCT_ROUNDED,
    GRID_SPARSE,
    INT_BITS,
    K_MAX,
    NO_OUTPUT,
    PRODUCTS,
    Status,
    kmeans_packet_length,
)

__all__ = [
    "MatmulResult",
    "check_codebook",
    "codebook_bits",
    "concatenate",
    "counts",
    "dequantized_matmul",
    "finish",
    "fixed_point",
    "index_matmul",
    "integer_counts",
    "integer_matmul",
    "packet_matmul",
    "product_codebook",
    "reduce_counts",
    "sparse_sums",
    "two_level_sums",
]

_HALF = 20  # bits of the low part of an FP16 value on grid 2**-24, which has 40
_ONE = 0x3C00


@dataclasses.dataclass(frozen=True)
class MatmulResult:
    """What a lane produces, and the exact values behind it.

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


def codebook_bits(codebook: Tensor, name: str = "codebook") -> int:
    """``log2`` of the number of entries, 2..4; ConfigError otherwise."""
    entries = codebook.numel()
    bits = entries.bit_length() - 1
    if (
        codebook.ndim != 1
        or entries != 1 << bits
        or not CODEBOOK_BITS_MIN <= bits <= CODEBOOK_BITS_MAX
    ):
        raise ConfigError(f"{name} must have 4 or 8 or 16 entries, not {entries}")
    return bits


def check_codebook(codebook: Tensor, name: str = "codebook") -> int:
    """Bits of a codebook whose entries are FP16 words of magnitude <= 1; ConfigError otherwise."""
    bits = codebook_bits(codebook, name)
    for i, word in enumerate(codebook.tolist()):
        if not 0 <= word <= 0xFFFF or word & 0x7FFF > _ONE:
            raise ConfigError(f"{name}[{i}] must be an FP16 word in -1..1, not {word:#06x}")
    return bits


def _nonfinite(word: Tensor) -> Tensor:
    return word & FP16.infinity == FP16.infinity


def fixed_point(word: Tensor) -> Tensor:
    """Finite FP16 words as int64 on grid 2**-24 (magnitude below 2**40)."""
    return (float_from_bits(word, FP16) * 2.0**-FP16.grid_exponent).long()


def product_codebook(codebook_a: Tensor, codebook_b: Tensor) -> Tensor:
    """``P[ia * 2**nB + ib] = rne16(C_A[ia] * C_B[ib])``: (2**(nA+nB),) int64 FP16 words."""
    check_codebook(codebook_a, "codebook_a")
    check_codebook(codebook_b, "codebook_b")
    a, b = codebook_a.long()[:, None], codebook_b.long()[None, :]
    return mul(a, b).reshape(-1)


def _products(codebook_a: Tensor, codebook_b: Tensor, product: str) -> tuple[Tensor, int]:
    """Product codebook as int64 on its grid, shape (2**nA, 2**nB), and that grid."""
    if product not in PRODUCTS:
        raise ConfigError(f"product must be {' or '.join(PRODUCTS)}, not {product!r}")
    rounded = product_codebook(codebook_a, codebook_b)
    if product == "rounded":
        table = fixed_point(rounded).reshape(codebook_a.numel(), codebook_b.numel())
        return table, GRID_PRODUCT_ROUNDED
    exact = fixed_point(codebook_a)[:, None] * fixed_point(codebook_b)[None, :]
    return exact, GRID_PRODUCT_EXACT


def _check_indices(index: Tensor, bits: int, name: str) -> None:
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < 1 << bits:
        raise ValueError(f"{name} must hold 0..{(1 << bits) - 1}")


def _grouped(per_code: Tensor, idx_b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """``part[j, r, n] = sum over k of per_code[j, r, k] [ib_kn = j]``, some columns at a time.

    per_code: (2**nB, R, K) int64; part: (2**nB, R, columns) int64, exact as every |sum| < 2**53 by
    the callers' bounds.
    """
    codes, _, length = per_code.shape
    outputs = idx_b.shape[1]
    rows = per_code.double()
    idx_b = idx_b.to(torch.uint8)  # comparing int64 takes twice as long
    code = torch.arange(codes, device=idx_b.device, dtype=torch.uint8)[:, None, None]
    step = max(1, (1 << 23) // max(length * codes, 1))  # 0/1 matrices of about 64 MiB
    for start in range(0, outputs, step):
        columns = slice(start, min(start + step, outputs))
        yield columns, (rows @ (idx_b[:, columns] == code).double()).long()


def _dense(idx_a: Tensor, inlier: Tensor, idx_b: Tensor, table: Tensor) -> Tensor:
    """(T, N) sum of table[ia, ib] over inliers."""
    tokens, outputs = idx_a.shape[0], idx_b.shape[1]
    # Two limbs of 24 bits: an exact product has up to 48, and 2**24 * K_MAX < 2**38 is exact.
    value = table[idx_a].permute(2, 0, 1) * inlier  # (2**nB, T, K)
    wide = int(table.abs().max()) > 1 << 24
    rows = torch.cat((value >> 24, value & 0xFFFFFF), dim=1) if wide else value
    d = torch.zeros(tokens, outputs, dtype=torch.int64, device=idx_a.device)
    for columns, part in _grouped(rows, idx_b):
        total = part.sum(0)
        d[:, columns] = (total[:tokens] << 24) + total[tokens:] if wide else total
    return d


def sparse_sums(
    x: Tensor, outlier: Tensor, idx_b: Tensor, codebook_b: Tensor
) -> tuple[Tensor, Tensor]:
    """``S[n] = sum over outliers k of x_k * C_B[ib_kn]``, exact: (T, N) int64 limbs (hi, lo).

    The sum is (hi * 2**62 + lo) * 2**-48, 0 <= lo < 2**62. x: (T, K) FP16 words, finite at
    outliers; outlier: (T, K) bool; idx_b: (K, N); codebook_b: FP16 words, magnitude <= 1.
    """
    tokens, outputs = x.shape[0], idx_b.shape[1]
    hi = torch.zeros(tokens, outputs, dtype=torch.int64, device=x.device)
    lo = torch.zeros_like(hi)
    taken = outlier.any(dim=0).nonzero().flatten()
    if taken.numel() == 0:
        return hi, lo
    value = torch.where(outlier, fixed_point(x), 0)[:, taken]
    rows = torch.cat((value >> _HALF, value & ((1 << _HALF) - 1)))  # each below 2**20
    centroid = fixed_point(codebook_b)[:, None, None]
    # |part| <= 2**20 * K_MAX < 2**34, times a centroid of at most 2**24: below 2**58.
    for columns, part in _grouped(rows.expand(len(centroid), -1, -1), idx_b[taken]):
        total = (part * centroid).sum(0)
        hi[:, columns], lo[:, columns] = total[:tokens], total[tokens:]
    # (hi, lo) are 2**20 apart: carry, then cut at 2**62.
    hi += lo >> _HALF
    lo = (hi & ((1 << LIMB_BITS - _HALF) - 1)) << _HALF | lo & ((1 << _HALF) - 1)
    return hi >> LIMB_BITS - _HALF, lo


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


def index_matmul(
    idx_a: Tensor,
    outlier_mask: Tensor,
    x: Tensor,
    s_a: Tensor,
    idx_b: Tensor,
    s_b: Tensor,
    codebook_a: Tensor,
    codebook_b: Tensor,
    product: str = "rounded",
    k_max: int = K_MAX,
) -> MatmulResult:
    """K-Means x K-Means with outliers; the equation and its roundings are the module's.

    idx_a: (T, K) integers below 2**nA, ignored at outliers. outlier_mask: (T, K) bool.
    x: (T, K) FP16 words, read at outliers only. s_a: (T,) and s_b: (N,) FP16 words.
    idx_b: (K, N) integers below 2**nB. codebook_a, codebook_b: FP16 words, magnitude <= 1.
    product: "rounded" or "exact". k_max: longest request accepted, at most 16383.
    ConfigError: a codebook entry, product or k_max out of range; ValueError: an index out of range.
    """
    bits_a = check_codebook(codebook_a, "codebook_a")
    bits_b = check_codebook(codebook_b, "codebook_b")
    if not 1 <= k_max <= K_MAX:
        raise ConfigError(f"k_max must be 1..{K_MAX}, not {k_max}")
    table, d_grid = _products(codebook_a, codebook_b, product)
    return _kmeans(
        idx_a, outlier_mask, x, s_a, idx_b, s_b, table, d_grid, codebook_b, bits_a, bits_b, k_max
    )


def packet_matmul(
    idx_a: Tensor,
    outlier_mask: Tensor,
    x: Tensor,
    s_a: Tensor,
    idx_b: Tensor,
    s_b: Tensor,
    packet: Tensor,
    bits_a: int,
    bits_b: int,
    product: str = "rounded",
    k_max: int = K_MAX,
) -> MatmulResult:
    """``index_matmul`` with the words of a K-Means codebook packet, whatever made them.

    packet: golden.kllm.format.kmeans_packet_length FP16 words of magnitude <= 1; s_b: (N,), or
    (T, N) where each token has scales of its own. Errors as index_matmul; ValueError: another
    number of words.
    """
    words = kmeans_packet_length(bits_a, bits_b, product)
    if packet.shape != (words,):
        raise ValueError(f"a packet of {words} words needed, not {tuple(packet.shape)}")
    codebook_b = packet[-(1 << bits_b) :]
    check_codebook(codebook_b, "codebook_b")
    if product == "exact":
        table, d_grid = _products(packet[: 1 << bits_a], codebook_b, product)
    else:
        table, d_grid = fixed_point(packet[: 1 << bits_a + bits_b]), GRID_PRODUCT_ROUNDED
        table = table.reshape(1 << bits_a, 1 << bits_b)
    return _kmeans(
        idx_a, outlier_mask, x, s_a, idx_b, s_b, table, d_grid, codebook_b, bits_a, bits_b, k_max
    )


def _kmeans(
    idx_a: Tensor,
    outlier_mask: Tensor,
    x: Tensor,
    s_a: Tensor,
    idx_b: Tensor,
    s_b: Tensor,
    table: Tensor,
    d_grid: int,
    codebook_b: Tensor,
    bits_a: int,
    bits_b: int,
    k_max: int,
) -> MatmulResult:
    """index_matmul with products (2**nA, 2**nB) as integers on grid 2**d_grid."""
    fault = _length_fault(idx_b.shape[0], k_max)
    if fault:
        return _refused(fault, s_a, s_b, d_grid, idx_b.device)
    outlier = outlier_mask.bool()
    idx_a = torch.where(outlier, 0, idx_a.long())
    _check_indices(idx_a, bits_a, "idx_a")
    _check_indices(idx_b, bits_b, "idx_b")
    bad = outlier & _nonfinite(x.long())
    faults = bad.any(dim=1).long() * int(Status.NONFINITE)
    d = _dense(idx_a, ~outlier, idx_b, table)
    s = sparse_sums(torch.where(bad, 0, x.long()), outlier, idx_b, codebook_b)
    return _result(d, d_grid, s, s_a, s_b, faults)


def integer_matmul(
    a: Tensor,
    s_a: Tensor,
    idx_b: Tensor,
    s_b: Tensor,
    codebook_v: Tensor,
    int_bits: int = 8,
    k_max: int = K_MAX,
) -> MatmulResult:
    """Integer x K-Means (score x V): ``D = sum_j C_V[j] * N_j``, no outliers.

    a: (T, K) integers 0 .. 2**int_bits - 1, one row per query and head, s_a: (T,) its FP16 scale.
    idx_b: (K, N) indices of V; s_b: (N,) FP16 words; codebook_v: FP16 words, magnitude <= 1.
    Errors as index_matmul.
    """
    bits_b = check_codebook(codebook_v, "codebook_v")
    if int_bits not in INT_BITS:
        raise ConfigError(f"int_bits must be 4 or 8, not {int_bits}")
    if not 1 <= k_max <= K_MAX:
        raise ConfigError(f"k_max must be 1..{K_MAX}, not {k_max}")
    fault = _length_fault(idx_b.shape[0], k_max)
    if fault:
        return _refused(fault, s_a, s_b, GRID_PRODUCT_ROUNDED, idx_b.device)
    _check_indices(a, int_bits, "a")
    _check_indices(idx_b, bits_b, "idx_b")
    d = (integer_counts(a, idx_b, bits_b) * fixed_point(codebook_v)).sum(-1)
    s = torch.zeros_like(d)
    faults = torch.zeros(a.shape[0], dtype=torch.int64, device=d.device)
    return _result(d, GRID_PRODUCT_ROUNDED, (s, s.clone()), s_a, s_b, faults)


def concatenate(idx_a: Tensor, idx_b: Tensor, bits_b: int) -> Tensor:
    """``pair = idx_a * 2**bits_b + idx_b``, element by element: int64 of the broadcast shape."""
    return idx_a.long() << bits_b | idx_b.long()


def counts(idx_a: Tensor, outlier_mask: Tensor, idx_b: Tensor, bits_a: int, bits_b: int) -> Tensor:
    """``counts[t, n, bin] = #{inlier k : ia_tk * 2**nB + ib_kn = bin}``: (T, N, 2**(nA+nB)) int64.

    What the index distribution counters of a K-Means request hold when its last beat is in.
    """
    _check_indices(idx_b, bits_b, "idx_b")
    tokens, outputs = idx_a.shape[0], idx_b.shape[1]
    bins_a, bins_b = 1 << bits_a, 1 << bits_b
    inlier = ~outlier_mask.bool()
    codes = torch.arange(bins_a, device=idx_a.device)
    chosen = (idx_a[:, None, :] == codes[:, None]) & inlier[:, None, :]  # (T, 2**nA, K)
    rows = chosen.reshape(tokens * bins_a, -1).long()
    out = torch.zeros(tokens, outputs, bins_a, bins_b, dtype=torch.int64, device=idx_a.device)
    for columns, part in _grouped(rows.expand(bins_b, -1, -1), idx_b):
        by_token = part.reshape(bins_b, tokens, bins_a, -1)
        out[:, columns] = by_token.permute(1, 3, 2, 0)
    return out.reshape(tokens, outputs, bins_a * bins_b)


def integer_counts(a: Tensor, idx_b: Tensor, bits_b: int) -> Tensor:
    """``counts[t, n, j] = sum over k of a_tk [ib_kn = j]``: (T, N, 2**nB) int64."""
    _check_indices(idx_b, bits_b, "idx_b")
    bins = 1 << bits_b
    out = torch.zeros(a.shape[0], idx_b.shape[1], bins, dtype=torch.int64, device=idx_b.device)
    for columns, part in _grouped(a.long().expand(bins, -1, -1), idx_b):
        out[:, columns] = part.permute(1, 2, 0)
    return out


def reduce_counts(count: Tensor, weight: Tensor, grid: int = GRID_PRODUCT_ROUNDED) -> Tensor:
    """``rne32(sum over the last axis of count * weight)``: int64 FP32 words.

    count: integers in units of 2**(grid + 24), so plain counts with the default grid and sums of
    centroids (2**-24) with GRID_PRODUCT_EXACT; weight: finite FP16 words. The sum is exact and
    must lie within int64; it is rounded once, a sum of 0 gives +0.
    """
    return from_fixed((count.long() * fixed_point(weight)).sum(-1), grid, FP32)


def two_level_sums(
    idx_a: Tensor, outlier_mask: Tensor, idx_b: Tensor, codebook_a: Tensor, bits_b: int
) -> Tensor:
    """``sums[t, n, j] = sum over inlier k of C_A[ia_tk] [ib_kn = j]``: (T, N, 2**nB) int64, 2**-24.

    With exact products ``D = sum_j C_B[j] * sums[j]`` on grid 2**-48: 2**nB products per column
    in place of 2**(nA+nB).
    """
    check_codebook(codebook_a, "codebook_a")
    outlier = outlier_mask.bool()
    value = torch.where(outlier, 0, fixed_point(codebook_a)[torch.where(outlier, 0, idx_a.long())])
    return integer_counts(value, idx_b, bits_b)


def dequantized_matmul(
    idx_a: Tensor,
    outlier_mask: Tensor,
    x: Tensor,
    s_a: Tensor,
    idx_b: Tensor,
    s_b: Tensor,
    codebook_a: Tensor,
    codebook_b: Tensor,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """``(s_A * C_A[ia] or x) @ C_B[ib] * s_B`` in ``dtype``: (T, N), the plain reference.

    Arguments as index_matmul; roundings are those of ``dtype`` and of the library's matmul.
    """
    outlier = outlier_mask.bool()
    inlier_value = (
        float_from_bits(codebook_a)[torch.where(outlier, 0, idx_a.long())]
        * float_from_bits(s_a)[:, None]
    )
    a = torch.where(outlier, float_from_bits(x), inlier_value).to(dtype)
    b = float_from_bits(codebook_b)[idx_b.long()].to(dtype)
    return (a @ b) * float_from_bits(s_b).to(dtype)
