"""Element functions, one word per cycle."""

import dataclasses
from typing import ClassVar

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16, FP32
from golden.kllm.config import FunctionShape
from golden.kllm.isa import GELU_C0, GELU_C1, Function
from golden.kllm.timing import function_cycles
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.compare import is_nan
from hdl.fp16.convert import convert
from hdl.fp16.divide import FpDivide, FpDivideConfig
from hdl.fp16.exp import FpExp, FpExpConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.fp16.rsqrt import FpRsqrt, FpRsqrtConfig
from hdl.fp16.sqrt import FpSqrt, FpSqrtConfig
from hdl.kllm.function.tabled import FUNCTION_BITS, KllmTabled, KllmTabledConfig
from hdl.ports import In, Out, Payload

__all__ = ["FUNCTIONS", "FUNCTION_BITS", "KllmFunctionPipeline", "KllmFunctionPipelineConfig"]

FUNCTIONS = (1, 2, 4, 8)  # pipelines that take the elements of a row side by side

_ONE16 = FP16.bias << FP16.frac_bits
_ONE32 = FP32.bias << FP32.frac_bits
_NEGATIVE_INFINITY = FP16.sign_bit | FP16.infinity


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmFunctionPipelineConfig(Config):
    """Depth of the operators."""

    stages: int = bounded(
        2,
        1,
        8,
        "cycles of a sum or a product; an exponential has twice, a quotient or root thrice these",
    )
    extra: FunctionShape = nested(FunctionShape, "functions beyond the first eight")


class KllmFunctionPipeline(Block):
    """``y = function(x)`` of golden.kllm.isa, FP16 words, in order; any words are legal.

        IDENTITY x, RELU, EXP, RECIPROCAL, SQRT, RSQRT     one operator each
        SILU  rne16(x / rne32(1 + exp32(-x)))              -0 for -infinity
        GELU  rne16(x / rne32(1 + exp32(-z))),  z = rne16(x * rne16(rne16(x * x) * C1 + C0))
        TANH, GELU_ERF, QUICK_GELU     those of KllmTabled, where ``extra`` has them

    One divider serves SILU, GELU and RECIPROCAL. Throughput 1 word per cycle as long as the
    function stays the same. Another function waits until all words before it have left.
    ``i.ready`` depends combinationally on ``o.ready`` and on ``i.payload.function``. Latency:

        IDENTITY, RELU           1 cycle
        EXP                      2 stages
        RECIPROCAL, SQRT, RSQRT  3 stages
        TANH, GELU_ERF and QUICK_GELU  3 stages
        SILU                     6 stages
        GELU                     9 stages

    Source: KLLM, section III-C. Golden: golden.kllm.functional.function.

    C0 is 0x3E62 and C1 is 0x2C91: 2 sqrt(2 / pi), and 0.044715 of it. GELU in its tanh form is x
    times the sigmoid of z. exp32 is the exponential before its rounding to FP16. NaN gives 0x7E00,
    but IDENTITY passes its word unchanged. RELU of -0 is +0. SILU and GELU of -infinity are -0,
    although the quotient alone would be NaN. Decision 0032 says why SILU uses FP32.

    Over all words (tests/kllm/test_functional.py) SILU is within 0.51 ulp. GELU is within 1.1 ulp
    for x > 0, and within 13 ulp for x < 0, where results are small. GELU rounds z to FP16 before
    the exponential: its error beyond half an ulp is below 5e-4.
    """

    tier = Tier.PART
    golden = "golden.kllm.functional:function"
    default = KllmFunctionPipelineConfig()
    configs: ClassVar = {"table1": KllmFunctionPipelineConfig()}

    def __init__(self, config: KllmFunctionPipelineConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(
                        Payload(
                            function=(FUNCTION_BITS, "golden.kllm.isa.Function", Function),
                            x=(16, "operand, FP16", FP16),
                        )
                    ),
                    "Function and operand.",
                ),
                "o": Out(
                    stream.Signature(Payload(y=(16, "result, FP16", FP16))), "Results, in order."
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """Words of one function follow each other; ``function_cycles`` has each function's."""
        cycles = function_cycles(self.config.stages).values()
        return Timing(latency=min(cycles), latency_max=max(cycles))

    def elaborate(self, platform) -> Module:
        m = Module()
        n = self.config.stages
        exp32 = add(m, "exp32", FpExp(FpExpConfig(o=FP32, stages=2 * n, tag_bits=16)))
        divide = add(m, "divide", FpDivide(FpDivideConfig(b=FP32, stages=3 * n, tag_bits=1)))
        exp = add(m, "exp", FpExp(FpExpConfig(stages=2 * n)))
        sqrt = add(m, "sqrt", FpSqrt(FpSqrtConfig(stages=3 * n)))
        rsqrt = add(m, "rsqrt", FpRsqrt(FpRsqrtConfig(stages=3 * n)))
        x = self.i.p.x
        active, current, enter = _active(m, self.i, self.o, n)
        plain_valid, plain, plain_free = _plain(m, self.o.ready, x, active, enter)
        square, argument = _gelu_argument(m, n, x)

        ready = Signal()
        m.d.comb += self.i.ready.eq(ready & (self.i.p.function == active))
        with m.Switch(active):
            with m.Case(Function.IDENTITY, Function.RELU):
                m.d.comb += ready.eq(plain_free)
            for function, operator in (
                (Function.SILU, exp32),
                (Function.GELU, square),
                (Function.EXP, exp),
                (Function.RECIPROCAL, divide),
                (Function.SQRT, sqrt),
                (Function.RSQRT, rsqrt),
            ):
                with m.Case(function):
                    m.d.comb += [operator.i.valid.eq(enter), ready.eq(operator.i.ready)]
        if self.config.extra.tabled:
            self._tabled(m, active, current, enter, ready)
        m.d.comb += [exp.i.p.a.eq(x), sqrt.i.p.a.eq(x), rsqrt.i.p.a.eq(x)]
        increment = add(m, "increment", FpAdd(FpAddConfig(format=FP32, stages=n, tag_bits=16)))
        _exponential(m, x, active == Function.GELU, argument, exp32)
        quotient = _quotient(m, x, active != Function.RECIPROCAL, exp32, increment, divide)

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

    def _tabled(self, m: Module, active, current, enter, ready) -> None:
        """Adds the functions with tables."""
        extra = dataclasses.replace(self.config.extra, bounds=False)
        config = KllmTabledConfig(extra=extra, stages=3 * self.config.stages)
        tabled = add(m, "tabled", KllmTabled(config))
        m.d.comb += [tabled.i.p.a.eq(self.i.p.x), tabled.i.p.function.eq(active)]
        with m.Switch(active):
            with m.Case(*extra.tabled):
                m.d.comb += [tabled.i.valid.eq(enter), ready.eq(tabled.i.ready)]
        with m.Switch(current):
            with m.Case(*extra.tabled):
                m.d.comb += [
                    self.o.valid.eq(tabled.o.valid),
                    self.o.p.y.eq(tabled.o.p.y),
                    tabled.o.ready.eq(self.o.ready),
                ]


def _active(m: Module, i, o, stages: int) -> tuple[Signal, Signal, Signal]:
    """(active, current, enter). Words within all belong to one function.

    active: the function of a word that may enter; current: of the words within; enter: ``i`` offers
    a word of the active function.
    """
    inside = Signal(range(16 * stages + 16))
    current = Signal(FUNCTION_BITS)
    active = Signal(FUNCTION_BITS)
    enter = Signal()
    m.d.comb += [
        active.eq(Mux(inside == 0, i.p.function, current)),
        enter.eq(i.valid & (i.p.function == active)),
    ]
    taken, left = i.valid & i.ready, o.valid & o.ready
    m.d.sync += inside.eq(inside + taken - left)
    with m.If(taken):
        m.d.sync += current.eq(i.p.function)
    return active, current, enter


def _plain(m: Module, o_ready, x, active, enter) -> tuple[Signal, Signal, Signal]:
    """(valid, word, free): IDENTITY and RELU, one register."""
    valid = Signal()
    word = Signal(16, reset_less=True)
    free = Signal()
    m.d.comb += free.eq(~valid | o_ready)
    with m.If(free):
        m.d.sync += valid.eq(0)
    with m.Switch(active):
        with m.Case(Function.IDENTITY, Function.RELU):
            with m.If(free):
                m.d.sync += [valid.eq(enter), word.eq(x)]
                with m.If(active == Function.RELU):
                    with m.If(is_nan(x)):
                        m.d.sync += word.eq(FP16.canonical_nan)
                    with m.Elif(x[-1]):
                        m.d.sync += word.eq(0)
    return valid, word, free


def _gelu_argument(m: Module, stages: int, x):
    """(operator that takes x, operator that gives z with x as its tag): GELU's argument z."""
    square = add(m, "square", FpMul(FpMulConfig(stages=stages, tag_bits=16)))
    polynomial = add(m, "polynomial", FpFma(FpFmaConfig(stages=stages, tag_bits=16)))
    argument = add(m, "argument", FpMul(FpMulConfig(stages=stages, tag_bits=16)))
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
    ]
    return square, argument


def _exponential(m: Module, x, is_gelu, argument, exp32) -> None:
    """``exp32`` of -x, or of the negated result of ``argument``; its tag is x."""
    minus = FP16.sign_bit
    m.d.comb += [
        argument.o.ready.eq(exp32.i.ready),
        exp32.i.p.a.eq(x ^ minus),
        exp32.i.p.tag.eq(x),
    ]
    with m.If(is_gelu):
        m.d.comb += [
            exp32.i.valid.eq(argument.o.valid),
            exp32.i.p.a.eq(argument.o.p.y ^ minus),
            exp32.i.p.tag.eq(argument.o.p.tag),
        ]


def _quotient(m: Module, x, is_sigmoid, exp32, increment, divide) -> Value:
    """y: x over 1 + the exponential for SILU and GELU, one over x for RECIPROCAL."""
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
    with m.If(is_sigmoid):
        m.d.comb += [
            divide.i.valid.eq(increment.o.valid),
            divide.i.p.a.eq(increment.o.p.tag),
            divide.i.p.b.eq(increment.o.p.y),
            # Infinity over infinity is NaN, and the limit is 0.
            divide.i.p.tag.eq(increment.o.p.tag == _NEGATIVE_INFINITY),
        ]
    return Mux(divide.o.p.tag, Const(FP16.sign_bit, 16), divide.o.p.y)
