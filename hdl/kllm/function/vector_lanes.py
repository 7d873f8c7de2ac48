"""The multipliers and adders of the functional unit."""

import dataclasses

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, choice, flag, power_of_two
from golden.fp16.format import FP16, FP32
from golden.kllm.format import Operation
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.timing import vector_lanes
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.fp16.compare import is_nan
from hdl.fp16.convert import convert
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.kllm.engine import ROW
from hdl.kllm.function.pipeline import FUNCTIONS
from hdl.ports import In, Out, Payload

_ONE = FP16.bias << FP16.frac_bits
_MINUS_ONE = FP16.sign_bit | _ONE
_MINUS_ZERO = FP16.sign_bit
# Those of a row of a and one of b.
BINARIES = (Operation.SUM, Operation.PRODUCT, Operation.MINIMUM, Operation.MAXIMUM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmVectorLanesConfig(Config):
    """Number of lanes."""

    width: int = power_of_two(8, 1, 16, "elements per cycle")
    functions: int = choice(1, FUNCTIONS, "elements per transfer of element")
    bounds: bool = flag(False, "MINIMUM and MAXIMUM")

    @property
    def beats(self) -> int:
        """Cycles that a row of 16 takes."""
        return ROW_ELEMENTS // self.width

    @property
    def beat_layout(self) -> data.StructLayout:
        return Payload(
            word=(
                data.ArrayLayout(FP16.bits, self.width),
                "FP16 words, the first element first",
                FP16,
            )
        )

    @property
    def element_layout(self) -> data.StructLayout:
        return Payload(
            x=(
                data.ArrayLayout(FP16.bits, self.functions),
                "FP16 words, the first element first",
                FP16,
            )
        )


class KllmVectorLanes(Block):
    """Rows of 16 words in, beats of ``width`` results out, by ``operation``.

        COPY        rne16(a)                              SCORE    a, to score
        SUM         rne16(scalar * a + b)                 ELEMENT  a, to element, some at a time
        PRODUCT     rne16(a * b)                          SCALE    rne16(weight * scale)
        DIFFERENCE  rne16(a - scalar)                     MINIMUM, MAXIMUM  of a and b
        ROTATE      of two rows of each: rne16(a0 b0 - a1 b1), then rne16(a1 b0 + a0 b1)

    Each is one form, ``rne16(f_a * f_b + m_a * m_b)``, whose second product is exact. So a result
    is rounded once. SUM, PRODUCT, MINIMUM, MAXIMUM and ROTATE take a row of b with each row of a.
    Without ``bounds`` the lanes never get MINIMUM or MAXIMUM. The parent keeps ``operation``,
    ``scalar`` and ``scale`` constant while words are inside.

    Latency: row to its first result 5 cycles, weight to its result 4. Throughput: ``width``
    elements per cycle, ELEMENT ``functions`` per cycle. ``a.ready`` and ``b.ready`` depend
    combinationally on ``o.ready``, ``score.ready``, ``element.ready`` and the other's valid,
    ``weight.ready`` on ``o.ready``. NaN is canonical but for SCORE and ELEMENT. Source: KLLM,
    section III-C. Golden: golden.kllm.phases.lanes.

    A lane is an exact product FP16 x FP16 to FP32 and a fused FP16 x FP32 + FP32 to FP16. A row
    takes 16 / width cycles, and the next one follows without a gap. ROTATE takes two rows of each
    operand and gives two rows. Decision 0034 says why there is one form for every operation.
    """

    tier = Tier.PART
    golden = "golden.kllm.phases:lanes"
    configs = FieldOf("kllm_functional_unit", "lanes")

    def __init__(self, config: KllmVectorLanesConfig):
        row = stream.Signature(Payload(word=(ROW, "16 FP16 words, element 0 first", FP16)))
        beat = stream.Signature(config.beat_layout)
        super().__init__(
            config,
            {
                "operation": In(Operation, "What is computed, constant while words are inside."),
                "scalar": In(FP16.bits, "Factor of SUM, subtrahend of DIFFERENCE.", FP16),
                "scale": In(FP32.bits, "Factor of SCALE, FP32.", FP32),
                "a": In(row, "Rows of the first operand."),
                "b": In(row, "Rows of the second operand."),
                "weight": In(beat, "Words to scale."),
                "score": Out(beat, "Words of a, for the maximum."),
                "element": Out(
                    stream.Signature(config.element_layout), "Words of a, functions at a time."
                ),
                "o": Out(beat, "Results."),
            },
        )

    @property
    def timing(self) -> Timing:
        return vector_lanes(self.config.width, self.config.functions)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        width, beats, functions = config.width, config.beats, config.functions
        operation = self.operation
        pair = Signal()
        single = Signal()
        scores = Signal()
        scales = Signal()
        uses_b = Signal()
        m.d.comb += [
            pair.eq(operation == Operation.ROTATE),
            single.eq(operation == Operation.ELEMENT),
            scores.eq(operation == Operation.SCORE),
            scales.eq(operation == Operation.SCALE),
        ]
        with m.Switch(operation):
            with m.Case(*BINARIES, Operation.ROTATE):
                m.d.comb += uses_b.eq(1)

        # The rows in work: one of each operand, or two of each in ROTATE.
        low_valid = Signal()
        low_a = Signal(ROW, reset_less=True)
        low_b = Signal(ROW, reset_less=True)
        work_valid = Signal()
        work_ready = Signal()
        work_a = Signal(ROW, reset_less=True)
        work_b = Signal(ROW, reset_less=True)
        upper_a = Signal(ROW, reset_less=True)
        upper_b = Signal(ROW, reset_less=True)
        beat = Signal(5)  # of the rows in work
        last_beat = Signal()
        is_low = Signal()
        takes = Signal()
        load = Signal()
        most = Mux(single, ROW_ELEMENTS // functions - 1, Mux(pair, 2 * beats - 1, beats - 1))
        m.d.comb += [
            last_beat.eq(beat == most),
            is_low.eq(pair & ~low_valid),
            takes.eq(is_low | ~work_valid | (work_ready & last_beat)),
            self.a.ready.eq(takes & (self.b.valid | ~uses_b)),
            self.b.ready.eq(takes & self.a.valid & uses_b),
            load.eq(self.a.valid & self.a.ready),
        ]
        with m.If(work_valid & work_ready):
            m.d.sync += beat.eq(Mux(last_beat, 0, beat + 1))
            with m.If(last_beat):
                m.d.sync += work_valid.eq(0)
        with m.If(load & is_low):
            m.d.sync += [low_valid.eq(1), low_a.eq(self.a.p.word), low_b.eq(self.b.p.word)]
        with m.Elif(load):
            m.d.sync += [
                low_valid.eq(0),
                work_valid.eq(1),
                beat.eq(0),
                work_a.eq(Mux(pair, low_a, self.a.p.word)),
                work_b.eq(Mux(pair, low_b, self.b.p.word)),
            ]
            with m.If(pair):
                m.d.sync += [upper_a.eq(self.a.p.word), upper_b.eq(self.b.p.word)]

        # Where the beat goes.
        lanes_valid = Signal()
        lanes_ready = Signal()
        slices = [_slice(row, beat, width) for row in (work_a, work_b, upper_a, upper_b)]
        m.d.comb += [
            self.score.valid.eq(work_valid & scores),
            self.element.valid.eq(work_valid & single),
            Value.cast(self.element.p.x).eq(Cat(_slice(work_a, beat, functions))),
            lanes_valid.eq(Mux(scales, self.weight.valid, work_valid & ~scores & ~single)),
            self.weight.ready.eq(scales & lanes_ready),
            work_ready.eq(
                Mux(single, self.element.ready, Mux(scores, self.score.ready, lanes_ready))
            ),
        ]
        m.d.comb += [self.score.p.word[lane].eq(slices[0][lane]) for lane in range(width)]
        is_upper = Signal()  # the second row of a pair
        m.d.comb += is_upper.eq(pair & (beat >= beats))
        for lane, words in enumerate(zip(*slices, strict=True)):
            factors = _factors(m, lane, operation, self.scalar, is_upper, words)
            if config.bounds:
                _bound(m, lane, operation, words[0], words[1], factors)
            with m.If(scales):
                m.d.comb += factors.f_a.eq(self.weight.p.word[lane])
            i_ready, o_valid, y = _lane(
                m, lane, lanes_valid, factors, scales, self.scale, self.o.ready
            )
            m.d.comb += self.o.p.word[lane].eq(y)
            if lane == 0:  # all lanes move together
                m.d.comb += [lanes_ready.eq(i_ready), self.o.valid.eq(o_valid)]
        return m


def _slice(row, beat: Signal, width: int) -> list[Value]:
    """The ``width`` elements of a row that this beat takes."""
    beats = ROW_ELEMENTS // width
    if beats == 1:
        return [row[lane] for lane in range(width)]
    group = beat[: (beats - 1).bit_length()]
    return [Array(row[lane + width * g] for g in range(beats))[group] for lane in range(width)]


_factors_layout = data.StructLayout(dict.fromkeys(("f_a", "f_b", "m_a", "m_b"), FP16.bits))


def _factors(m: Module, lane: int, operation, scalar, is_upper, words) -> data.View:
    """Operands of ``f_a * f_b + m_a * m_b`` for words a, b of a row, and a', b' of the other.

    A sum and a copy are of this form too: m_a * 1 is exact, and x * y + -0 is x * y.
    """
    a, b, other, sin = words
    factors = Signal(_factors_layout, name=f"factors_{lane}")
    m.d.comb += [
        factors.f_a.eq(a), factors.f_b.eq(_ONE), factors.m_a.eq(_MINUS_ZERO),
        factors.m_b.eq(_ONE),
    ]  # fmt: skip
    with m.Switch(operation):
        with m.Case(Operation.ROTATE):
            # x_i cos - x_{i+h} sin, then x_{i+h} cos + x_i sin
            m.d.comb += [
                factors.f_a.eq(Mux(is_upper, other, a)),
                factors.f_b.eq(b),
                factors.m_a.eq(Mux(is_upper, a, other)),
                factors.m_b.eq(Cat(sin[:15], sin[15] ^ ~is_upper)),
            ]
        with m.Case(Operation.DIFFERENCE):
            m.d.comb += [factors.m_a.eq(scalar), factors.m_b.eq(_MINUS_ONE)]
        with m.Case(Operation.PRODUCT):
            m.d.comb += factors.f_b.eq(b)
        with m.Case(Operation.SUM):
            m.d.comb += [factors.f_b.eq(scalar), factors.m_a.eq(b)]
    return factors


def _bound(m: Module, lane: int, operation, a, b, factors) -> None:
    """MINIMUM and MAXIMUM: f_a is a or b, and a NaN of both if there is one."""
    lesser = Signal(name=f"lesser_{lane}")  # in the order in which -0 is below +0
    first = Signal(name=f"first_{lane}")
    with m.If(a[-1] != b[-1]):
        m.d.comb += lesser.eq(a[-1])
    with m.Else():
        m.d.comb += lesser.eq((a[:-1] < b[:-1]) ^ a[-1])
    m.d.comb += first.eq(is_nan(a) | (~is_nan(b) & (lesser ^ (operation == Operation.MAXIMUM))))
    with m.Switch(operation):
        with m.Case(Operation.MINIMUM, Operation.MAXIMUM):
            m.d.comb += factors.f_a.eq(Mux(first, a, b))


def _lane(m: Module, lane: int, valid, factors, scales, scale, ready):
    """(ready in, valid out, y): ``rne16(f_a * f_b + m_a * m_b)``, f_b being ``scale`` if scales."""
    config = FpMulConfig(o=FP32, stages=1, tag_bits=2 * FP16.bits)
    product = add(m, f"lane_{lane}_product", FpMul(config))
    fuse = add(m, f"lane_{lane}_fuse", FpFma(FpFmaConfig(b=FP32, c=FP32, stages=3)))
    m.d.comb += [
        product.i.valid.eq(valid),
        product.i.p.a.eq(factors.m_a),
        product.i.p.b.eq(factors.m_b),
        product.i.p.tag.eq(Cat(factors.f_a, factors.f_b)),
        fuse.i.valid.eq(product.o.valid),
        product.o.ready.eq(fuse.i.ready),
        fuse.i.p.a.eq(product.o.p.tag[:16]),
        fuse.i.p.b.eq(Mux(scales, scale, convert(m, product.o.p.tag[16:], FP16, FP32))),
        fuse.i.p.c.eq(product.o.p.y),
        fuse.o.ready.eq(ready),
    ]
    return product.i.ready, fuse.o.valid, fuse.o.p.y
