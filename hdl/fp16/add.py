"""``y = RNE(a + b)`` in one format: FpAdd, and ``add`` for use inside other blocks.

IEEE 754-2019 clause 5.4.1. One rounding, at the end.
"""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, signed

from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.pipeline import Operator, OperatorConfig, compute, operator_configs, word
from hdl.fp16.round import Rounder
from hdl.fp16.shift import shift_right_sticky
from hdl.fp16.unpack import unpack

_EXTRA = 3  # half step, one position of cancellation, sticky


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpAddConfig(OperatorConfig):
    """Elaboration-time parameters of FpAdd."""

    format: FloatFormat = FP16  # of a, b and y

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_format("format")

    @property
    def operands(self) -> dict:
        return {"a": word(self.format, "addend"), "b": word(self.format, "addend")}

    @property
    def results(self) -> dict:
        return {"y": word(self.format, "rounded sum")}


def add_phases(format: FloatFormat) -> list:
    """unpack and order | align | add | count | shift | round; fields a, b -> y."""
    width = format.precision + _EXTRA + 1
    rounder = Rounder(
        format=format,
        width=width,
        lowest=format.grid_exponent - _EXTRA,
        highest=format.largest_grid_exponent - _EXTRA,
    )

    def order(m: Module, f: dict) -> dict:
        # The larger magnitude first: the difference is then never negative.
        swap = let(m, "swap", f["a"][:-1] < f["b"][:-1])
        large = unpack(m, let(m, "large", Mux(swap, f["b"], f["a"])), format, "large")
        small = unpack(m, let(m, "small", Mux(swap, f["a"], f["b"])), format, "small")
        subtract = let(m, "subtract", large.sign ^ small.sign)
        return {
            "large": large.significand,
            "small": small.significand,
            "exponent": large.exponent,
            "distance": let(m, "apart", (large.exponent - small.exponent)[: format.exp_bits]),
            "subtract": subtract,
            "sign": large.sign,
            "zero_sign": let(m, "zero_sign", large.sign & small.sign),
            # The larger word is a NaN if any is, and infinite if any is and there is no NaN.
            "is_nan": let(m, "is_nan", large.is_nan | (small.is_inf & subtract)),
            "is_inf": large.is_inf,
        }

    def align(m: Module, f: dict) -> dict:
        extended = Cat(Const(0, _EXTRA), f["small"])
        small, sticky = shift_right_sticky(m, extended, f["distance"], "align")
        # Ones lost are jammed into the last bit, two below the half step. They are only lost at
        # distances where a difference loses at most one leading bit.
        aligned = let(m, "aligned", Cat(small[0] | sticky, small[1:]))
        kept = ("large", "exponent", "subtract", "sign", "zero_sign", "is_nan", "is_inf")
        return {"small": aligned} | {name: f[name] for name in kept}

    def total(m: Module, f: dict) -> dict:
        subtract = f["subtract"]
        large = Cat(Const(0, _EXTRA), f["large"])
        significand = Signal(width, name="significand")
        inverted = f["small"] ^ subtract.replicate(width - 1)
        # large - small = large + ~small + 1 within width - 1 bits; the carry counts only in a sum.
        full = let(m, "full", large + inverted + subtract)
        m.d.comb += significand.eq(Cat(full[: width - 1], full[width - 1] & ~subtract))
        exponent = let(
            m,
            "weight",
            Cat(f["exponent"], Const(0, 1)).as_signed()
            + Const(format.grid_exponent - 1 - _EXTRA, signed(12)),
        )
        kept = ("sign", "zero_sign", "is_nan", "is_inf")
        return {
            "significand": significand,
            "exponent": exponent,
            "sticky": Const(0, 1),
        } | {name: f[name] for name in kept}

    return [order, align, total, *rounder.phases]


def add(m: Module, a, b, format: FloatFormat = FP16):
    """``RNE(a + b)``, combinational."""
    return compute(m, add_phases(format), {"a": a, "b": b})["y"]


class FpAdd(Operator):
    """``y = RNE(a + b)``.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. NaN in, or infinity minus infinity:
    canonical NaN. ``x + -x`` is +0. Rounding points: one, the result. Registers are spread over
    unpack and order | align | add | count | shift | round. Golden: ``golden.fp16.ops.add``.
    """

    name = "fp16_add"
    golden = "golden.fp16.ops:add"
    reference = "tests/fp16/test_golden.py: test_add_equals_softfloat"
    default = FpAddConfig()
    configs = operator_configs(default, fp32=FpAddConfig(format=FP32))

    def phases(self) -> list:
        return add_phases(self.config.format)


# The default format is binary16.
Fp16Add, Fp16AddConfig = FpAdd, FpAddConfig
