"""Quotient, square root, reciprocal square root and exponential on bit patterns.

As in golden.fp16.ops, words are int64 tensors of raw bits, any shape that broadcasts, any device.
Everything is integer arithmetic. ``fa``, ``fb`` and ``fo`` are the formats of the operands and of
the result. divide, reciprocal, sqrt and rsqrt are correctly rounded (nearest even) with exact
subnormals. exp is within 0.51 units in the last place and monotone.
"""

import torch
from torch import Tensor

from golden.fp16.format import FP16, FloatFormat, exp_tables
from golden.fp16.ops import _bit_length, _choose, _decode, _round, _special, _words


def _normalised(words: Tensor, format: FloatFormat) -> tuple[Tensor, Tensor, Tensor]:
    """(sign, magnitude, exponent) with the leading one of magnitude at bit precision - 1.

    A zero gives the smallest such magnitude: its result is replaced, and nothing divides by 0.
    """
    sign, magnitude, exponent = _decode(words, format)
    magnitude = torch.where(magnitude == 0, 1, magnitude)
    zeros = format.precision - _bit_length(magnitude)
    return sign, magnitude << zeros, exponent - zeros


def _integer_sqrt(value: Tensor, bits: int) -> Tensor:
    """floor(sqrt(value)) of 0 <= value < 2**(2 * bits), bit by bit from the top."""
    root = torch.zeros_like(value)
    for k in reversed(range(bits)):
        trial = root | (1 << k)
        root = torch.where(trial * trial <= value, trial, root)
    return root


def _even(magnitude: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    """The same number with an even exponent: one more bit of magnitude where it was odd."""
    odd = exponent & 1
    return magnitude << odd, exponent - odd


def divide(
    a, b, fa: FloatFormat = FP16, fb: FloatFormat = FP16, fo: FloatFormat = FP16
) -> Tensor:
    """RNE(a / b). 0 / 0 and inf / inf are NaN; x / 0 is infinity with the XOR of the signs."""
    a, b = torch.broadcast_tensors(_words(a, fa), _words(b, fb))
    a_nan, a_inf = _special(a, fa)
    b_nan, b_inf = _special(b, fb)
    a_zero, b_zero = _decode(a, fa)[1] == 0, _decode(b, fb)[1] == 0
    a_sign, a_magnitude, a_exponent = _normalised(a, fa)
    b_sign, b_magnitude, b_exponent = _normalised(b, fb)
    sign = a_sign ^ b_sign
    # Magnitudes have a ratio above 2**(precision of a - precision of b - 1): so many places more
    # give the quotient at least precision + 2 bits, and the last may be jammed.
    places = max(fo.precision + 2 + fb.precision - fa.precision, 0)
    dividend = a_magnitude << places
    quotient = dividend // b_magnitude
    inexact = (quotient * b_magnitude != dividend).to(torch.int64)
    value = _round(sign, quotient | inexact, a_exponent - b_exponent - places, fo)
    zero = sign << (fo.bits - 1)
    value = torch.where(a_zero | b_inf, zero, value)
    nan = a_nan | b_nan | (a_zero & b_zero) | (a_inf & b_inf)
    return _choose(fo, value, nan, a_inf | b_zero, sign)


def reciprocal(a, fa: FloatFormat = FP16, fo: FloatFormat = FP16) -> Tensor:
    """RNE(1 / a); of a zero infinity, of an infinity zero, with the sign of a."""
    a = _words(a, fa)
    return divide(torch.full_like(a, fa.bias << fa.frac_bits), a, fa, fa, fo)


def sqrt(a, fa: FloatFormat = FP16, fo: FloatFormat = FP16) -> Tensor:
    """RNE(sqrt(a)). sqrt(-0) is -0; of any other negative number NaN."""
    a = _words(a, fa)
    nan, inf = _special(a, fa)
    zero = _decode(a, fa)[1] == 0
    sign, magnitude, exponent = _normalised(a, fa)
    places = max(2 * (fo.precision + 2) - fa.precision, 0)
    radicand, exponent = _even(magnitude << places, exponent - places)
    root = _integer_sqrt(radicand, -(-(fa.precision + places + 1) // 2))
    inexact = (root * root != radicand).to(torch.int64)
    value = _round(torch.zeros_like(sign), root | inexact, exponent >> 1, fo)
    value = torch.where(zero, sign << (fo.bits - 1), value)
    return _choose(fo, value, nan | ((sign == 1) & ~zero), inf, torch.zeros_like(sign))


def rsqrt(a, fa: FloatFormat = FP16, fo: FloatFormat = FP16) -> Tensor:
    """RNE(1 / sqrt(a)). Of a zero infinity with its sign, of +infinity +0, of a negative NaN.

    floor(2**t / sqrt(n)) is floor(sqrt(floor(2**(2 * t) / n))) for integers, and the quotient has
    at most 2 * precision + 7 <= 55 bits.
    """
    a = _words(a, fa)
    nan, inf = _special(a, fa)
    zero = _decode(a, fa)[1] == 0
    sign, magnitude, exponent = _normalised(a, fa)
    radicand, exponent = _even(magnitude, exponent)  # precision or precision + 1 bits
    half = -(-(2 * (fo.precision + 2) + fa.precision + 1) // 2)  # t
    # 2**(2 * t) / radicand in two steps, as 2**(2 * t) may not fit one word.
    first = min(fa.precision, 2 * half)
    quotient, rest = (1 << first) // radicand, (1 << first) % radicand
    left = 2 * half - first
    while left:
        step = min(left, 32)
        rest = rest << step
        quotient, rest = (quotient << step) + rest // radicand, rest % radicand
        left -= step
    root = _integer_sqrt(quotient, fo.precision + 4)
    # 1 / sqrt(n) is rational only where n is a power of 4.
    exact = (radicand & (radicand - 1) == 0) & ((_bit_length(radicand) & 1) == 1)
    inexact = (~exact).to(torch.int64)
    value = _round(torch.zeros_like(sign), root | inexact, -half - (exponent >> 1), fo)
    value = torch.where(inf, 0, value)
    infinity_sign = torch.where(zero, sign, 0)
    return _choose(fo, value, nan | ((sign == 1) & ~zero), zero, infinity_sign)


def exp(a, fo: FloatFormat = FP16) -> Tensor:
    """exp(a) of binary16 words: in binary16 within 0.51 units in the last place, and monotone.

    The result is +0 for -inf and +inf for +inf, and likewise for every magnitude from 32 on. In
    binary16 gradual underflow, and overflow from 11.09 up. ``fo=FP32`` gives the same value before
    that rounding: 20 bits, relative error below 2**-15.8. Converted to binary16 it is the result in
    binary16.

    a = k * ln(2) + s. s, on a grid of 1/64, selects the middle m of its interval. With r = s - m,
    in fixed point with 18 fraction bits:

        exp(s) = exp(m) * (1 + r + r**2 / 2)
    """
    t, a = exp_tables(), _words(a, FP16)

    def look_up(table: tuple[int, ...], index: Tensor) -> Tensor:
        return torch.tensor(table, device=a.device)[index & (len(table) - 1)]

    nan, inf = _special(a, FP16)
    sign, magnitude, exponent = _decode(a, FP16)
    huge = exponent > 5 - FP16.precision  # |a| >= 32: the result is 0 or infinity
    raised = exponent + t.GRID
    x = (magnitude << raised.clamp(min=0)) >> (-raised).clamp(min=0)
    x = torch.where(sign == 1, ~x, x)  # one step of the grid below -x, which saves an adder
    k = ((x >> (t.GRID - t.K_PLACES)) * 23) >> (t.K_PLACES + 4)
    s = x - look_up(t.high, k >> t.LOW_BITS) - look_up(t.low, k)
    rest_bits = t.GRID - t.INDEX_BITS
    power = look_up(t.power, s >> rest_bits)
    r = (s & ((1 << rest_bits) - 1)) - (1 << (rest_bits - 1))
    r = r + look_up(t.square, r >> (rest_bits - t.SQUARE_BITS))
    y = power + (((power >> (t.GRID - t.FACTOR_BITS)) * r) >> t.FACTOR_BITS)
    plus = torch.zeros_like(sign)
    value = torch.where(huge, 0, _round(plus, y, k - t.GRID, fo))
    return _choose(fo, value, nan, (inf | huge) & (sign == 0), plus)
