"""IEEE 754-2019 arithmetic on bit patterns, rounded once to nearest even.

Words go in and come out as int64 tensors of raw bits, any shape that broadcasts, any device.
uint16, int16 and int32 words are accepted too. Everything is integer arithmetic, so results do not
depend on the machine: no torch floating-point operation rounds here. Behaviour: docs/numerics.md.

A finite number is (sign, magnitude, exponent) with value (-1)**sign * magnitude * 2**exponent and
magnitude < 2**63. If bits below the last one were dropped, the last one becomes 1 ("jammed").
This never changes the rounded result as long as the dropped bits lie below the half step.
"""

import torch
from torch import Tensor

from golden.fp16.format import FP16, FP32, FloatFormat

LIMB_BITS = 62  # a two-limb integer is high * 2**62 + low
_FLOAT64 = (11, 52, 1023)  # exponent bits, fraction bits, bias


def _words(words, format: FloatFormat) -> Tensor:
    """Raw words as int64 in 0..2**bits - 1, whatever integer type held them."""
    return torch.as_tensor(words).to(torch.int64) & ((1 << format.bits) - 1)


def _decode(words: Tensor, format: FloatFormat) -> tuple[Tensor, Tensor, Tensor]:
    """(sign, magnitude, exponent) of finite words."""
    sign = words >> (format.bits - 1)
    biased = (words >> format.frac_bits) & format.exp_max
    fraction = words & ((1 << format.frac_bits) - 1)
    normal = biased != 0
    magnitude = fraction | (normal.to(torch.int64) << format.frac_bits)
    exponent = torch.where(normal, biased, 1) - 1 + format.grid_exponent
    return sign, magnitude, exponent


def _magnitude_bits(words: Tensor, format: FloatFormat) -> Tensor:
    return words & (format.sign_bit - 1)


def _bit_length(value: Tensor) -> Tensor:
    """Bits of a non-negative int64; 0 for 0."""
    # The exponent of the float64 near it. The bit below the leading one is cleared first, so that
    # the conversion never rounds up to the next power of two.
    words = (value & ~(value >> 1)).to(torch.float64).view(torch.int64)
    _, frac_bits, bias = _FLOAT64
    return ((words >> frac_bits) - (bias - 1)).clamp(min=0)


def _shift_right_jam(value: Tensor, distance: Tensor) -> Tensor:
    """value >> distance, with the last bit set if a one was shifted out; any distance >= 0."""
    near = distance.clamp(0, 63)
    kept = value >> near
    lost = (kept << near) != value
    return kept | lost.to(torch.int64)


def _round(sign: Tensor, magnitude: Tensor, exponent: Tensor, format: FloatFormat) -> Tensor:
    """RNE of (-1)**sign * magnitude * 2**exponent; the last bit of magnitude may be jammed."""
    # Distance from the last bit to the last one kept: by precision, or by the subnormal grid.
    drop = torch.maximum(
        _bit_length(magnitude) - format.precision, format.grid_exponent - exponent
    )
    drop = torch.where(magnitude == 0, torch.zeros_like(drop), drop)
    # Two bits beyond are kept, the second jammed: half step and rest.
    wide = torch.where(
        drop >= 2,
        _shift_right_jam(magnitude, drop - 2),
        magnitude << (2 - drop).clamp(0, 63),
    )
    kept, rest = wide >> 2, wide & 3
    kept = kept + ((rest == 3) | ((rest == 2) & (kept & 1 == 1))).to(torch.int64)
    # Rounding up may have made one bit more: 2**precision, whose last bit is then 0.
    carried = kept >> format.precision
    kept = kept >> carried
    weight = exponent + drop + carried  # of the last kept bit
    normal = kept >> format.frac_bits
    biased = (weight - format.grid_exponent + 1) * normal
    fraction = kept & ((1 << format.frac_bits) - 1)
    finite = (biased << format.frac_bits) | fraction
    finite = torch.where(biased >= format.exp_max, format.infinity, finite)
    return (sign << (format.bits - 1)) | finite


def _special(words: Tensor, format: FloatFormat) -> tuple[Tensor, Tensor]:
    """(is_nan, is_inf)."""
    magnitude = _magnitude_bits(words, format)
    return magnitude > format.infinity, magnitude == format.infinity


def _sum(first: tuple, second: tuple, format: FloatFormat) -> Tensor:
    """RNE of the sum of two finite numbers with magnitudes below 2**48.

    Exact with one limb: the operand with the higher leading bit is moved to bit 60. If bits of the
    other are dropped, it began at least 60 - 48 = 12 below. A difference then loses at most one
    leading bit, and the jammed bit 0 lies far below the half step of at most 24 bits.
    """
    signs, magnitudes, exponents = [], [], []
    for sign, magnitude, exponent in torch.broadcast_tensors(*first), torch.broadcast_tensors(
        *second
    ):
        raise_by = 60 - (_bit_length(magnitude) - 1)
        raise_by = torch.where(magnitude == 0, torch.zeros_like(raise_by), raise_by)
        signs.append(sign)
        magnitudes.append(magnitude << raise_by)
        # Zero goes below everything: it is then always the operand that is aligned.
        exponents.append(
            torch.where(magnitude == 0, torch.full_like(exponent, -(1 << 20)), exponent - raise_by)
        )
    (sign_1, sign_2), (magnitude_1, magnitude_2), (exponent_1, exponent_2) = (
        signs,
        magnitudes,
        exponents,
    )
    swap = exponent_2 > exponent_1
    high = torch.where(swap, magnitude_2, magnitude_1)
    low = torch.where(swap, magnitude_1, magnitude_2)
    high_sign = torch.where(swap, sign_2, sign_1)
    low_sign = torch.where(swap, sign_1, sign_2)
    exponent = torch.maximum(exponent_1, exponent_2)
    low = _shift_right_jam(low, exponent - torch.minimum(exponent_1, exponent_2))
    total = high + torch.where(high_sign == low_sign, low, -low)
    sign = torch.where(total < 0, low_sign, high_sign)
    sign = torch.where(total == 0, sign_1 & sign_2, sign)  # x + -x is +0, -0 + -0 is -0
    return _round(sign, total.abs(), exponent, format)


def _choose(format: FloatFormat, value: Tensor, nan: Tensor, inf: Tensor, sign: Tensor) -> Tensor:
    """The number, unless it is infinite or (first of all) NaN."""
    infinity = (sign << (format.bits - 1)) | format.infinity
    return torch.where(nan, format.canonical_nan, torch.where(inf, infinity, value))


def fma(
    a,
    b,
    c,
    a_format: FloatFormat = FP16,
    b_format: FloatFormat = FP16,
    c_format: FloatFormat = FP16,
    o_format: FloatFormat = FP16,
) -> Tensor:
    """RNE(a * b + c) in o_format: one rounding. Infinity times zero is NaN whatever c is."""
    a, b, c = _words(a, a_format), _words(b, b_format), _words(c, c_format)
    a, b, c = torch.broadcast_tensors(a, b, c)
    a_nan, a_inf = _special(a, a_format)
    b_nan, b_inf = _special(b, b_format)
    c_nan, c_inf = _special(c, c_format)
    a_sign, a_magnitude, a_exponent = _decode(a, a_format)
    b_sign, b_magnitude, b_exponent = _decode(b, b_format)
    c_sign, c_magnitude, c_exponent = _decode(c, c_format)
    p_sign = a_sign ^ b_sign
    p_inf = a_inf | b_inf
    nan = a_nan | b_nan | c_nan
    nan = nan | (a_inf & (b_magnitude == 0)) | (b_inf & (a_magnitude == 0))
    nan = nan | (p_inf & c_inf & (p_sign != c_sign))
    product = (p_sign, a_magnitude * b_magnitude, a_exponent + b_exponent)
    value = _sum(product, (c_sign, c_magnitude, c_exponent), o_format)
    return _choose(o_format, value, nan, p_inf | c_inf, torch.where(p_inf, p_sign, c_sign))


def mul(
    a,
    b,
    a_format: FloatFormat = FP16,
    b_format: FloatFormat = FP16,
    o_format: FloatFormat = FP16,
) -> Tensor:
    """RNE(a * b) in o_format."""
    a, b = torch.broadcast_tensors(_words(a, a_format), _words(b, b_format))
    a_nan, a_inf = _special(a, a_format)
    b_nan, b_inf = _special(b, b_format)
    a_sign, a_magnitude, a_exponent = _decode(a, a_format)
    b_sign, b_magnitude, b_exponent = _decode(b, b_format)
    sign = a_sign ^ b_sign
    nan = a_nan | b_nan | (a_inf & (b_magnitude == 0)) | (b_inf & (a_magnitude == 0))
    value = _round(sign, a_magnitude * b_magnitude, a_exponent + b_exponent, o_format)
    return _choose(o_format, value, nan, a_inf | b_inf, sign)


def add(a, b, format: FloatFormat = FP16) -> Tensor:
    """RNE(a + b)."""
    a, b = torch.broadcast_tensors(_words(a, format), _words(b, format))
    a_nan, a_inf = _special(a, format)
    b_nan, b_inf = _special(b, format)
    first, second = _decode(a, format), _decode(b, format)
    nan = a_nan | b_nan | (a_inf & b_inf & (first[0] != second[0]))
    value = _sum(first, second, format)
    return _choose(format, value, nan, a_inf | b_inf, torch.where(a_inf, first[0], second[0]))


def negate(a, format: FloatFormat = FP16) -> Tensor:
    """-a: the sign bit, of any word (a NaN keeps its bits)."""
    return _words(a, format) ^ format.sign_bit


def subtract(a, b, format: FloatFormat = FP16) -> Tensor:
    """RNE(a - b)."""
    return add(a, negate(b, format), format)


def is_nan(a, format: FloatFormat = FP16) -> Tensor:
    """Boolean tensor."""
    return _special(_words(a, format), format)[0]


def is_special(a, format: FloatFormat = FP16) -> Tensor:
    """Boolean tensor: NaN or infinity."""
    return (_words(a, format) & format.infinity) == format.infinity


def total_order_key(a, format: FloatFormat = FP16) -> Tensor:
    """Sign-magnitude integer key, 0..2**bits - 1: monotone in the value, -0 below +0.

    Positive words get the sign bit, negative ones are inverted. NaNs lie beyond the infinities.
    """
    a = _words(a, format)
    mask = (1 << format.bits) - 1
    return torch.where(a >= format.sign_bit, a ^ mask, a | format.sign_bit)


def total_less(a, b, format: FloatFormat = FP16) -> Tensor:
    """key(a) < key(b), boolean: a strict total order of all words (IEEE 754-2019 5.10)."""
    return total_order_key(a, format) < total_order_key(b, format)


def unordered(a, b, format: FloatFormat = FP16) -> Tensor:
    """Boolean: a or b is NaN."""
    return is_nan(a, format) | is_nan(b, format)


def equal(a, b, format: FloatFormat = FP16) -> Tensor:
    """IEEE a == b, boolean: -0 equals +0, NaN equals nothing."""
    a, b = torch.broadcast_tensors(_words(a, format), _words(b, format))
    zeros = (_magnitude_bits(a, format) | _magnitude_bits(b, format)) == 0
    return ((a == b) | zeros) & ~unordered(a, b, format)


def less(a, b, format: FloatFormat = FP16) -> Tensor:
    """IEEE a < b, boolean, quiet: false where either is NaN, and for -0 < +0."""
    return total_less(a, b, format) & ~equal(a, b, format) & ~unordered(a, b, format)


def minimum(a, b, format: FloatFormat = FP16) -> Tensor:
    """IEEE 754-2019 9.6 minimum: NaN if either is NaN, and -0 is less than +0."""
    a, b = torch.broadcast_tensors(_words(a, format), _words(b, format))
    smaller = torch.where(total_less(b, a, format), b, a)
    return torch.where(unordered(a, b, format), format.canonical_nan, smaller)


def maximum(a, b, format: FloatFormat = FP16) -> Tensor:
    """IEEE 754-2019 9.6 maximum: NaN if either is NaN, and +0 is greater than -0."""
    a, b = torch.broadcast_tensors(_words(a, format), _words(b, format))
    larger = torch.where(total_less(a, b, format), b, a)
    return torch.where(unordered(a, b, format), format.canonical_nan, larger)


def from_fixed(value, grid_exponent, format: FloatFormat = FP32, high=None) -> Tensor:
    """RNE(value * 2**grid_exponent); with ``high``, of high * 2**LIMB_BITS + value.

    value and high: signed int64, grid_exponent: int or tensor, -1024..1024. Zero gives +0.
    """
    low = torch.as_tensor(value).to(torch.int64)
    grid_exponent = torch.as_tensor(grid_exponent, device=low.device).to(torch.int64)
    high = torch.zeros_like(low) if high is None else torch.as_tensor(high).to(torch.int64)
    low, high, grid_exponent = torch.broadcast_tensors(low, high, grid_exponent)
    mask = (1 << LIMB_BITS) - 1
    high = high + (low >> LIMB_BITS)  # the low limb to 0..2**62 - 1
    low = low & mask
    if bool(((high == 0) | (high == -1)).all()):  # one limb holds every value
        value = (high << LIMB_BITS) + low
        return _round((value < 0).to(torch.int64), value.abs(), grid_exponent, format)
    sign = (high < 0).to(torch.int64)
    # -(high, low) = (~high, 2**62 - low): the low limb carries when it is 0.
    negated_high = torch.where(low == 0, -high, ~high)
    negated_low = ((1 << LIMB_BITS) - low) & mask
    high = torch.where(sign == 1, negated_high, high)
    low = torch.where(sign == 1, negated_low, low)
    # The leading 62 bits of both limbs, the last one jammed.
    drop = _bit_length(high)
    top = (high << (LIMB_BITS - drop)) | _shift_right_jam(low, drop)
    return _round(sign, top, grid_exponent + drop, format)


def from_int(value, format: FloatFormat = FP16) -> Tensor:
    """RNE(value) of an integer tensor (int64 holds every int32 and uint32)."""
    return from_fixed(value, 0, format)


def to_int(
    a, width: int, signed: bool = True, format: FloatFormat = FP16
) -> tuple[Tensor, Tensor, Tensor]:
    """``(y, saturated, nan)``: a rounded to an integer (ties to even), then clamped to the range.

    y: int64 in the range of a ``width``-bit (2..32) integer; 0 for NaN. saturated: boolean, the
    rounded value was out of range (infinities too). nan: boolean.
    """
    a = _words(a, format)
    nan, inf = _special(a, format)
    sign, magnitude, exponent = _decode(a, format)
    # Beyond 2**39 every value is out of range: shifting less changes nothing.
    left = magnitude << exponent.clamp(0, 39 - format.frac_bits)
    wide = torch.where(
        exponent >= 0, left << 2, _shift_right_jam(magnitude << 2, (-exponent).clamp(min=0))
    )
    rest = wide & 3
    rounded = wide >> 2
    rounded = rounded + ((rest == 3) | ((rest == 2) & (rounded & 1 == 1))).to(torch.int64)
    rounded = torch.where(inf, 1 << 40, rounded)
    rounded = torch.where(sign == 1, -rounded, rounded)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    y = torch.where(nan, 0, rounded.clamp(low, high))
    return y, (y != rounded) & ~nan, nan


def convert(a, i_format: FloatFormat, o_format: FloatFormat) -> Tensor:
    """RNE(a) from one format to another; exact where o_format holds every value of i_format."""
    a = _words(a, i_format)
    nan, inf = _special(a, i_format)
    sign, magnitude, exponent = _decode(a, i_format)
    return _choose(o_format, _round(sign, magnitude, exponent, o_format), nan, inf, sign)


def fp32_to_fp16(a) -> Tensor:
    """RNE(a), binary32 words to binary16 words."""
    return convert(a, FP32, FP16)


def fp16_to_fp32(a) -> Tensor:
    """Exact, binary16 words to binary32 words; any NaN becomes 0x7FC00000."""
    return convert(a, FP16, FP32)


def bits_from_float(values, format: FloatFormat = FP16) -> Tensor:
    """RNE of real numbers (any torch floating type, rounded once) to words of ``format``."""
    values = torch.as_tensor(values)
    if values.dtype == torch.float16:
        return convert(values.view(torch.int16), FP16, format)
    if values.dtype == torch.float32:
        return convert(values.view(torch.int32), FP32, format)
    words = values.to(torch.float64).view(torch.int64)
    exp_bits, frac_bits, bias = _FLOAT64
    exp_max = (1 << exp_bits) - 1
    sign = (words >> 63) & 1
    biased = (words >> frac_bits) & exp_max
    fraction = words & ((1 << frac_bits) - 1)
    special = biased == exp_max
    magnitude = fraction | ((biased != 0).to(torch.int64) << frac_bits)
    exponent = biased.clamp(min=1) - bias - frac_bits
    value = _round(sign, magnitude, exponent, format)
    return _choose(format, value, special & (fraction != 0), special & (fraction == 0), sign)


def float_from_bits(words, format: FloatFormat = FP16) -> Tensor:
    """The values as float64, exact; infinities, NaN and -0 included."""
    words = _words(words, format)
    nan, inf = _special(words, format)
    sign, magnitude, exponent = _decode(words, format)
    _, frac_bits, bias = _FLOAT64
    # A power of two is built from its bits, and the product of it with 24 bits is exact.
    power = ((exponent + bias) << frac_bits).view(torch.float64)
    value = magnitude.to(torch.float64) * power
    value = torch.where(inf, torch.inf, torch.where(nan, torch.nan, value))
    return torch.where(sign == 1, -value, value)


def fixed_point(word) -> Tensor:
    """Finite FP16 words as int64 on grid 2**-24 (magnitude below 2**40).

    A NaN or an infinity reads as a number of the binade above the largest, below 2**41.
    """
    word = _words(word, FP16)
    exponent = (word >> FP16.frac_bits) & FP16.exp_max
    hidden = (exponent != 0).to(torch.int64) << FP16.frac_bits
    magnitude = (word & (1 << FP16.frac_bits) - 1 | hidden) << (exponent - 1).clamp(min=0)
    return torch.where(word >= FP16.sign_bit, -magnitude, magnitude)
