"""``y = RNE(a * b + c)`` with a format per operand: FpFma, and ``fma`` for use in other blocks.

IEEE 754-2019 clause 5.4.1 (fusedMultiplyAdd). One rounding, at the end.
"""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, signed

from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.pipeline import Operator, OperatorConfig, compute, operator_configs, word
from hdl.fp16.round import Rounder
from hdl.fp16.shift import shift_right_sticky
from hdl.fp16.unpack import unpack


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpFmaConfig(OperatorConfig):
    """Elaboration-time parameters of FpFma."""

    a: FloatFormat = FP16
    b: FloatFormat = FP16
    c: FloatFormat = FP16
    o: FloatFormat = FP16  # of the result

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("a", "b", "c", "o"):
            self._check_format(field)

    @property
    def operands(self) -> dict:
        return {
            "a": word(self.a, "factor"),
            "b": word(self.b, "factor"),
            "c": word(self.c, "addend"),
        }

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "a * b + c, rounded once")}


@dataclasses.dataclass(frozen=True)
class _Window:
    """Bits of the sum: [ c at its highest | gap | product | low ], all widths in bits.

    c does not go further left: the product is then below the half step of the result wherever it
    is. Only its sign and not being zero count. c does go further right. What leaves is
    sticky, and ``low`` bits keep enough of it where the product has few significant ones.
    """

    product: int
    gap: int
    low: int
    c: int

    @property
    def width(self) -> int:
        return self.c + self.gap + self.product + self.low

    @classmethod
    def of(cls, a: FloatFormat, b: FloatFormat, c: FloatFormat, o: FloatFormat) -> "_Window":
        product = a.precision + b.precision
        smallest = a.grid_exponent + b.grid_exponent
        # Leading bits that c surely has where it is at its highest: all, unless a subnormal c
        # can be so far above the smallest product. A difference may lose one of them.
        gap = max(o.precision + 2 - c.precision, 0)
        if c.grid_exponent - smallest > product + gap:
            gap = o.precision + 1
        # Below the product: (significant bits that it has at least, largest weight of its last
        # bit) in each case where c can have bits there.
        cases = [
            (a.precision + b.precision - 1, a.largest_grid_exponent + b.largest_grid_exponent),
            (b.precision, a.grid_exponent + b.largest_grid_exponent),  # a subnormal
            (a.precision, a.largest_grid_exponent + b.grid_exponent),  # b subnormal
        ]
        if c.grid_exponent < smallest:
            cases.append((1, smallest))
        low = 0
        for significant, weight in cases:
            needed = max(o.precision, c.precision) + 2 - significant
            to_half_step = weight - (o.grid_exponent - 1)  # nothing is kept below it
            low = max(low, min(needed, to_half_step))
        return cls(product, gap, low, c.precision)


def fma_phases(a: FloatFormat, b: FloatFormat, c: FloatFormat, o: FloatFormat) -> list:
    """unpack | multiply and align | add | count | shift | round; fields a, b, c -> y."""
    window = _Window.of(a, b, c, o)
    width = window.width
    product_offset = a.grid_exponent + b.grid_exponent - 2
    c_at_left = window.product + window.gap + window.low  # position of c's last bit
    rounder = Rounder(
        format=o,
        width=width + 1,
        lowest=min(product_offset + 2 - window.low, c.grid_exponent - c_at_left),
        highest=max(
            a.largest_grid_exponent + b.largest_grid_exponent - window.low,
            c.largest_grid_exponent - c_at_left,
        ),
    )

    def decode(m: Module, f: dict) -> dict:
        return {
            "a": unpack(m, f["a"], a, "a"),
            "b": unpack(m, f["b"], b, "b"),
            "c": unpack(m, f["c"], c, "c"),
        }

    def multiply_and_align(m: Module, f: dict) -> dict:
        raw_a, raw_b, raw_c = f["a"], f["b"], f["c"]
        product_zero = let(m, "product_zero", raw_a.is_zero | raw_b.is_zero)
        product_sign = let(m, "product_sign", raw_a.sign ^ raw_b.sign)
        product_inf = let(m, "product_inf", raw_a.is_inf | raw_b.is_inf)
        subtract = let(m, "subtract", product_sign ^ raw_c.sign)

        product_weight = let(
            m, "product_weight", raw_a.exponent + raw_b.exponent + Const(product_offset, signed(12))
        )
        c_weight = let(m, "c_weight", raw_c.exponent + Const(c.grid_exponent - 1, signed(12)))
        # A zero product has no exponent of its own: c stays at the left, complete. Nor has a
        # zero c: the product keeps its place.
        distance = let(m, "distance", product_weight - c_weight + (window.product + window.gap))
        at_left = let(m, "at_left", product_zero | ((distance < 0) & ~raw_c.is_zero))
        out = let(m, "out", ~at_left & (distance >= width))
        amount_bits = (width - 1).bit_length()
        amount = let(m, "amount", Mux(at_left, 0, distance[:amount_bits]))
        placed = Cat(Const(0, width - c.precision), raw_c.significand)
        shifted, lost = shift_right_sticky(m, placed, amount, "align")
        nan_product = product_inf & product_zero
        return {
            "product": let(m, "product", raw_a.significand * raw_b.significand),
            "c": let(m, "aligned", shifted & ~out.replicate(width)),
            "sticky": let(m, "c_sticky", Mux(out, ~raw_c.is_zero, lost)),
            "exponent": let(
                m,
                "weight",
                Mux(at_left, c_weight - c_at_left, product_weight - window.low),
            ),
            "subtract": subtract,
            "product_sign": product_sign,
            "c_sign": raw_c.sign,
            "is_nan": let(
                m,
                "is_nan",
                raw_a.is_nan
                | raw_b.is_nan
                | raw_c.is_nan
                | nan_product
                | (product_inf & raw_c.is_inf & subtract),
            ),
            "product_inf": product_inf,
            "c_inf": raw_c.is_inf,
        }

    def total(m: Module, f: dict) -> dict:
        subtract, sticky = f["subtract"], f["sticky"]
        product = Cat(Const(0, window.low), f["product"])
        # A difference is product + ~c + 1; with a sticky fraction the floor of it, one less.
        inverted = let(m, "inverted", f["c"] ^ subtract.replicate(width))
        full = let(m, "full", (product + inverted + (subtract & ~sticky))[: width + 1])
        negative = let(m, "negative", subtract & ~full[width])
        # -x = ~(x - 1), and the sticky fraction of a negative one points up: both are the
        # complement of the sum without the 1. A second adder is faster than a negation.
        without = let(m, "without", (product + inverted)[:width])
        magnitude = Mux(negative, ~without, full[:width])
        significand = Signal(width + 1, name="significand")
        m.d.comb += significand.eq(Cat(magnitude[:width], full[width] & ~subtract))
        sign = Mux(f["product_inf"], f["product_sign"], Mux(f["c_inf"], f["c_sign"], Mux(
            negative, f["c_sign"], f["product_sign"])))
        return {
            "significand": significand,
            "exponent": f["exponent"],
            "sticky": sticky,
            "sign": let(m, "sign", sign),
            "zero_sign": let(m, "zero_sign", f["product_sign"] & f["c_sign"]),
            "is_nan": f["is_nan"],
            "is_inf": let(m, "is_inf", f["product_inf"] | f["c_inf"]),
        }

    return [decode, multiply_and_align, total, *rounder.phases]


def fma(m: Module, a, b, c, a_format=FP16, b_format=FP16, c_format=FP16, o_format=FP16):
    """``RNE(a * b + c)``, combinational."""
    phases = fma_phases(a_format, b_format, c_format, o_format)
    return compute(m, phases, {"a": a, "b": b, "c": c})["y"]


class FpFma(Operator):
    """``y = RNE(a * b + c)``, the product exact.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. NaN in, infinity times zero (whatever c
    is), or infinity minus infinity: canonical NaN. An exact difference of zero is +0. Rounding
    points: one, the result, also where the formats differ. Registers are spread over
    unpack | multiply and align | add | count | shift | round.
    Golden: ``golden.fp16.ops.fma``.
    """

    name = "fp16_fma"
    golden = "golden.fp16.ops:fma"
    reference = "tests/fp16/test_golden.py: test_fma_equals_softfloat"
    default = FpFmaConfig()
    configs = operator_configs(default, fp32_sum=FpFmaConfig(a=FP16, b=FP32, c=FP32, o=FP32))

    def phases(self) -> list:
        return fma_phases(self.config.a, self.config.b, self.config.c, self.config.o)
