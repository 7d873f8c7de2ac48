"""Exact integer rounding used by the KLLM golden model (int64 tensors of bit patterns)."""

import torch
from torch import Tensor

from golden.fp16.format import FloatFormat

__all__ = ["fixed_to_float", "fma", "mul", "round_scaled", "split"]


def split(word: Tensor, fmt: FloatFormat) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(sign, significand, exponent of its last place, is_nan, is_inf) of each word."""
    sign = word >> (fmt.bits - 1) & 1
    exp = word >> fmt.frac_bits & fmt.exp_max
    frac = word & ((1 << fmt.frac_bits) - 1)
    special = exp == fmt.exp_max
    significand = torch.where(exp > 0, frac | 1 << fmt.frac_bits, frac)
    place = exp.clamp(min=1) - 1 + fmt.grid_exponent
    return sign, significand, place, special & (frac != 0), special & (frac == 0)


def _length(m: Tensor) -> Tensor:
    """Bits of a non-negative integer below 2**62."""
    length = torch.frexp(m.double()).exponent.long()  # one too many where m rounds up
    return length - ((m > 0) & (m >> (length - 1).clamp(min=0) == 0)).long()


def round_scaled(sign: Tensor, m: Tensor, place: Tensor, fmt: FloatFormat) -> Tensor:
    """Word of ``(-1)**sign * rne(m * 2**place)``; 0 <= m < 2**62, lowest bit may be sticky."""
    target = torch.maximum(
        _length(m) + place - 1 - fmt.frac_bits, torch.full_like(m, fmt.grid_exponent)
    )
    shift = target - place
    right = shift.clamp(0, 62)
    half = torch.where(right > 0, (1 << (right - 1).clamp(min=0)) - 1, 0)
    odd = torch.where(right > 0, m >> right & 1, 0)
    kept = torch.where(shift > 62, 0, (m + half + odd) >> right) << (-shift).clamp(min=0)
    word = ((target - fmt.grid_exponent) << fmt.frac_bits) + kept
    return torch.where(kept == 0, 0, word.clamp(max=fmt.infinity)) | sign << (fmt.bits - 1)


def fixed_to_float(hi: Tensor, lo: Tensor, lo_bits: int, place: int, fmt: FloatFormat) -> Tensor:
    """Word of ``rne((hi * 2**lo_bits + lo) * 2**place)``, 0 <= lo < 2**lo_bits <= 2**31."""
    negative = hi < 0
    full = 1 << lo_bits
    borrow = negative & (lo != 0)
    lo_abs = torch.where(borrow, full - lo, lo)
    hi_abs = torch.where(negative, -hi - borrow.long(), hi)
    small = hi_abs < 1 << (61 - lo_bits)
    m_small = torch.where(small, hi_abs, 0) << lo_bits | lo_abs
    m_large = hi_abs | (lo_abs != 0).long()
    m = torch.where(small, m_small, m_large)
    p = torch.where(small, place, place + lo_bits)
    return round_scaled(negative.long(), m, p, fmt)


def mul(x: Tensor, fx: FloatFormat, y: Tensor, fy: FloatFormat, out: FloatFormat) -> Tensor:
    """``rne(x * y)``, one rounding of the exact product."""
    sx, mx, px, nx, ix = split(x, fx)
    sy, my, py, ny, iy = split(y, fy)
    sign = sx ^ sy
    word = round_scaled(sign, mx * my, px + py, out)
    word = torch.where(ix | iy, out.infinity | sign << (out.bits - 1), word)
    nan = nx | ny | ix & (my == 0) | iy & (mx == 0)
    return torch.where(nan, out.canonical_nan, word)


def fma(x: Tensor, fx: FloatFormat, y: Tensor, z: Tensor, fmt: FloatFormat) -> Tensor:
    """``rne(x * y + z)`` for finite operands, one rounding."""
    sx, mx, px, _, _ = split(x, fx)
    sy, my, py, _, _ = split(y, fmt)
    sz, mz, pz, _, _ = split(z, fmt)
    sp, mp, pp = sx ^ sy, mx * my, px + py
    sp, mp, pp, sz, mz, pz = torch.broadcast_tensors(sp, mp, pp, sz, mz, pz)
    # Both tops to bit 59, then the smaller operand moves down with its lost bits jammed.
    up_p = 60 - _length(mp)
    up_z = 60 - _length(mz)
    mp, pp = mp << up_p, torch.where(mp == 0, -(1 << 20), pp - up_p)
    mz, pz = mz << up_z, torch.where(mz == 0, -(1 << 20), pz - up_z)
    place = torch.maximum(pp, pz)

    def down(m: Tensor, distance: Tensor) -> Tensor:
        gone = distance.clamp(max=62)
        return m >> gone | (m & ((1 << gone) - 1) != 0).long()

    vp = down(mp, place - pp) * (1 - 2 * sp)
    vz = down(mz, place - pz) * (1 - 2 * sz)
    total = vp + vz
    sign = torch.where(total == 0, sp & sz, (total < 0).long())
    return round_scaled(sign, total.abs(), place.clamp(min=-2000), fmt)
