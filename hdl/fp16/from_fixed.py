"""``y = RNE(value * 2**grid_exponent)``: FixedToFloat, and ``from_fixed`` for other blocks."""

import dataclasses

from amaranth import Array, Const, Module, Mux, Signal, signed, unsigned
from amaranth.hdl import ShapeLike

from golden.config import bounded
from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.pipeline import Operator, OperatorConfig, compute, operator_configs, word
from hdl.fp16.round import Rounder

_GRID_RANGE = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedToFloatConfig(OperatorConfig):
    """Elaboration-time parameters of FixedToFloat."""

    width: int = bounded(64, 2, 96, "bits of the two's complement value")
    grid_exponents: tuple[int, ...] = (0,)  # weights of its last bit, 1..64 of -1024..1024
    o: FloatFormat = FP32  # of the result

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_format("o")
        grids = self.grid_exponents
        if (
            not isinstance(grids, tuple)
            or not 1 <= len(grids) <= 64
            or not all(type(grid) is int and abs(grid) <= _GRID_RANGE for grid in grids)
        ):
            self._refuse("grid_exponents", f"1 to 64 integers in -{_GRID_RANGE}..{_GRID_RANGE}")

    @property
    def operands(self) -> dict:
        value = {"value": (signed(self.width), "integer, a multiple of the grid")}
        if len(self.grid_exponents) == 1:
            return value
        grid = (range(len(self.grid_exponents)), "index into grid_exponents: the grid of value")
        return value | {"grid": grid}

    @property
    def results(self) -> dict:
        return {"y": word(self.o, "rounded value")}


def from_fixed_phases(shape: ShapeLike, grid_exponents: tuple[int, ...], o: FloatFormat) -> list:
    """magnitude | count | shift | round; fields value, grid (where there are several) -> y."""
    rounder = Rounder(
        format=o, width=shape.width, lowest=min(grid_exponents), highest=max(grid_exponents)
    )

    def magnitude(m: Module, f: dict) -> dict:
        value = f["value"]
        if shape.signed:
            sign = let(m, "sign", value[-1])
            absolute = Signal(shape.width, name="absolute")
            m.d.comb += absolute.eq(Mux(sign, -value, value))
        else:
            sign, absolute = Const(0, 1), let(m, "absolute", value)
        if len(grid_exponents) == 1:
            exponent = Const(grid_exponents[0], signed(12))
        else:
            choices = Array(Const(grid, signed(12)) for grid in grid_exponents)
            exponent = let(m, "weight", choices[f["grid"]])
        return {
            "significand": absolute,
            "exponent": exponent,
            "sticky": Const(0, 1),
            "sign": sign,
            "zero_sign": Const(0, 1),
            "is_nan": Const(0, 1),
            "is_inf": Const(0, 1),
        }

    return [magnitude, *rounder.phases]


def from_fixed(m: Module, value, grid_exponents=(0,), grid=None, o_format: FloatFormat = FP16):
    """``RNE(value * 2**grid_exponents[grid])`` of a signed or unsigned value, combinational."""
    shape = value.shape() if hasattr(value, "shape") else unsigned(len(value))
    fields = {"value": value} | ({} if grid is None else {"grid": grid})
    return compute(m, from_fixed_phases(shape, tuple(grid_exponents), o_format), fields)["y"]


class FixedToFloat(Operator):
    """``y = RNE(value * 2**grid_exponents[grid])``.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Zero gives +0, too large gives infinity, NaN never comes.
    A ``grid`` beyond the last exponent reads as the last. Rounding points: one, the result.
    Registers are spread over magnitude | count | shift | round.
    Golden: ``golden.fp16.ops.from_fixed``.
    """

    name = "fp_from_fixed"
    golden = "golden.fp16.ops:from_fixed"
    reference = "tests/fp16/test_golden.py: test_from_fixed_equals_fractions"
    default = FixedToFloatConfig(width=64, grid_exponents=(-48,))
    configs = operator_configs(
        default, grids=FixedToFloatConfig(width=40, grid_exponents=(-24, 0, 7), o=FP16)
    )

    def phases(self) -> list:
        return from_fixed_phases(
            signed(self.config.width), self.config.grid_exponents, self.config.o
        )
