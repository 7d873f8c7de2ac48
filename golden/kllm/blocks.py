"""The results of each KLLM block, on the words of its ports, bit-true.

``golden.kllm.matmul`` states the arithmetic of whole matrices. The functions here apply the same
arithmetic to one packet of one block, in the block's order of words.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import LIMB_BITS, fma, from_fixed, mul
from golden.index.histogram import index_histogram, reduce_counts, value_histogram
from golden.kllm import matmul
from golden.kllm.format import GRID_SPARSE, NO_OUTPUT, Status
from golden.kllm.products import fixed_values


def concatenate(value: Tensor, index_b: Tensor, bits_b: int) -> Tensor:
    """``pair[b, c, e] = value[b, e] * 2**bits_b + index_b[b, c, e]``: int64.

    value: (beats, elements), one for all columns; index_b: (beats, columns, elements).
    """
    return matmul.concatenate(value[:, None, :], index_b, bits_b)


def dense_sums(
    value: Tensor,
    index_b: Tensor,
    inlier: Tensor,
    weight: Tensor,
    bits_b: int,
    fixed_grid: int | None = None,
) -> Tensor:
    """``D[c] = rne32(sum over inlier k of term_kc)``: (columns,) FP32 words, the sum exact.

        2**(bits_a + bits_b) weights   term_kc = weight[value_k * 2**bits_b + index_b_kc]
        2**bits_b weights              term_kc = value_k * weight[index_b_kc]

    value, inlier: (K,); index_b: (K, columns); weight: FP16 words, or with ``fixed_grid`` two's
    complement of 16 bits on the grid 2**fixed_grid.
    """
    columns = []
    for index in index_b.long().T:
        if len(weight) > 1 << bits_b:
            bits_a = len(weight).bit_length() - 1 - bits_b
            count = index_histogram(value.long() << bits_b | index, inlier, bits_a, bits_b)
        else:
            count = value_histogram(value, index, inlier, bits_b)
        if fixed_grid is None:
            columns.append(reduce_counts(count, weight))
        else:
            total = (count.long() * fixed_values(weight)).sum(-1)
            columns.append(from_fixed(total, fixed_grid, FP32))
    return torch.stack(columns)


def finish_job(
    status: int, s_a: int, dense: Tensor, sparse: Sequence[int], s_b: Tensor
) -> tuple[Tensor, Status]:
    """(y, status) of a job whose header and beats gave ``status``.

    A bit of NO_OUTPUT: no y and that status. Otherwise ``scale_outputs`` of the first len(s_b)
    sums, and SCALE_NONFINITE and OVERFLOW are added. dense: FP32 words; s_a, s_b: FP16 words.
    """
    if status & NO_OUTPUT:
        return s_b[:0], Status(status)
    outputs = len(s_b)
    y, overflow = scale_outputs(dense[:outputs], sparse[:outputs], torch.full_like(s_b, s_a), s_b)
    special = s_b & FP16.infinity == FP16.infinity
    status |= Status.SCALE_NONFINITE * int(special.any()) | Status.OVERFLOW * int(overflow.any())
    return y, Status(status)


def sparse_sums(x: Tensor, present: Tensor, index_b: Tensor, codebook_b: Tensor) -> list[int]:
    """``sum[c] = sum over present k of x_k * C_B[index_b_kc]``: exact integers on grid 2**-48.

    x: (K,) FP16 words, finite where present; index_b: (K, columns); codebook_b: magnitude <= 1.
    """
    present = present.bool()
    x = torch.where(present, x.long(), 0)
    high, low = matmul.sparse_sums(x[None], present[None], index_b.long(), codebook_b.long())
    return [
        (h << LIMB_BITS) + part for h, part in zip(high[0].tolist(), low[0].tolist(), strict=True)
    ]


def scale_outputs(d: Tensor, s: Sequence[int], s_a: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """``t = fma32(s_a, d, rne32(s * 2**-48)); y = rne16(t * s_b)``: (FP16 words, overflow bool).

    d: (n,) FP32 words; s: n exact integers below 2**95 in magnitude; s_a, s_b: (n,) FP16 words.
    Infinite and NaN operands follow IEEE 754-2019. overflow: y is infinite, t and s_b are finite.
    ``golden.kllm.matmul.finish`` is the same for the operands that a lane lets through.
    """
    mask = (1 << LIMB_BITS) - 1
    low = torch.tensor([value & mask for value in s], dtype=torch.int64)
    high = torch.tensor([value >> LIMB_BITS for value in s], dtype=torch.int64)
    sparse = from_fixed(low, GRID_SPARSE, FP32, high=high)
    t = fma(s_a, d, sparse, FP16, FP32, FP32, FP32)
    y = mul(t, s_b, FP32, FP16, FP16)
    finite = (t & FP32.infinity != FP32.infinity) & (s_b & FP16.infinity != FP16.infinity)
    return y, (y & (FP16.sign_bit - 1) == FP16.infinity) & finite
