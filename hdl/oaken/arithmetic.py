"""Sums, steps and quotients of Oaken's lanes, as phases of a pipeline.

Operands are magnitudes: FP16 words without the sign, 15 bits. All values are multiples of 2**-24,
and no sum is above 131008. So a sum's exponent field 31 is free for the numbers from 65536 up.
``rne11`` (11 significant bits, never finer than 2**-24) is a 15-bit word too.
Every function works on signals of one module and names them by its last argument.
"""

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value

from golden.fp16.format import FP16
from golden.oaken.format import Threshold
from hdl.bits import let
from hdl.fp16.round import Rounder
from hdl.fp16.shift import leading_zeros, shift_left, shift_right_sticky

MAGNITUDE_BITS = FP16.bits - 1
_EXTRA = 3  # guard, round and sticky bit below a significand
TOTAL_BITS = FP16.precision + _EXTRA + 1  # with the carry
QUOTIENT_BITS = 6  # of a distance over its step, which is below 64
_PLACES = {15: 5, 16: 4, 31: 6}  # so that a normal quotient is exact or has the rounding bit


def unpacked(m: Module, word, name: str) -> tuple[Value, Value]:
    """(significand, exponent) of a magnitude; exponent 1 for zero and subnormals, no specials."""
    normal = let(m, f"{name}_normal", word[FP16.frac_bits :].any())
    significand = Cat(word[: FP16.frac_bits], normal)
    exponent = let(m, f"{name}_exponent", Mux(normal, word[FP16.frac_bits :], 1))
    return significand, exponent


def maximum(m: Module, a, b, name: str) -> Signal:
    """The larger of two magnitudes: their order is that of their words."""
    return let(m, name, Mux(a > b, a, b))


def larger_smaller(m: Module, a, b, name: str) -> tuple[Signal, Signal]:
    swap = let(m, f"{name}_swap", b > a)
    return let(m, f"{name}_larger", Mux(swap, b, a)), let(m, f"{name}_smaller", Mux(swap, a, b))


def total(m: Module, larger, smaller, subtract, name: str) -> tuple[Signal, Signal]:
    """``larger +- smaller``: (TOTAL_BITS with a sticky last bit, exponent of ``larger``)."""
    significand, exponent = unpacked(m, larger, f"{name}_l")
    small, small_exponent = unpacked(m, smaller, f"{name}_s")
    distance = Signal(FP16.exp_bits, name=f"{name}_distance")
    m.d.comb += distance.eq(exponent - small_exponent)
    shifted, sticky = shift_right_sticky(
        m, Cat(Const(0, _EXTRA), small), distance, f"{name}_aligned"
    )
    addend = Cat(shifted[0] | sticky, shifted[1:])
    large = Cat(Const(0, _EXTRA), significand)
    result = Signal(TOTAL_BITS, name=f"{name}_total")
    m.d.comb += result.eq(Mux(subtract, large - addend, large + addend))
    return result, exponent


def rounded(m: Module, value, exponent, name: str) -> Signal:
    """rne11 of ``total``: a magnitude."""
    zeros, nonzero = leading_zeros(m, value, f"{name}_zeros")
    # With the carry bit on top the exponent is one more: shifted that far, it is a subnormal.
    normal = let(m, f"{name}_is_normal", nonzero & (zeros <= exponent))
    distance = let(m, f"{name}_left", Mux(normal, zeros, exponent[: len(zeros)]))
    shifted = shift_left(m, value, distance, f"{name}_normalised")
    rest = TOTAL_BITS - FP16.precision
    kept = shifted[rest:]
    up = let(m, f"{name}_up", shifted[rest - 1] & (shifted[: rest - 1].any() | kept[0]))
    # The hidden bit is added to the exponent less 1; so is the carry of the increment.
    less_one = Signal(FP16.exp_bits, name=f"{name}_less_one")
    m.d.comb += less_one.eq(Mux(normal, exponent - zeros, 0))
    word = Signal(MAGNITUDE_BITS, name=f"{name}_rounded")
    m.d.comb += word.eq(Cat(Const(0, FP16.frac_bits), less_one) + kept + up)
    return word


STEP_WIDTH = 13  # of the largest quotient: 2047 << 5 over 15
STEP_ROUNDER = Rounder(
    format=FP16,
    width=STEP_WIDTH,
    lowest=FP16.grid_exponent - max(_PLACES.values()),
    highest=FP16.largest_grid_exponent + 1 - min(_PLACES.values()),
)


def divide_by_top(m: Module, value_range, top: int, name: str) -> dict:
    """Operand of STEP_ROUNDER for ``range / top``, top = 16 or 2**b - 1, without a divider.

    Division by 16 changes the exponent only. In digits of b bits, ``floor(x / top)`` is the sum of
    all ``x >> k*b`` (k = 1, 2, ..) and of ``floor(digit sum / top)``. The remainder is that of the
    digit sum.
    """
    places, bits = _PLACES[top], top.bit_length()
    significand, exponent = unpacked(m, value_range, f"{name}_range")
    offset = Const(FP16.grid_exponent - 1 - places, signed(8))
    operand = {
        "exponent": let(m, f"{name}_weight", exponent + offset),
        "sign": Const(0, 1),
        "zero_sign": Const(0, 1),
        "is_nan": Const(0, 1),
        "is_inf": Const(0, 1),
    }
    if top == 1 << places:
        padded = let(m, f"{name}_padded", Cat(significand, Const(0, STEP_WIDTH - len(significand))))
        return operand | {"significand": padded, "sticky": Const(0, 1)}
    x = let(m, f"{name}_x", Cat(Const(0, places), significand))
    starts = range(0, len(x), bits)
    digits = let(m, f"{name}_digits", sum(x[k : k + bits] for k in starts))
    largest = sum((1 << len(x[k : k + bits])) - 1 for k in starts) // top
    carry = let(m, f"{name}_carry", sum(digits >= k * top for k in range(1, largest + 1)))
    whole = Cat(*(digits == k * top for k in range(largest + 1))).any()
    quotient = Signal(STEP_WIDTH, name=f"{name}_quotient")
    m.d.comb += quotient.eq(sum((x[k:] for k in starts[1:]), carry))
    return operand | {"significand": quotient, "sticky": let(m, f"{name}_sticky", ~whole)}


def quantized_steps(m: Module, ranges: dict, name: str) -> dict:
    """First phase of ``step(range, top)``; ranges: name -> (magnitude, top)."""
    out = {}
    for each, (value_range, top) in ranges.items():
        operand = divide_by_top(m, value_range, top, f"{name}_{each}")
        counted = STEP_ROUNDER.count(m, operand)
        out |= {f"{each}_{key}": value for key, value in counted.items()}
        out[f"{each}_some"] = let(m, f"{name}_{each}_some", value_range.any())
    return out


def rounded_steps(m: Module, f: dict, names, name: str) -> dict:
    """Second phase: ``max(rne16(range / top), 2**-24)``, and 0 for a range of 0: magnitudes."""
    out = {}
    for each in names:
        state = {key: f.pop(f"{each}_{key}") for key in _ROUNDER_KEYS}
        word = STEP_ROUNDER.pack(m, STEP_ROUNDER.shift(m, state))["y"][:MAGNITUDE_BITS]
        least = f.pop(f"{each}_some") & ~word.any()
        out[each] = let(m, f"{name}_{each}_step", word | least)
    return out


_ROUNDER_KEYS = ("significand", "sticky", "distance", "exponent", "sign", "is_nan", "is_inf")
STATE = ("clamp", "rest", "digits")  # of a division under way


def align(m: Module, d, divisor, step_exponent, bits: int, name: str) -> dict:
    """State of ``d / step`` for a code of ``bits`` bits; d / step < 64.

    d: magnitude; divisor, step_exponent: ``unpacked`` step. ``clamp``: the quotient is 2**bits or
    more, and no digit will be right. Else ``rest`` is below the divisor, and ``digits``, the last
    of them a fraction, follow it. No bit is lost that matters: a step of more than twice the weight
    of d is normal, and d below half of it.
    """
    significand, exponent = unpacked(m, d, f"{name}_d")
    distance = let(
        m,
        f"{name}_far",
        step_exponent - exponent + Const(QUOTIENT_BITS, signed(FP16.exp_bits)),
    )
    farthest = QUOTIENT_BITS + 2
    amount = Signal(range(farthest + 1), name=f"{name}_amount")
    m.d.comb += amount.eq(Mux(distance > farthest, farthest, distance))
    dividend = let(m, f"{name}_dividend", Cat(Const(0, QUOTIENT_BITS + 1), significand) >> amount)
    rest = dividend[bits + 1 :]
    return {
        "clamp": let(m, f"{name}_clamp", rest >= divisor),
        "rest": rest[: FP16.precision],
        "digits": dividend[: bits + 1],
    }


def step_digits(m: Module, f: dict, divisor, steps: int, name: str) -> dict:
    """``steps`` digits by restoring division; what leaves ``digits`` on top comes in below."""
    f = dict(f)
    for k in range(steps):
        trial = let(m, f"{name}_trial_{k}", Cat(f["digits"][-1], f["rest"]))
        fits = let(m, f"{name}_fits_{k}", trial >= divisor)
        rest = Signal(FP16.precision, name=f"{name}_rest_{k}")
        m.d.comb += rest.eq(Mux(fits, trial - divisor, trial))
        f["rest"] = rest
        f["digits"] = Cat(fits, f["digits"][:-1])
    return f


def finish(m: Module, f: dict, bits: int, name: str) -> Signal:
    """The quotient to nearest even, at most 2**bits - 1."""
    half, floor = f["digits"][0], f["digits"][1:]
    up = let(m, f"{name}_up", half & (f["rest"].any() | floor[0]))
    code = Signal(bits, name=f"{name}_code")
    with m.If(f["clamp"] | floor.all()):
        m.d.comb += code.eq((1 << bits) - 1)
    with m.Else():
        m.d.comb += code.eq(floor + up)
    return code


def thresholds_valid(m: Module, words, name: str = "thresholds") -> Signal:
    """Four FP16 words (golden.oaken.format.Threshold): finite, OUTER_LOW < INNER_LOW <= 0 <=
    INNER_HIGH < OUTER_HIGH; -0 equals +0. Golden: golden.oaken.quantize.thresholds_valid."""
    sound = []
    for inner, outer, sign in (
        (Threshold.INNER_LOW, Threshold.OUTER_LOW, 1),
        (Threshold.INNER_HIGH, Threshold.OUTER_HIGH, 0),
    ):
        near, far = Value.cast(words[inner]), Value.cast(words[outer])
        near_magnitude, far_magnitude = near[:MAGNITUDE_BITS], far[:MAGNITUDE_BITS]
        sound += [
            (near[-1] == sign) | (near_magnitude == 0),
            far[-1] == sign,
            far_magnitude > near_magnitude,
            # The outer one is the larger: where it is finite, both are.
            ~far[FP16.frac_bits : -1].all(),
        ]
    return let(m, f"{name}_valid", Cat(*sound).all())
