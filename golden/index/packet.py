"""Codebooks of vectors as the hardware loads them: FP16 entries and one power of two.

A codebook of M subspaces has ``entries`` vectors of ``sub`` elements in each. The real codebook is
``2**exponent * entries``, where every entry is an FP16 word of magnitude at most 1. The scale is a
power of two, so it rounds nothing and exact sums stay integers.

A packet holds the words by entry, then subspace, then element. Word ``(j * M + m) * sub + i`` is
element i of entry j of subspace m, so one row of d words holds entry j of every subspace. Each word
takes two bytes, the lower one first.
"""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN

_ONE = 0x3C00


def check_words(words: Tensor, exponent: int, name: str = "codebook") -> None:
    """ConfigError unless words (M, entries, sub) are in -1..1 and the exponent in its range."""
    if words.ndim != 3 or words.numel() == 0:
        raise ConfigError(f"{name} must be (M, entries, sub), not {tuple(words.shape)}")
    if not SCALE_EXPONENT_MIN <= exponent <= SCALE_EXPONENT_MAX:
        allowed = f"{SCALE_EXPONENT_MIN}..{SCALE_EXPONENT_MAX}"
        raise ConfigError(f"exponent must be {allowed}, not {exponent}")
    wrong = (words < 0) | (words > 0xFFFF) | ((words & 0x7FFF) > _ONE)
    if bool(wrong.any()):
        m, j, i = wrong.nonzero()[0].tolist()
        value = int(words[m, j, i])
        raise ConfigError(f"{name}[{m}][{j}][{i}] must be an FP16 word in -1..1, not {value:#06x}")


def normalised(codebook: Tensor) -> tuple[Tensor, int]:
    """(words, exponent) of a real codebook (M, entries, sub): ``rne16(codebook / 2**exponent)``.

    words: int64 FP16 words. exponent: the smallest of -8..15 with every |word| <= 1 after rounding.
    ConfigError: 15 is too small. ValueError: a value is NaN or infinite.
    """
    real = codebook.double()
    if real.ndim != 3 or real.numel() == 0 or not bool(torch.isfinite(real).all()):
        raise ValueError("codebook must be finite, (M, entries, sub) and not empty")
    largest = real.abs().max()
    for exponent in range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1):
        if int(bits_from_float(largest * 2.0**-exponent)) <= _ONE:
            return bits_from_float(real * 2.0**-exponent), exponent
    limit = 1 << SCALE_EXPONENT_MAX
    raise ConfigError(f"codebook must lie in -{limit}..{limit}, not reach {float(largest):g}")


def denormalised(words: Tensor, exponent: int) -> Tensor:
    """The real codebook ``2**exponent * words``: (M, entries, sub) float64, exact."""
    return float_from_bits(words, FP16) * 2.0**exponent


def packet_rows(words: Tensor) -> Tensor:
    """Rows of a packet: (M, entries, sub) words to (entries, M * sub)."""
    return words.transpose(0, 1).flatten(1)


def packet(words: Tensor) -> Tensor:
    """Bytes of a packet: (M, entries, sub) words to (2 * M * entries * sub,) uint8."""
    flat = packet_rows(words).flatten()
    return torch.stack((flat & 0xFF, flat >> 8), 1).flatten().to(torch.uint8)


def from_packet(data: Tensor, subspaces: int, sub: int) -> Tensor:
    """The words (M, entries, sub) int64 of a packet's bytes; ValueError: not whole rows."""
    if data.numel() == 0 or data.numel() % (2 * subspaces * sub):
        raise ValueError(f"a packet must have whole rows of {2 * subspaces * sub} bytes")
    low, high = data.long().reshape(-1, 2).unbind(1)
    return (low | high << 8).reshape(-1, subspaces, sub).transpose(0, 1).contiguous()
