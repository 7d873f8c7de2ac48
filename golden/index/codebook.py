"""Codebooks of FP16 words: checks, exact values, products of two codebooks, look-ups."""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.ops import mul
from golden.index.format import CODEBOOK_BITS_MAX, CODEBOOK_BITS_MIN

_ONE = 0x3C00


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


def product_codebook(codebook_a: Tensor, codebook_b: Tensor) -> Tensor:
    """``P[ia * 2**nB + ib] = rne16(C_A[ia] * C_B[ib])``: (2**(nA+nB),) int64 FP16 words."""
    check_codebook(codebook_a, "codebook_a")
    check_codebook(codebook_b, "codebook_b")
    a, b = codebook_a.long()[:, None], codebook_b.long()[None, :]
    return mul(a, b).reshape(-1)


def look_up(index: Tensor, outlier: Tensor, x: Tensor, table: Tensor) -> Tensor:
    """``table[index]``, or x at outliers: (..., L) words; table: (..., 2**n)."""
    return torch.where(outlier.bool(), _words(x), _words(table).gather(-1, index.long()))


def _words(x) -> Tensor:
    return torch.as_tensor(x).to(torch.int64) & 0xFFFF
