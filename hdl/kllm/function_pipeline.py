"""Element functions, one word per cycle (docs/blocks/kllm_function_pipeline.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.fp16.format import FP16, FP32
from golden.kllm import timing
from golden.kllm.isa import GELU_C0, GELU_C1, Function
from golden.timing import Timing
from hdl.block import Block
from hdl.emit import add
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.compare import is_nan
from hdl.fp16.convert import convert
from hdl.fp16.divide import FpDivide, FpDivideConfig
from hdl.fp16.exp import FpExp, FpExpConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtConfig
from hdl.fp16.sqrt import FpSqrt, FpSqrtConfig

__all__ = ["KllmFunctionPipeline", "KllmFunctionPipelineConfig"]

_ONE16 = FP16.bias << FP16.frac_bits
_ONE32 = FP32.bias << FP32.frac_bits
_NEGATIVE_INFINITY = FP16.sign_bit | FP16.infinity


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmFunctionPipelineConfig(Config):
    """Depth of the operators."""

    # cycles of a sum or a product, 1..8; an exponential has twice, a quotient or root thrice these
    stages: int = 2

    def __post_init__(self) -> None:
        self._check_range("stages", 1, 8)


class KllmFunctionPipeline(Block):
    """``y = function(x)`` of golden.kllm.isa, FP16 words, in order; any words are legal.

        IDENTITY x, RELU, EXP, RECIPROCAL, SQRT, RSQRT     one operator each
        SILU  rne16(x / rne32(1 + exp32(-x)))              -0 for -infinity
        GELU  rne16(x / rne32(1 + exp32(-z))),  z = rne16(x * rne16(rne16(x * x) * C1 + C0))

    One divider serves SILU, GELU and RECIPROCAL. Throughput 1 word per cycle as long as the
    function stays the same. Another function waits until all words before it have left.
    ``i.ready`` depends combinationally on ``o.ready`` and on ``i.payload.function``. Latency:

        IDENTITY, RELU           1 cycle
        EXP                      2 stages
        RECIPROCAL, SQRT, RSQRT  3 stages
        SILU                     6 stages
        GELU                     9 stages

    Source: KLLM, section III-C. Golden: golden.kllm.functional.function.

    Members
    -------
    i : In(stream)   function: Function; x: FP16 word
    o : Out(stream)  y: FP16 word
    """

    meaning: ClassVar[dict[str, str]] = {"i": "Function and operand.", "o": "Results, in order."}

    def __init__(self, config: KllmFunctionPipelineConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(data.StructLayout({"function": 3, "x": 16}))),
                "o": Out(stream.Signature(data.StructLayout({"y": 16}))),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.function_pipeline(self.config.stages)

    def elaborate(self, platform) -> Module:
        m = Module()
        n = self.config.stages
        square = add(m, "square", FpMul(FpMulConfig(stages=n, tag_bits=16)))
        polynomial = add(m, "polynomial", FpFma(FpFmaConfig(stages=n, tag_bits=16)))
        argument = add(m, "argument", FpMul(FpMulConfig(stages=n, tag_bits=16)))
        exp32 = add(m, "exp32", FpExp(FpExpConfig(o=FP32, stages=2 * n, tag_bits=16)))
        increment = add(m, "increment", FpAdd(FpAddConfig(format=FP32, stages=n, tag_bits=16)))
        divide = add(m, "divide", FpDivide(FpDivideConfig(b=FP32, stages=3 * n, tag_bits=1)))
        exp = add(m, "exp", FpExp(FpExpConfig(stages=2 * n)))
        sqrt = add(m, "sqrt", FpSqrt(FpSqrtConfig(stages=3 * n)))
        rsqrt = add(m, "rsqrt", FpRsqrt(FpRsqrtConfig(stages=3 * n)))

        # Words within all belong to one function.
        inside = Signal(range(16 * n + 16))
        current, active = Signal(3), Signal(3)
        x, enter = self.i.p.x, Signal()
        m.d.comb += [
            active.eq(Mux(inside == 0, self.i.p.function, current)),
            enter.eq(self.i.valid & (self.i.p.function == active)),
        ]
        taken, left = self.i.valid & self.i.ready, self.o.valid & self.o.ready
        m.d.sync += inside.eq(inside + taken - left)
        with m.If(taken):
            m.d.sync += current.eq(self.i.p.function)

        def first(function: Function, operator):
            """Operands of ``function`` go into ``operator``."""
            with m.Case(function):
                m.d.comb += [operator.i.valid.eq(enter), ready.eq(operator.i.ready)]

        plain_valid, plain = Signal(), Signal(16, reset_less=True)
        plain_free, ready = Signal(), Signal()
        m.d.comb += [
            plain_free.eq(~plain_valid | self.o.ready),
            self.i.ready.eq(ready & (self.i.p.function == active)),
        ]
        with m.If(plain_free):
            m.d.sync += plain_valid.eq(0)
        with m.Switch(active):
            with m.Case(Function.IDENTITY, Function.RELU):
                m.d.comb += ready.eq(plain_free)
                with m.If(plain_free):
                    m.d.sync += [plain_valid.eq(enter), plain.eq(x)]
                    with m.If(active == Function.RELU):
                        with m.If(is_nan(x)):
                            m.d.sync += plain.eq(FP16.canonical_nan)
                        with m.Elif(x[-1]):
                            m.d.sync += plain.eq(0)
            first(Function.SILU, exp32)
            first(Function.GELU, square)
            first(Function.EXP, exp)
            first(Function.RECIPROCAL, divide)
            first(Function.SQRT, sqrt)
            first(Function.RSQRT, rsqrt)
        m.d.comb += [exp.i.p.a.eq(x), sqrt.i.p.a.eq(x), rsqrt.i.p.a.eq(x)]

        # GELU's argument.
        m.d.comb += [
            square.i.p.a.eq(x),
            square.i.p.b.eq(x),
            square.i.p.tag.eq(x),
            polynomial.i.valid.eq(square.o.valid),
            square.o.ready.eq(polynomial.i.ready),
            polynomial.i.p.a.eq(square.o.p.y),
            polynomial.i.p.b.eq(GELU_C1),
            polynomial.i.p.c.eq(GELU_C0),
            polynomial.i.p.tag.eq(square.o.p.tag),
            argument.i.valid.eq(polynomial.o.valid),
            polynomial.o.ready.eq(argument.i.ready),
            argument.i.p.a.eq(polynomial.o.p.tag),
            argument.i.p.b.eq(polynomial.o.p.y),
            argument.i.p.tag.eq(polynomial.o.p.tag),
            argument.o.ready.eq(exp32.i.ready),
        ]
        # The same exponential and quotient for SILU and GELU.
        minus = FP16.sign_bit
        m.d.comb += [exp32.i.p.a.eq(x ^ minus), exp32.i.p.tag.eq(x)]
        with m.If(active == Function.GELU):
            m.d.comb += [
                exp32.i.valid.eq(argument.o.valid),
                exp32.i.p.a.eq(argument.o.p.y ^ minus),
                exp32.i.p.tag.eq(argument.o.p.tag),
            ]
        m.d.comb += [
            increment.i.valid.eq(exp32.o.valid),
            exp32.o.ready.eq(increment.i.ready),
            increment.i.p.a.eq(exp32.o.p.y),
            increment.i.p.b.eq(_ONE32),
            increment.i.p.tag.eq(exp32.o.p.tag),
            increment.o.ready.eq(divide.i.ready),
            # One over x needs no divider of its own: an FP16 word is one of FP32.
            divide.i.p.a.eq(_ONE16),
            divide.i.p.b.eq(convert(m, x, FP16, FP32)),
        ]
        with m.If(active != Function.RECIPROCAL):
            m.d.comb += [
                divide.i.valid.eq(increment.o.valid),
                divide.i.p.a.eq(increment.o.p.tag),
                divide.i.p.b.eq(increment.o.p.y),
                # Infinity over infinity is NaN, and the limit is 0.
                divide.i.p.tag.eq(increment.o.p.tag == _NEGATIVE_INFINITY),
            ]
        quotient = Mux(divide.o.p.tag, Const(FP16.sign_bit, 16), divide.o.p.y)

        with m.Switch(current):
            with m.Case(Function.IDENTITY, Function.RELU):
                m.d.comb += [self.o.valid.eq(plain_valid), self.o.p.y.eq(plain)]
            with m.Case(Function.SILU, Function.GELU, Function.RECIPROCAL):
                m.d.comb += [
                    self.o.valid.eq(divide.o.valid),
                    self.o.p.y.eq(quotient),
                    divide.o.ready.eq(self.o.ready),
                ]
            for function, operator in (
                (Function.EXP, exp),
                (Function.SQRT, sqrt),
                (Function.RSQRT, rsqrt),
            ):
                with m.Case(function):
                    m.d.comb += [
                        self.o.valid.eq(operator.o.valid),
                        self.o.p.y.eq(operator.o.p.y),
                        operator.o.ready.eq(self.o.ready),
                    ]
        return m
