"""Histograms of indices and weighted sums over them, exact.

A product over indices groups its elements by index:
``sum over k of a_k * C[i_k] = sum over j of C[j] * N_j``, ``N_j = sum over k of a_k [i_k = j]``.
N is a histogram of integers, so any order of the elements gives the same bits.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from golden.fp16.format import FP32
from golden.fp16.ops import LIMB_BITS, fixed_point, from_fixed
from golden.index.format import GRID_PRODUCT_ROUNDED


def check_indices(index: Tensor, bits: int, name: str) -> None:
    """ValueError unless every index lies in 0 .. 2**bits - 1."""
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < 1 << bits:
        raise ValueError(f"{name} must hold 0..{(1 << bits) - 1}")


def grouped_sums(per_code: Tensor, idx_b: Tensor) -> Iterator[tuple[slice, Tensor]]:
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


def counts(idx_a: Tensor, outlier_mask: Tensor, idx_b: Tensor, bits_a: int, bits_b: int) -> Tensor:
    """``counts[t, n, bin] = #{inlier k : ia_tk * 2**nB + ib_kn = bin}``: (T, N, 2**(nA+nB)) int64.

    What the index distribution counters of a K-Means request hold when its last beat is in.
    """
    check_indices(idx_b, bits_b, "idx_b")
    tokens, outputs = idx_a.shape[0], idx_b.shape[1]
    bins_a, bins_b = 1 << bits_a, 1 << bits_b
    inlier = ~outlier_mask.bool()
    codes = torch.arange(bins_a, device=idx_a.device)
    chosen = (idx_a[:, None, :] == codes[:, None]) & inlier[:, None, :]  # (T, 2**nA, K)
    rows = chosen.reshape(tokens * bins_a, -1).long()
    out = torch.zeros(tokens, outputs, bins_a, bins_b, dtype=torch.int64, device=idx_a.device)
    for columns, part in grouped_sums(rows.expand(bins_b, -1, -1), idx_b):
        by_token = part.reshape(bins_b, tokens, bins_a, -1)
        out[:, columns] = by_token.permute(1, 3, 2, 0)
    return out.reshape(tokens, outputs, bins_a * bins_b)


def integer_counts(a: Tensor, idx_b: Tensor, bits_b: int) -> Tensor:
    """``counts[t, n, j] = sum over k of a_tk [ib_kn = j]``: (T, N, 2**nB) int64."""
    check_indices(idx_b, bits_b, "idx_b")
    bins = 1 << bits_b
    out = torch.zeros(a.shape[0], idx_b.shape[1], bins, dtype=torch.int64, device=idx_b.device)
    for columns, part in grouped_sums(a.long().expand(bins, -1, -1), idx_b):
        out[:, columns] = part.permute(1, 2, 0)
    return out


def index_histogram(pair: Tensor, inlier: Tensor, bits_a: int, bits_b: int) -> Tensor:
    """``count[b] = #{k : inlier_k and pair_k = b}``: (2**(bits_a+bits_b),) int64.

    pair, inlier: (K,), the elements of a packet in any order.
    """
    index_a, index_b = pair.long() >> bits_b, pair.long() & ((1 << bits_b) - 1)
    return counts(index_a[None], ~inlier.bool()[None], index_b[:, None], bits_a, bits_b)[0, 0]


def value_histogram(value: Tensor, index_b: Tensor, inlier: Tensor, bits_b: int) -> Tensor:
    """``count[j] = sum of value_k over inlier k with index_b_k = j``: (2**bits_b,) int64.

    value: (K,) integers, |sum| < 2**53.
    """
    counted = torch.where(inlier.bool(), value.long(), 0)
    return integer_counts(counted[None], index_b.long()[:, None], bits_b)[0, 0]


def bank_histogram(index: Tensor, amount: Tensor, rows: int) -> Tensor:
    """``bin[m, j, l] = sum over k with index_km = j of amount_kl``: (M, rows, L) int64.

    index: (K, M) integers of 0 and above; one of ``rows`` or above counts nothing in its bank.
    amount: (K, L) integers; every sum must lie within int64. Any order of k gives the same bits.
    """
    counts_nothing = index.long() >= rows
    place = torch.where(counts_nothing, rows, index.long())
    banks = index.shape[1]
    bins = amount.new_zeros((banks, rows + 1, amount.shape[1]), dtype=torch.int64)
    for bank in range(banks):
        bins[bank].index_add_(0, place[:, bank], amount.long())
    return bins[:, :rows]


def bank_words(bins: Tensor, word_banks: int) -> Tensor:
    """Output words of a packet: (M / word_banks * rows, word_banks, L), all rows of a part first.

    bins: (M, rows, L); ``word_banks`` divides M.
    """
    banks, rows, values = bins.shape
    parts = bins.reshape(banks // word_banks, word_banks, rows, values)
    return parts.permute(0, 2, 1, 3).reshape(-1, word_banks, values)


def bin_words(bins: Tensor, word_bins: int) -> Tensor:
    """Output words of a counter: (words, word_bins), slots beyond the last bin are 0."""
    words = -(-len(bins) // word_bins)
    padded = bins.new_zeros(words * word_bins)
    padded[: len(bins)] = bins
    return padded.reshape(words, word_bins)


def reduce_counts(count: Tensor, weight: Tensor, *, wide: bool = False) -> Tensor:
    """``rne32(sum over the last axis of count * weight)``: int64 FP32 words.

    count: integers of 0..2**48 - 1; weight: finite FP16 words. The sum is exact and rounded once, a
    sum of 0 gives +0. It must lie within int64, unless ``wide``: then it takes two limbs, up to
    8192 terms and |sum of count| < 2**48 at |weight| <= 1.
    """
    fixed = fixed_point(weight)
    if not wide:
        return from_fixed((count.long() * fixed).sum(-1), GRID_PRODUCT_ROUNDED, FP32)
    half = 24  # bits of the low part of a count
    low = ((count.long() & (1 << half) - 1) * fixed).sum(-1)
    top = ((count.long() >> half) * fixed).sum(-1)
    above = LIMB_BITS - half  # bits of ``top`` within the low limb
    low = low + ((top & (1 << above) - 1) << half)
    return from_fixed(low, GRID_PRODUCT_ROUNDED, FP32, high=top >> above)
