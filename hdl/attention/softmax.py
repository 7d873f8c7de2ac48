"""The core of softmax: maximum, weights, their exact sum (docs/blocks/attention_softmax.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.attention.timing import softmax
from golden.config import Config, bounded, power_of_two
from golden.fp16.format import FP16, FP32
from golden.timing import Timing
from hdl.attention.parts import LOWEST_KEY, WEIGHT_BITS, fixed_point, inside, largest
from hdl.block import Block
from hdl.children import add
from hdl.fp16.divide import FpReciprocal, FpReciprocalConfig, FpReciprocalInTurn
from hdl.fp16.exp import FpExp, FpExpConfig
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.in_turn import one_at_a_time
from hdl.kinds import fixed
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload

_EXP_STAGES = 4
_TO_FLOAT_STAGES = 2
_RECIPROCAL_STAGES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSoftmaxConfig(Config):
    """Length of a row, and scores per beat."""

    width: int = power_of_two(8, 1, 16, "scores per beat")
    elements: int = bounded(4096, 16, 65535, "longest row with its padding, a multiple of width")

    def __post_init__(self) -> None:
        if self.elements % self.width:
            self._refuse("elements", f"a multiple of width {self.width}")

    @property
    def buffer(self) -> MemoryConfig:
        """The weights of one row."""
        return MemoryConfig(depth=self.elements // self.width, width=FP16.bits * self.width)

    @property
    def sum_bits(self) -> int:
        """Bits of the sum of the weights of a row."""
        return WEIGHT_BITS + self.elements.bit_length()

    @property
    def row_layout(self) -> data.StructLayout:
        beats = range(self.buffer.depth + 1)
        return Payload(
            length=(range(self.elements + 1), "elements of the row that count"),
            beats=(beats, "beats of the row, its padding included"),
        )

    @property
    def beat_layout(self) -> data.StructLayout:
        return Payload(
            word=(data.ArrayLayout(FP16.bits, self.width), "FP16 words, one per element", FP16)
        )

    @property
    def total_layout(self) -> data.StructLayout:
        return Payload(
            sum=(self.sum_bits, "sum of the weights in units of 2**-24", fixed(-24)),
            reciprocal=(FP32.bits, "1 / sum, binary32", FP32),
        )


class AttentionSoftmax(Block):
    """Softmax of one row after another, without the two operations that need a multiplier.

        m = max s;  e = exp(d) of d = rne16(s - m);  S = sum e, exact on the grid 2**-24
        r = rne32(1 / rne32(S));  the parent computes d, and rne16(e * r) where it divides

    A row passes in five steps, each a transfer or a packet of ``beats`` words of ``width`` words:
    ``row``, ``score``, ``maximum``, ``difference``, ``total``, ``weight``. Elements at ``length``
    and beyond do not count, and their weight is +0. A row with ``bad`` ends with ``maximum``.
    ``bad``: an element is NaN or +infinity, or all are -infinity. The word of a bad row is
    unspecified. The order of words finds the maximum, with -0 below +0.

    Contract of the parent: 1 <= length <= width * beats <= elements.

    Latency: last score to ``maximum`` 3 cycles, last difference to ``total`` 19 cycles, ``total``
    to the first weight 2 cycles. Throughput: one beat per cycle in each packet. ``score`` is
    ready after ``row``, ``difference`` after ``maximum``, for ``beats`` words without a pause. No
    combinational path leads from an input to an output.
    Source: KLLM, section III-C; MILLION, section IV. Golden: golden.attention.softmax.partial.
    """

    golden = "golden.attention.softmax:partial"
    reference = "tests/attention/test_softmax.py: test_partial_is_the_sum_of_its_weights"
    default = AttentionSoftmaxConfig()
    configs: ClassVar = {
        "table1": AttentionSoftmaxConfig(),
        "small": AttentionSoftmaxConfig(width=4, elements=256),
    }

    def __init__(self, config: AttentionSoftmaxConfig):
        beat = stream.Signature(config.beat_layout)
        super().__init__(
            config,
            {
                "row": In(stream.Signature(config.row_layout), "Begins a row."),
                "score": In(beat, "Scores of the row."),
                "maximum": Out(
                    stream.Signature(
                        Payload(
                            word=(16, "FP16 word", FP16),
                            bad=(1, "the row has no result and ends here"),
                        )
                    ),
                    "Largest score, one per row.",
                ),
                "difference": In(beat, "rne16(score - maximum) of each score."),
                "total": Out(
                    stream.Signature(config.total_layout),
                    "Sum of the weights and its reciprocal, one per row that is not bad.",
                ),
                "weight": Out(beat, "Weights, not normalised."),
            },
        )

    @property
    def timing(self) -> Timing:
        return softmax()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        row = Signal(config.row_layout, reset_less=True)
        beats = range(config.buffer.depth + 1)
        # beats moved, and weighed or compared
        count = Signal(beats)
        judged = Signal(beats)
        all_counted = Signal()
        all_judged = Signal()
        m.d.comb += [all_counted.eq(count == row.beats), all_judged.eq(judged == row.beats)]
        places = inside(judged, row.length, config.width)

        # First pass: the largest of a beat, then of all.
        seek = Signal()
        best = Signal(FP16.bits, reset_less=True)
        best_valid = Signal()
        # a NaN or +infinity
        best_wrong = Signal(reset_less=True)
        wrong = Signal()
        top = Signal(FP16.bits)  # key of the largest so far; 0 lies below that of every number
        key, is_wrong = largest(m, self.score.p.word, places)
        m.d.comb += seek.eq(self.score.valid & self.score.ready)
        m.d.sync += [best_valid.eq(seek), best.eq(key), best_wrong.eq(is_wrong)]
        with m.If(best_valid):
            m.d.sync += [top.eq(Mux(top < best, best, top)), wrong.eq(wrong | best_wrong)]
        m.d.comb += [
            self.maximum.p.word.eq(Mux(top[15], top ^ FP16.sign_bit, ~top)),
            self.maximum.p.bad.eq(wrong | (top <= LOWEST_KEY)),
        ]

        # Second pass: weights into the buffer, and added up.
        buffer = add(m, "buffer", Memory1R1W(config.buffer))
        total = Signal(config.sum_bits)
        partial_valid = Signal()
        weigh = Signal()
        m.d.comb += weigh.eq(self.difference.valid & self.difference.ready)
        weights, weights_valid = _weights(m, weigh, self.difference.p.word, places)
        addends = [fixed_point(m, f"addend_{lane}", word) for lane, word in enumerate(weights)]
        partial = Signal(WEIGHT_BITS + (config.width - 1).bit_length(), reset_less=True)
        m.d.comb += [
            buffer.write_en.eq(weights_valid),
            buffer.write_addr.eq(judged),
            buffer.write_data.eq(weights),
        ]
        m.d.sync += [partial_valid.eq(weights_valid), partial.eq(sum(addends[1:], addends[0]))]
        with m.If(partial_valid):
            m.d.sync += total.eq(total + partial)
        reciprocal_start, reciprocal = _reciprocal(m, total)
        m.d.comb += [self.total.p.sum.eq(total), self.total.p.reciprocal.eq(reciprocal.p.y)]

        # Third pass: the RAM's output is the register that ``weight`` shows.
        shown = Signal()
        fetch = Signal()
        m.d.comb += [
            buffer.read_en.eq(fetch),
            buffer.read_addr.eq(count),
            self.weight.valid.eq(shown),
            self.weight.payload.eq(buffer.read_data),
        ]
        with m.If(~shown | self.weight.ready):
            m.d.sync += shown.eq(fetch)
        with m.If(seek | weigh | fetch):
            m.d.sync += count.eq(count + 1)
        with m.If(seek | weights_valid):
            m.d.sync += judged.eq(judged + 1)

        with m.FSM():
            with m.State("ROW"):
                m.d.comb += self.row.ready.eq(1)
                with m.If(self.row.valid):
                    m.d.sync += [row.eq(self.row.payload), top.eq(0), wrong.eq(0)]
                    m.d.sync += [count.eq(0), judged.eq(0)]
                    m.next = "SCORES"
            with m.State("SCORES"):
                m.d.comb += self.score.ready.eq(~all_counted)
                with m.If(all_judged & ~best_valid):
                    m.next = "MAXIMUM"
            with m.State("MAXIMUM"):
                m.d.comb += self.maximum.valid.eq(1)
                m.d.sync += [count.eq(0), judged.eq(0), total.eq(0)]
                with m.If(self.maximum.ready):
                    m.next = "DIFFERENCES"
                    with m.If(self.maximum.p.bad):
                        m.next = "ROW"
            with m.State("DIFFERENCES"):
                m.d.comb += self.difference.ready.eq(~all_counted)
                with m.If(all_judged & ~partial_valid):
                    m.next = "SUM"
            with m.State("SUM"):
                m.d.comb += reciprocal_start.eq(1)
                m.next = "TOTAL"
            with m.State("TOTAL"):
                m.d.comb += [
                    self.total.valid.eq(reciprocal.valid),
                    reciprocal.ready.eq(self.total.ready),
                ]
                m.d.sync += count.eq(0)
                with m.If(reciprocal.valid & self.total.ready):
                    m.next = "WEIGHTS"
            with m.State("WEIGHTS"):
                m.d.comb += fetch.eq(~all_counted & (~shown | self.weight.ready))
                with m.If(all_counted & (~shown | self.weight.ready)):
                    m.next = "ROW"
        return m


def _weights(m: Module, start: Value, words, places: list[Value]) -> tuple[data.View, Value]:
    """(weights, valid): exponentials of the ``words`` of ``start``, +0 for those not inside.

    A beat takes _EXP_STAGES cycles and is never stalled.
    """
    weights = Signal(data.ArrayLayout(FP16.bits, len(places)))
    valid = Signal(name="weights_valid")
    for lane, counts in enumerate(places):
        power = add(m, f"exponential_{lane}", FpExp(FpExpConfig(stages=_EXP_STAGES)))
        m.d.comb += [
            power.i.valid.eq(start),
            power.i.p.a.eq(words[lane]),
            power.o.ready.eq(1),
            weights[lane].eq(Mux(counts, power.o.p.y, 0)),
        ]
        if lane == 0:  # all lanes move together
            m.d.comb += valid.eq(power.o.valid)
    return weights, valid


def _reciprocal(m: Module, total: Signal) -> tuple[Signal, stream.Interface]:
    """(start, stream of y): ``rne32(1 / rne32(total * 2**-24))`` of the sum at ``start``."""
    config = FixedToFloatConfig(
        width=len(total) + 1,
        grid_exponents=(FP16.grid_exponent,),
        o=FP32,
        stages=_TO_FLOAT_STAGES,
    )
    to_float = add(m, "to_float", FixedToFloat(config))
    divider = FpReciprocalConfig(a=FP32, o=FP32, stages=_RECIPROCAL_STAGES)
    reciprocal = add(
        m, "reciprocal", one_at_a_time(divider, FpReciprocal, FpReciprocalInTurn)
    )
    start = Signal(name="reciprocal_start")
    m.d.comb += [
        to_float.i.valid.eq(start),
        to_float.i.p.value.eq(Cat(total, Const(0, 1)).as_signed()),
        reciprocal.i.valid.eq(to_float.o.valid),
        to_float.o.ready.eq(reciprocal.i.ready),
        reciprocal.i.p.a.eq(to_float.o.p.y),
    ]
    return start, reciprocal.o
