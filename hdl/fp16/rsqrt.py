"""``y = RNE(1 / sqrt(a))``: FpRsqrt, and ``rsqrt`` for use inside other blocks.

IEEE 754-2019 clause 9.2.1 (rSqrt, correctly rounded). One digit recurrence without a division:
with a = n * 4**h, 1 <= n < 4, it finds the bits of the largest q with n * q**2 <= 1. Let the
bits down to weight 2**-j be known, with the remainder w. The next bit is 1 if 2 * w >= t.

    w = 2**j * (1 - n * q**2)
    t = 2 * n * q + n * 2**-(j + 1)
"""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, signed

from golden.fp16.format import FP16, FP32, FloatFormat
from hdl.bits import let
from hdl.fp16.in_turn import OperatorInTurn, Recurrence
from hdl.fp16.pipeline import Operator, UnaryConfig, compute, operator_configs
from hdl.fp16.round import Rounder
from hdl.fp16.unpack import normalise, unpack


@dataclasses.dataclass(frozen=True, kw_only=True)
class FpRsqrtConfig(UnaryConfig):
    """Elaboration-time parameters of FpRsqrt."""

    stages: int = 6


def rsqrt_phases(a: FloatFormat, o: FloatFormat) -> list:
    """unpack | normalise | start | rows | count | shift | round; fields a -> y."""
    rows = _rows(o)

    def row(k: int):
        # w has precision + k fraction bits and t one more; both are below 5.
        places = a.precision + k + 1

        def one_bit(m: Module, f: dict) -> dict:
            w, t, g = f["w"], f["t"], dict(f)
            doubled = Cat(Const(0, 2), w)
            difference = let(m, f"difference_{k}", doubled - t)
            bit = ~difference[-1]
            g["root"] = let(m, f"root_{k}", Cat(bit, f["root"]))
            if k == rows - 1:
                for name in ("w", "t", "n", "n_3"):
                    del g[name]
                return g
            g["w"] = let(m, f"w_{k + 1}", Mux(bit, difference[: places + 3], doubled[: places + 3]))
            # t of the next row: n * 2**-(j + 2) is added three times, or once taken away. Both
            # sums are there when the bit is: a row is one carry chain deep, not two.
            minus_n = ~Cat(f["n"], Const(0, 1)).as_signed()  # but for the 1 that is added
            t_next = Signal(places + 4, name=f"t_{k + 1}")
            t_one = let(m, f"t_one_{k}", (Cat(Const(0, 1), t) + f["n_3"])[: places + 4])
            t_zero = let(m, f"t_zero_{k}", (Cat(Const(1, 1), t) + minus_n)[: places + 4])
            m.d.comb += t_next.eq(Mux(bit, t_one, t_zero))
            g["t"] = t_next
            return g

        return one_bit

    return [*_first(a), *(row(k) for k in range(rows)), *_rounding(a, o)]


def _rows(o: FloatFormat) -> int:
    """q lies in 1/2..1, so its first bit is 1; so many more down to the half step."""
    return o.precision


def _first(a: FloatFormat) -> list:
    """unpack | normalise | start."""

    def decode(m: Module, f: dict) -> dict:
        return {"a": unpack(m, f["a"], a, "a")}

    def align(m: Module, f: dict) -> dict:
        raw = f["a"]
        significand, weight = normalise(m, raw, a, "a")
        n = Mux(weight[0], Cat(Const(0, 1), significand), significand)
        return {
            "n": let(m, "n", n),  # precision - 1 fraction bits
            "weight": let(m, "half_weight", Const(0, signed(2)) - (weight >> 1)),
            "sign": raw.sign,
            "is_zero": let(m, "gives_zero", raw.is_inf),
            "is_nan": let(m, "is_nan", raw.is_nan | (raw.sign & ~raw.is_zero)),
            "is_inf": raw.is_zero,
        }

    def start(m: Module, f: dict) -> dict:
        """q = 1/2: w = 2 - n / 2, and t = 5 * n / 4."""
        n = f["n"]
        w = Signal(a.precision + 1, name="w_0")  # below 2, precision fraction bits
        m.d.comb += w.eq((2 << a.precision) - n)
        return f | {
            "w": w,
            "t": let(m, "t_0", (n + (n << 2))[: a.precision + 4]),
            "n_3": let(m, "n_3", n + (n << 1)),
            "root": Const(1, 1),
        }

    return [decode, align, start]


def _rounding(a: FloatFormat, o: FloatFormat) -> list:
    """count | shift | round, after the last row."""
    rows = _rows(o)
    last = -rows - 1  # weight of the last bit
    low, high = a.grid_exponent, a.largest_grid_exponent + a.frac_bits
    rounder = Rounder(
        format=o,
        width=rows + 1,
        lowest=-(high // 2) + last,
        highest=-(low // 2) + last,
        leading=1,
    )

    def count(m: Module, f: dict) -> dict:
        zero = f["is_zero"]
        # 1 / sqrt(n) has no finite expansion but for n = 1, and there q is all ones: something
        # always follows, and rounding makes 1 of it.
        return rounder.count(
            m,
            {
                "significand": let(m, "root", f["root"] & (~zero).replicate(rows + 1)),
                "exponent": let(m, "exponent", f["weight"] + last),
                "sticky": let(m, "sticky", ~zero),
                "sign": let(m, "infinity_sign", f["sign"] & f["is_inf"]),
                "zero_sign": Const(0, 1),
                "is_nan": f["is_nan"],
                "is_inf": f["is_inf"],
            },
        )

    return [count, rounder.shift, rounder.pack]


def rsqrt(m: Module, a, a_format=FP16, o_format=FP16):
    """``RNE(1 / sqrt(a))``, combinational."""
    return compute(m, rsqrt_phases(a_format, o_format), {"a": a})["y"]


class FpRsqrt(Operator):
    """``y = RNE(1 / sqrt(a))``.

    Throughput 1 word per cycle, latency ``config.stages`` cycles, ``i.ready`` depends
    combinationally on ``o.ready``. Any words are legal. NaN in, or a negative number: canonical
    NaN. Of a zero infinity with its sign, of +infinity +0. Rounding points: one, the result, also
    where the formats differ; the error is at most 0.5 ulp. Registers are spread over unpack |
    normalise | start | one row per bit of the result (precision of o) | count | shift | round.
    Golden: ``golden.fp16.functions.rsqrt``.
    """

    name = "fp16_rsqrt"
    golden = "golden.fp16.functions:rsqrt"
    reference = "tests/fp16/test_functions.py: test_roots_of_every_word"
    default = FpRsqrtConfig()
    configs = operator_configs(default, fp32=FpRsqrtConfig(a=FP32, o=FP32, stages=14))

    def phases(self) -> list:
        return rsqrt_phases(self.config.a, self.config.o)


class FpRsqrtInTurn(OperatorInTurn):
    """FpRsqrt for one word at a time, with fewer rows (hdl.fp16.in_turn).

    All rows have the fraction bits of the last one: ``w`` and ``t`` keep their places, and n moves
    down a place with each row.
    """

    def recurrence(self) -> Recurrence:
        a, o = self.config.a, self.config.o
        rows = _rows(o)
        width = a.precision + rows + 4  # of w and t, both below 5, on the grid of the last row

        def begin(m: Module, f: dict) -> dict:
            # In row 0 w has ``precision`` fraction bits, t and twice w one more; n and 3 n of the
            # next row have one more still.
            return {
                "w": _padded(Cat(Const(0, rows), f["w"]), width),
                "t": _padded(Cat(Const(0, rows - 1), f["t"]), width),
                "n": _padded(Cat(Const(0, rows - 2), f["n"]), width),
                "root": _padded(f["root"], rows + 1),
            }

        def row(m: Module, f: dict, name: str) -> dict:
            n, doubled = f["n"], f["w"] << 1
            difference = let(m, f"difference_{name}", doubled - f["t"])
            bit = ~difference[-1]
            step = Mux(bit, n + (n << 1), -n)
            return {
                "w": let(m, f"w_{name}", Mux(bit, difference, doubled)[:width]),
                "t": let(m, f"t_{name}", (f["t"] + step)[:width]),
                "n": Cat(n[1:], Const(0, 1)),
                "root": Cat(bit, f["root"][:-1]),
            }

        def without_triple(m: Module, f: dict) -> dict:
            return {name: value for name, value in f.items() if name != "n_3"}

        return Recurrence([*_first(a), without_triple], begin, row, rows, _rounding(a, o))


def _padded(value, width: int):
    """An unsigned value with zeros above it."""
    return Cat(value, Const(0, width - len(value)))
