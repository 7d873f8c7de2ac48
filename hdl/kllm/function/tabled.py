"""Functions ``y = x * r`` with r from a table."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal, signed

from golden.config import Config, nested
from golden.fp16.format import FP16
from golden.kllm.config import FunctionShape
from golden.kllm.format import FactorTable, factor_table
from golden.kllm.isa import Function
from hdl.bits import let
from hdl.block import Tier
from hdl.fp16.pipeline import Operator, OperatorConfig, word
from hdl.fp16.round import Rounder
from hdl.fp16.shift import shift_right_sticky
from hdl.fp16.unpack import unpack

FUNCTION_BITS = 4  # of golden.kllm.isa.Function
_T = FactorTable
_INDEX = _T.WHOLE_BITS + _T.INDEX_BITS
_REST = _T.GRID - _T.INDEX_BITS
_CARRIED = ("sign", "exponent", "significand", "is_nan", "is_inf")


def _three() -> FunctionShape:
    return FunctionShape(tanh=True, gelu_erf=True, quick_gelu=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmTabledConfig(OperatorConfig):
    """The functions, and the depth."""

    extra: FunctionShape = nested(_three, "the functions", FunctionShape)
    stages: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.extra.tabled:
            self._refuse("extra", "a FunctionShape with one of tanh, gelu_erf, quick_gelu")

    @property
    def operands(self) -> dict:
        function = (FUNCTION_BITS, "golden.kllm.isa.Function, one of the block's", Function)
        return {"function": function, "a": word(FP16, "operand")}

    @property
    def results(self) -> dict:
        return {"y": word(FP16, "result")}


class KllmTabled(Operator):
    """``y = rne16(a * r)``, r = 1 - w(|a|), or w(|a|) of GELU_ERF and QUICK_GELU for a < 0.

        TANH        a * tanh(|a|) / |a|       |error| < 0.51 ulp, odd, monotone
        GELU_ERF    a * Phi(a)                |error| < 0.62 ulp
        QUICK_GELU  a * sigmoid(1.702 a)      |error| < 0.67 ulp

    w is a quadratic piece of golden.kllm.format.factor_table, which has the equations. Throughput
    1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends combinationally on
    ``o.ready``. Any words are legal: NaN gives 0x7E00, TANH of an infinity 1 with its sign, and the
    others -0 of -infinity and +infinity of +infinity.

    Rounding points: |a| cut to 18 fraction bits, the tables, and the two products of a piece, both
    cut to the grid of a sum. The exact product of 11 and 31 bits is rounded once.
    The bounds hold by trial of all words (tests/kllm/test_functional.py). Registers are spread over
    unpack | fixed point | look up | curve | slope | product | count | shift | round.

    Golden: golden.kllm.functional.function. Source: KLLM, section III-C; decision 0351.
    """

    tier = Tier.PART
    golden = "golden.kllm.functional:function"
    default = KllmTabledConfig()
    configs: ClassVar[dict[str, Config]] = {
        "all": KllmTabledConfig(),
        "combinational": KllmTabledConfig(stages=0),
        "tanh": KllmTabledConfig(extra=FunctionShape(tanh=True), stages=4, tag_bits=8),
    }

    def phases(self) -> list:
        lowest = 1 + FP16.grid_exponent - 1 - _T.FRACTION
        rounder = Rounder(
            format=FP16,
            width=FP16.precision + _T.FRACTION + 1,
            lowest=lowest,
            highest=lowest + FP16.exp_max - 2,
        )
        return [_decode, _fix, self._look_up, _curve, _slope, _product, *rounder.phases]

    def _look_up(self, m: Module, f: dict) -> dict:
        """The piece, and what is not x * r with it: an infinity's product, TANH beyond its end."""
        functions = self.config.extra.tabled
        function, index = f["function"], f["u"][_REST:]
        signals = [Signal(signed(bits), name=f"c{n}") for n, bits in enumerate(_widths(functions))]
        with m.Switch(function):
            for each in functions:
                table = factor_table(each).pieces
                rows = (*table, *[(0, 0, 0)] * ((1 << _INDEX) - len(table)))
                with m.Case(each):
                    for n, signal in enumerate(signals):
                        m.d.comb += signal.eq(Array(row[n] for row in rows)[index])
        is_tanh = let(m, "is_tanh", function == Function.TANH)
        end = factor_table(Function.TANH).end << _T.INDEX_BITS
        is_one = let(m, "is_one", is_tanh & (f["huge"] | (index >= end)))
        one = 1 << FP16.frac_bits
        made = {name: f[name] for name in _CARRIED}
        return made | {
            "t": let(m, "t", Cat(f["u"][: _REST - 1], ~f["u"][_REST - 1]).as_signed()),
            **{f"c{n}": let(m, f"piece_{n}", Mux(f["huge"], 0, c)) for n, c in enumerate(signals)},
            "keeps": let(m, "keeps", f["sign"] & ~is_tanh),
            "significand": let(m, "significand", Mux(is_one, one, f["significand"])),
            "exponent": let(m, "exponent", Mux(is_one, FP16.bias, f["exponent"])),
            "is_inf": let(m, "is_inf", f["is_inf"] & ~f["sign"] & ~is_tanh),
        }


def _widths(functions: tuple[Function, ...]) -> list[int]:
    """Bits of each coefficient, its sign included."""
    pieces = [piece for each in functions for piece in factor_table(each).pieces]
    return [
        1 + max(max(c, ~c).bit_length() for c in column) for column in zip(*pieces, strict=True)
    ]


def _decode(m: Module, f: dict) -> dict:
    raw = unpack(m, f["a"], FP16, "a")
    return {"function": f["function"]} | {name: raw[name] for name in _CARRIED}


def _fix(m: Module, f: dict) -> dict:
    """u: |a| in fixed point; huge: it is beyond all pieces."""
    largest = FP16.bias + _T.WHOLE_BITS - 1  # biased exponent of 8..16
    distance = let(m, "distance", (largest - f["exponent"])[: FP16.exp_bits])
    full = Cat(Const(0, _T.GRID + _T.WHOLE_BITS - FP16.precision), f["significand"])
    u, _ = shift_right_sticky(m, full, distance, "fixed")
    return f | {"u": u, "huge": let(m, "huge", f["exponent"] > largest)}


def _curve(m: Module, f: dict) -> dict:
    slope = let(m, "slope", f["c1"] + ((f["c2"] * f["t"]) >> _T.CURVE_SHIFT))
    rest = ("c0", "t", "keeps", *_CARRIED)
    return {"slope": slope} | {name: f[name] for name in rest}


def _slope(m: Module, f: dict) -> dict:
    bits = _T.FRACTION + 1
    w = let(m, "w", (f["c0"] + ((f["slope"] * f["t"]) >> _T.SLOPE_SHIFT))[:bits])
    r = let(m, "r", Mux(f["keeps"], w, ((1 << _T.FRACTION) - w)[:bits]))
    return {"r": r} | {name: f[name] for name in _CARRIED}


def _product(m: Module, f: dict) -> dict:
    weight = FP16.grid_exponent - 1 - _T.FRACTION
    return {
        "significand": let(m, "product", f["significand"] * f["r"]),
        "exponent": let(m, "weight", f["exponent"] + Const(weight, signed(8))),
        "sticky": Const(0, 1),
        "sign": f["sign"],
        "zero_sign": f["sign"],
        "is_nan": f["is_nan"],
        "is_inf": f["is_inf"],
    }
