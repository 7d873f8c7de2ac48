"""Pieces of vectors to the lanes that multiply them (docs/blocks/vq_exchange.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, flag, nested
from golden.fp16.format import FP16
from golden.timing import Timing
from golden.vqllm import timing
from golden.vqllm.config import ExchangeShape
from hdl.block import Block
from hdl.ports import In, Out, Payload
from hdl.stream.link import StreamView
from hdl.vqllm.layouts import vectors_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqExchangeConfig(Config):
    """Lanes and layouts, and when the steps are made."""

    shape: ExchangeShape = nested(ExchangeShape)
    variable: bool = flag(False, "each beat says its pieces, up to those of shape")
    in_place: bool = flag(False, "a step per cycle between registers, before the beats leave")

    def __post_init__(self) -> None:
        if self.variable and self.in_place:
            self._refuse("variable", "false with in_place")

    @property
    def i_layout(self) -> data.StructLayout:
        vectors = vectors_layout(self.shape.lanes, self.shape.size)
        if not self.variable:
            return vectors
        halvings = range(self.shape.pieces.bit_length())
        return Payload(halvings=(halvings, "log2 of the pieces of each vector"), **vectors.parts)

    @property
    def o_layout(self) -> data.StructLayout:
        return vectors_layout(self.shape.lanes, self.shape.need)


TO_TWO = ExchangeShape(size=4, need=2, lanes=16)
TO_ONE = ExchangeShape(size=2, need=1, lanes=4)
WIDEST = ExchangeShape(size=16, need=1, lanes=32)


class VqExchange(Block):
    """Lane i of a mini-group gets piece i of each vector of its mini-group.

    A mini-group is ``pieces`` neighbouring lanes, and each lane brings a vector. Beat k of the
    ``pieces`` beats has vector k of every mini-group, ``need`` elements in each lane.

    Each lane exchanges with lane ^ 1, ^ 2, ..., ^ (pieces - 1). Without ``in_place`` it takes the
    step k ^ i for beat k, straight from the registers of that lane. With ``in_place`` the registers
    swap as shfl_xor does, a step per cycle. Then the beats leave from other registers, so that the
    next vectors are exchanged meanwhile.

    ``variable``: a beat with ``halvings`` h has vectors of 2**h pieces, in the low elements, and
    mini-groups of 2**h lanes.

    A beat of vectors per ``pieces`` cycles. Latency golden.vqllm.timing.exchange, to the first of
    its beats. ``i.ready`` depends combinationally on ``o.ready``.
    Source: VQ-LLM, section VI-B, Algorithm 1. Golden: golden.vqllm.exchange.exchanged.
    """

    golden = "golden.vqllm.exchange:exchanged"
    reference = "tests/vqllm/test_exchange.py: test_beats"
    default = VqExchangeConfig()
    configs: ClassVar = {
        "gptvq2": VqExchangeConfig(shape=TO_TWO),
        "in_place": VqExchangeConfig(in_place=True),
        "variable": VqExchangeConfig(shape=ExchangeShape(size=16, need=2, lanes=16), variable=True),
        "widest": VqExchangeConfig(shape=WIDEST),
        "small": VqExchangeConfig(shape=TO_ONE),
    }

    def __init__(self, config: VqExchangeConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "A vector of each lane."),
                "o": Out(stream.Signature(config.o_layout), "Pieces, a vector of each group."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.exchange(self.config.shape.pieces, self.config.in_place)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        source = self._elaborate_steps(m) if config.in_place else self.i
        held = Signal(config.i_layout, reset_less=True)
        full = Signal()
        at = Signal(range(config.shape.pieces))
        final = Signal()
        m.d.comb += [
            final.eq(at == ((1 << held.halvings) - 1 if config.variable else config.shape.steps)),
            source.ready.eq(~full | (self.o.ready & final)),
            self.o.valid.eq(full),
            self.o.p.last.eq(held.last & final),
        ]
        for lane in range(config.shape.lanes):
            m.d.comb += Value.cast(self.o.p.word[lane]).eq(self._word(held, lane, at))
        with m.If(source.ready):
            m.d.sync += full.eq(source.valid)
        with m.If(source.ready & source.valid):
            m.d.sync += held.eq(source.p)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += at.eq(Mux(final, 0, at + 1))
        return m

    def _word(self, held, lane: int, at) -> Value:
        """The word of ``lane`` in beat ``at``."""
        config, need = self.config, self.config.shape.need
        bits = FP16.bits * need
        if config.in_place:
            return Value.cast(held.word[lane]).word_select(at, bits)
        words = []
        halvings = config.shape.pieces.bit_length() - 1
        for h in range(0 if config.variable else halvings, halvings + 1):
            i = lane % (1 << h)
            pieces = [piece(held, lane - i + k, i, need) for k in range(1 << h)]
            words.append(Cat(pieces).word_select(at[:h], bits) if h else pieces[0])
        return Cat(words).word_select(held.halvings, bits) if config.variable else words[0]

    def _elaborate_steps(self, m: Module) -> StreamView:
        """The vectors, each piece where it is needed; in ``pieces`` cycles."""
        shape, bits = self.config.shape, FP16.bits * self.config.shape.need
        busy = Signal()
        step = Signal(range(shape.pieces))
        done = Signal()
        last = Signal()
        swapped_ready = Signal()
        swapped = StreamView(
            Signal(self.config.i_layout, name="swapped"), busy & done, swapped_ready
        )
        take = Signal()
        m.d.comb += [
            done.eq(step == shape.steps),
            self.i.ready.eq(~busy | (done & swapped.ready)),
            take.eq(self.i.valid & self.i.ready),
            swapped.p.last.eq(last),
        ]
        with m.If(self.i.ready):
            m.d.sync += busy.eq(self.i.valid)
        with m.If(take):
            m.d.sync += [step.eq(0), last.eq(self.i.p.last)]
        with m.Elif(busy & ~done):
            m.d.sync += step.eq(step + 1)
        words = [
            [Signal(bits, name=f"word_{lane}_{n}", reset_less=True) for n in range(shape.pieces)]
            for lane in range(shape.lanes)
        ]
        for lane, own in enumerate(words):
            i = lane % shape.pieces
            for n, word in enumerate(own):
                with m.If(take):
                    m.d.sync += word.eq(piece(self.i.p, lane, n, shape.need))
                if n != i:  # its own piece remains
                    with m.Elif(busy & (step == (i ^ n) - 1)):
                        m.d.sync += word.eq(words[lane - i + n][i])
            m.d.comb += Value.cast(swapped.p.word[lane]).eq(Cat(own))
        return swapped


def piece(payload, lane: int, n: int, need: int) -> Value:
    """Piece ``n`` of the vector of ``lane``."""
    return Value.cast(payload.word[lane]).word_select(n, FP16.bits * need)
