"""Codes of 2 to 16 bits packed into bytes.

The M codes of one vector form a string of M * bits bits, the first code in the lowest bits. Byte b
holds bits 8b to 8b + 7 of the string, its own lowest bit first. Zeros fill the last byte.
"""

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.index.format import CODE_BITS_MAX, CODE_BITS_MIN


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of ``count`` codes: ceil(count * bits / 8)."""
    if not CODE_BITS_MIN <= bits <= CODE_BITS_MAX:
        raise ConfigError(f"bits must be {CODE_BITS_MIN}..{CODE_BITS_MAX}, not {bits}")
    return -(-count * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """(..., M) integers of 0 .. 2**bits - 1 to (..., ceil(M * bits / 8)) uint8."""
    size = packed_bytes(codes.shape[-1], bits)
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < 1 << bits:
        raise ValueError(f"codes must hold 0..{(1 << bits) - 1}")
    places = torch.arange(bits, device=codes.device)
    string = ((codes.int()[..., None] >> places) & 1).to(torch.uint8).flatten(-2)
    string = torch.nn.functional.pad(string, (0, 8 * size - string.shape[-1]))
    weights = (1 << torch.arange(8, device=codes.device)).to(torch.uint8)
    return (string.unflatten(-1, (size, 8)) * weights).sum(-1, dtype=torch.uint8)


def unpack(data: Tensor, count: int, bits: int) -> Tensor:
    """Unpacks ``count`` codes that ``pack`` packed: (..., ceil(count * bits / 8)) uint8 to int64.

    The bits that fill the last byte are not read.
    """
    size = packed_bytes(count, bits)
    if data.shape[-1] != size:
        raise ValueError(f"data must have {size} bytes per vector, not {data.shape[-1]}")
    places = torch.arange(8, device=data.device)
    string = ((data.int()[..., None] >> places) & 1).flatten(-2)[..., : count * bits]
    weights = 1 << torch.arange(bits, device=data.device, dtype=torch.int32)
    return (string.unflatten(-1, (count, bits)) * weights).sum(-1)
