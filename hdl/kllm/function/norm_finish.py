"""Floating-point part of the norm statistics."""

import dataclasses
from fractions import Fraction

from amaranth import Array, Cat, Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16, FP32
from golden.kllm.format import Status
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.fp16.convert import convert
from hdl.fp16.divide import FpDivide, FpDivideConfig, FpDivideInTurn
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.in_turn import one_at_a_time
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtConfig, FpRsqrtInTurn
from hdl.kllm.function.norm_sums import NORM_SUMS, norm_token_layout
from hdl.ports import In, Out, Payload

_ONE_FP32 = 0x3F800000
_GRID = FP16.grid_exponent
_GRIDS = (_GRID, 2 * _GRID, 0)
_GRID_OF = {"q": 1, "x2": 1, "a": 0, "x1": 0, "length": 2}

norm_result_layout = Payload(
    mean=(FP32.bits, "mean of the token, FP32", FP32),
    rms_reciprocal=(FP32.bits, "1 / RMS of the token, FP32", FP32),
    status=(len(Status), "golden.kllm.format.Status bits of the token", Status),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmNormFinishConfig(Config):
    """Width of the sums and depth of the operators."""

    value_bits: int = bounded(95, 17, 96, "of a sum, signed")
    convert_stages: int = bounded(3, 1, 8, "cycles of the fixed-point conversion")
    fma_stages: int = bounded(4, 1, 8, "cycles of the multiply-add")
    divide_stages: int = bounded(15, 1, 32, "cycles of the quotient")
    rsqrt_stages: int = bounded(15, 1, 32, "cycles of the reciprocal square root")

    @property
    def value_layout(self) -> data.StructLayout:
        return Payload(
            value=(signed(self.value_bits), "exact sum"),
            sum=(range(len(NORM_SUMS)), "its place in NORM_SUMS"),
        )

    @property
    def converter(self) -> FixedToFloatConfig:
        return FixedToFloatConfig(
            width=self.value_bits,
            grid_exponents=_GRIDS,
            o=FP32,
            stages=self.convert_stages,
            tag_bits=len(NORM_SUMS).bit_length(),
        )

    def cycles(self, layer_norm: bool) -> int:
        """Cycles from the cycle after the last word of ``value`` to the word of o."""
        multiply_adds, quotients = (5, 2) if layer_norm else (3, 1)
        products = multiply_adds * (self.fma_stages + 1)
        divisions = quotients * (self.divide_stages + 1)
        return self.convert_stages + products + divisions + self.rsqrt_stages + 1


class KllmNormFinish(Block):
    """Mean and reciprocal RMS of a token from its exact sums, in FP32.

        sum_sq = fma32(s**2, rne32(q), rne32(x2)),  mean_sq = rne32(sum_sq / length)
        RMSNorm:    mean = +0,                                             v = mean_sq
        LayerNorm:  mean = rne32(fma32(s, rne32(a), rne32(x1)) / length),
                    v = max(+0, fma32(-mean, mean, mean_sq))
        rms_reciprocal = rsqrt32(rne32(v + epsilon))

    Every rounding is written above, nearest even. A token of status 0 has five words of ``value``,
    in the order of golden.kllm.norms.ExactSums and the length last. Any other token has none, and
    its words of o are the canonical NaN. One word of o per token, in order.

    status: that of the token, or OVERFLOW where rms_reciprocal is infinite or NaN, v + epsilon
    being 0 or negative.

    One operation after another, on one multiply-add, one divider and one root: one token at a
    time. Values are taken after their token. ``value.ready`` does not depend on ``value.valid``.
    Source: KLLM, section III-C2. Golden: golden.kllm.norms.finish_statistics.

    LayerNorm takes two multiply-adds and a division more than RMSNorm. Decision 0025 says why the
    sums are integers with few roundings.
    """

    tier = Tier.PART
    golden = "golden.kllm.norms:finish_statistics"
    configs = FieldOf("kllm_norm_stats", "finish")

    def __init__(self, config: KllmNormFinishConfig):
        super().__init__(
            config,
            {
                "token": In(
                    stream.Signature(norm_token_layout),
                    "scale, epsilon and kind of norm of a token, status bits",
                ),
                "value": In(
                    stream.Signature(config.value_layout),
                    "the token's sums, if its status is 0: q, x2, a, x1, length",
                ),
                "o": Out(
                    stream.Signature(norm_result_layout),
                    "mean (LayerNorm, else +0), reciprocal RMS or deviation, status bits",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """One token at a time: its words of value, then the operations one by one."""
        rms_cycles = self.config.cycles(layer_norm=False)
        return Timing(
            latency=1 + rms_cycles,
            latency_max=1 + self.config.cycles(layer_norm=True),
            interval=Fraction(len(NORM_SUMS) + 1 + rms_cycles + 1),
            start="a token's last value",
            unit="token of RMSNorm",
            delays=(("from a faulty token to o", 1),),
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        converter = add(m, "converter", FixedToFloat(self.config.converter))
        grids = Array(Const(_GRID_OF[name], 2) for name in NORM_SUMS)
        sums = {name: _register(f"float_{name}") for name in NORM_SUMS}
        collecting = Signal()
        m.d.comb += [
            converter.i.valid.eq(self.value.valid & collecting),
            self.value.ready.eq(converter.i.ready & collecting),
            converter.i.p.value.eq(self.value.p.value),
            converter.i.p.grid.eq(grids[self.value.p.sum]),
            converter.i.p.tag.eq(self.value.p.sum),
            converter.o.ready.eq(1),
        ]
        token = Signal(norm_token_layout, reset_less=True)
        result = Signal(norm_result_layout, reset_less=True)
        m.d.comb += self.o.p.eq(result)
        scale = convert(m, token.s, FP16, FP32)
        mean_sq = _register("mean_sq")
        units = _units(m, self.config, sums["length"], mean_sq)
        with m.If(converter.o.valid):
            for k, name in enumerate(NORM_SUMS):
                with m.If(converter.o.p.tag == k):
                    m.d.sync += sums[name].eq(converter.o.p.y)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.token.ready.eq(1)
                given = self.token.p
                with m.If(self.token.valid):
                    m.d.sync += [
                        token.eq(given),
                        result.status.eq(given.status),
                        result.mean.eq(Mux(given.status == 0, 0, FP32.canonical_nan)),
                        result.rms_reciprocal.eq(FP32.canonical_nan),
                    ]
                    m.next = "OUT"
                    with m.If(given.status == 0):
                        m.next = "COLLECT"
            with m.State("COLLECT"):
                m.d.comb += collecting.eq(1)
                is_last = self.value.p.sum == len(NORM_SUMS) - 1
                with m.If(self.value.valid & self.value.ready & is_last):
                    m.next = "CONVERT"
            with m.State("CONVERT"):
                with m.If(converter.o.valid & (converter.o.p.tag == len(NORM_SUMS) - 1)):
                    m.next = "SQUARE"
            _operations(m, units, token, scale, sums, mean_sq, result)
            with m.State("OUT"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m


def _register(name: str) -> Signal:
    return Signal(FP32.bits, name=name, reset_less=True)


@dataclasses.dataclass(frozen=True)
class _Units:
    """One multiply-add, one divider, one root: ``use`` one in a state until ``done``."""

    use: dict[str, Signal]
    operands: list[Signal]
    done: Signal
    y: dict[str, Value]

    def operate(self, m: Module, unit: str, *given) -> None:
        m.d.comb += self.use[unit].eq(1)
        m.d.comb += [operand.eq(g) for operand, g in zip(self.operands, given, strict=False)]


def _units(m: Module, config: KllmNormFinishConfig, length, mean_sq) -> _Units:
    """The divisor is ``length``, the root's operand ``mean_sq``."""
    fuse = FpFma(FpFmaConfig(a=FP32, b=FP32, c=FP32, o=FP32, stages=config.fma_stages))
    divide = one_at_a_time(
        FpDivideConfig(a=FP32, b=FP32, o=FP32, stages=config.divide_stages), FpDivide,
        FpDivideInTurn,
    )  # fmt: skip
    root = one_at_a_time(
        FpRsqrtConfig(a=FP32, o=FP32, stages=config.rsqrt_stages), FpRsqrt, FpRsqrtInTurn
    )
    units = {
        "fuse": add(m, "fuse", fuse),
        "divide": add(m, "divide", divide),
        "root": add(m, "rsqrt", root),
    }
    issued = Signal()  # the operation of this state is in flight
    operands = [Signal(FP32.bits, name=f"operand_{name}") for name in "abc"]
    use = {name: Signal(name=f"use_{name}") for name in units}
    done = Signal()
    for name, unit in units.items():
        m.d.comb += [unit.i.valid.eq(use[name] & ~issued), unit.o.ready.eq(1)]
        with m.If(use[name]):
            m.d.sync += issued.eq((issued | unit.i.ready) & ~unit.o.valid)
            m.d.comb += done.eq(issued & unit.o.valid)
    m.d.comb += [
        units["fuse"].i.p.a.eq(operands[0]),
        units["fuse"].i.p.b.eq(operands[1]),
        units["fuse"].i.p.c.eq(operands[2]),
        units["divide"].i.p.a.eq(operands[0]),
        units["divide"].i.p.b.eq(length),
        units["root"].i.p.a.eq(mean_sq),
    ]
    return _Units(use, operands, done, {name: unit.o.p.y for name, unit in units.items()})


def _operations(m: Module, units: _Units, token, scale, sums, mean_sq, result) -> None:
    """States SQUARE to ROOT: one operation of the class's equations each."""
    total = _register("total")
    done, y, mean = units.done, units.y["fuse"], result.mean
    with m.State("SQUARE"):
        units.operate(m, "fuse", scale, scale, 0)
        with m.If(done):
            m.d.sync += total.eq(y)
            m.next = "SUM_SQ"
    with m.State("SUM_SQ"):
        units.operate(m, "fuse", total, sums["q"], sums["x2"])
        with m.If(done):
            m.d.sync += total.eq(y)
            m.next = "MEAN_SQ"
    with m.State("MEAN_SQ"):
        units.operate(m, "divide", total)
        with m.If(done):
            m.d.sync += mean_sq.eq(units.y["divide"])
            m.next = "EPSILON"
            with m.If(token.layer_norm):
                m.next = "SUM"
    with m.State("SUM"):
        units.operate(m, "fuse", scale, sums["a"], sums["x1"])
        with m.If(done):
            m.d.sync += total.eq(y)
            m.next = "MEAN"
    with m.State("MEAN"):
        units.operate(m, "divide", total)
        with m.If(done):
            m.d.sync += result.mean.eq(units.y["divide"])
            m.next = "VARIANCE"
    with m.State("VARIANCE"):
        units.operate(m, "fuse", Cat(mean[:-1], ~mean[-1]), mean, mean_sq)
        with m.If(done):
            m.d.sync += mean_sq.eq(Mux(y[-1], 0, y))  # the rounded difference may be below 0
            m.next = "EPSILON"
    with m.State("EPSILON"):
        units.operate(m, "fuse", _ONE_FP32, mean_sq, token.epsilon)
        with m.If(done):
            m.d.sync += mean_sq.eq(y)
            m.next = "ROOT"
    with m.State("ROOT"):
        units.operate(m, "root")
        with m.If(done):
            m.d.sync += result.rms_reciprocal.eq(units.y["root"])
            with m.If(is_special(units.y["root"], FP32)):
                m.d.sync += result.status.eq(Status.OVERFLOW.value)
            m.next = "OUT"
