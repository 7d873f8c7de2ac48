"""``y = exp(a)`` of binary16, within 0.51 ulp: FpExp, and ``exp`` for use inside other blocks.

Table and first-order product after the reduction ``a = k * ln(2) + s``. The tables are
``golden.fp16.format.exp_tables``, and the error bound holds by trial of all words.
"""

import dataclasses

from amaranth import Array, Cat, Const, Module, signed
from amaranth.hdl import Value

from golden.fp16.format import FP16, FP32, FloatFormat, exp_tables
from hdl.bits import let
from hdl.fp16.pipeline import Operator, OperatorConfig, compute, operator_configs, word
from hdl.fp16.round import Rounder
from hdl.fp16.shift import shift_right_sticky
from hdl.fp16.unpack import unpack

_INTEGER_BITS = 5  # |a| >= 32 gives 0 or infinity
_K_BITS = 7  # k runs from -46 to 45


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpExpConfig(OperatorConfig):
    """Elaboration-time parameters of FpExp."""

    stages: int = 4
    o: FloatFormat = FP16  # of the result: FP16, or FP32 for the value before it is rounded

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("o", (FP16, FP32))

    @property
    def operands(self) -> dict:
        return {"a": word(FP16, "exponent")}

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "rounded power of e")}


def _look_up(m: Module, name: str, table: tuple[int, ...], index, bits: int) -> Value:
    """An entry of a constant table of 2**len(index) entries."""
    assert len(table) == 1 << len(index)
    return let(m, name, Array(Const(entry, bits) for entry in table)[index])


def exp_phases(o: FloatFormat = FP16) -> list:
    """unpack | fixed point | k | reduce | look up | multiply | count | shift | round; a -> y."""
    t = exp_tables()
    grid = t.GRID
    rest_bits = grid - t.INDEX_BITS
    width = grid + 2  # entries lie below 2.4 and the product below 1/32
    least = min(t.power) - (1 << (grid - 5))  # a lower bound of a power and its product
    flags = ("is_zero", "is_nan", "is_inf")
    rounder = Rounder(
        format=o,
        width=width,
        lowest=-(1 << (_K_BITS - 1)) - grid,
        highest=(1 << (_K_BITS - 1)) - 1 - grid,
        leading=width - least.bit_length() + 1,
    )

    def decode(m: Module, f: dict) -> dict:
        return {"a": unpack(m, f["a"], FP16, "a")}

    def fix(m: Module, f: dict) -> dict:
        raw = f["a"]
        largest = FP16.bias + _INTEGER_BITS - 1  # biased exponent of 16..32
        huge = let(m, "huge", raw.exponent > largest)
        distance = let(m, "distance", (largest - raw.exponent)[: FP16.exp_bits])
        full = Cat(Const(0, grid + _INTEGER_BITS - FP16.precision), raw.significand)
        magnitude, _ = shift_right_sticky(m, full, distance, "fixed")
        # The complement of a negative number is one step too low, which the bound includes.
        return {
            "x": let(m, "x", Cat(magnitude ^ raw.sign.replicate(len(full)), raw.sign).as_signed()),
            "is_zero": let(m, "is_zero", huge & raw.sign),
            "is_nan": raw.is_nan,
            "is_inf": let(m, "is_inf", huge & ~raw.sign),
        }

    def scale(m: Module, f: dict) -> dict:
        """k: 23/16 is near 1 / ln(2)."""
        x = f["x"]
        top = let(m, "top", x >> (grid - t.K_PLACES))
        times_23 = let(m, "times_23", (top << 4) + (top << 3) - top)
        k = let(m, "k", (times_23 >> (t.K_PLACES + 4))[:_K_BITS].as_signed())
        return {"x": x[:grid], "k": k} | {name: f[name] for name in flags}

    def reduce(m: Module, f: dict) -> dict:
        """s, modulo 1."""
        k = f["k"]
        high = _look_up(m, "high", t.high, k[t.LOW_BITS :], grid)
        low = _look_up(m, "low", t.low, k[: t.LOW_BITS], grid)
        s = let(m, "s", (f["x"] - high - low)[:grid])
        return {"s": s, "k": k} | {name: f[name] for name in flags}

    def look_up(m: Module, f: dict) -> dict:
        s = f["s"]
        # The middle of the interval is the origin: the top bit inverted is the sign.
        rest = let(m, "rest", Cat(s[: rest_bits - 1], ~s[rest_bits - 1]).as_signed())
        leading = rest[-t.SQUARE_BITS :]
        square = _look_up(m, "square", t.square, leading, max(t.square).bit_length())
        return {
            "power": _look_up(m, "power", t.power, s[rest_bits:], width),
            "r": let(m, "r", rest + square),
            "k": f["k"],
        } | {name: f[name] for name in flags}

    def multiply(m: Module, f: dict) -> dict:
        power = f["power"]
        product = let(m, "product", power[grid - t.FACTOR_BITS :] * f["r"])
        total = (power + (product >> t.FACTOR_BITS))[:width]
        return {
            "significand": let(m, "value", total & (~f["is_zero"]).replicate(width)),
            "exponent": let(m, "exponent", f["k"] + Const(-grid, signed(6))),
            "sticky": Const(0, 1),
            "sign": Const(0, 1),
            "zero_sign": Const(0, 1),
            "is_nan": f["is_nan"],
            "is_inf": f["is_inf"],
        }

    return [decode, fix, scale, reduce, look_up, multiply, *rounder.phases]


def exp(m: Module, a, o_format: FloatFormat = FP16):
    """exp(a) of a binary16 word, combinational."""
    return compute(m, exp_phases(o_format), {"a": a})["y"]


class FpExp(Operator):
    """``y = exp(a)`` of binary16 words: in binary16 |error| < 0.51 ulp, monotone, exp(0) = 1.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal:

        a                        y
        NaN                      canonical NaN
        -inf, or -32 and below   +0
        +inf, or +32 and above   +inf
        11.09375 and above       +inf in binary16
        below -9.7               subnormal in binary16
        below -17.33             +0 in binary16

    With ``o`` binary32 the result is the same value unrounded, relative error below 2**-15.8.
    Converted to binary16 it is the result in binary16.

    With m the middle of the interval of width 1/64 around s:

        a = k * ln(2) + s,    r = s - m,    y = 2**k * exp(m) * (1 + r + r**2 / 2)

    exp(m), r**2 / 2 and the multiples of ln(2) are tables with 18 fraction bits. Rounding points: a
    to 18 fraction bits, tables, the product to 18 fraction bits, the result (nearest even).
    Registers are spread over unpack | fixed point | k | reduce | look up | multiply | count |
    shift | round.
    Golden: ``golden.fp16.functions.exp``.
    """

    name = "fp16_exp"
    golden = "golden.fp16.functions:exp"
    reference = "tests/fp16/test_functions.py: test_exp_of_every_word_is_within_its_bound"
    default = FpExpConfig()
    configs = operator_configs(default, unrounded=FpExpConfig(o=FP32))

    def phases(self) -> list:
        return exp_phases(self.config.o)
