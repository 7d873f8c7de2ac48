"""Codes of tokens from words of memory."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.axi.format import Resp
from hdl.block import Block
from hdl.kinds import index_of
from hdl.ports import In, Out, Payload
from hdl.vqllm.attend.config import VqAttentionConfig


class VqCodeBeats(Block):
    """A beat has the codes of a token and a pass. ``ends``: the beat that is shown ends the pass.

    What its word has beyond it is dropped then. Words of a part of a token are collected.
    """

    def __init__(self, config: VqAttentionConfig):
        shape = config.shape
        codes = data.ArrayLayout(shape.pq.bits, shape.groups)
        beat = Payload(
            code=(codes, "codes of a token", index_of("entries")),
            resp=(2, "the worst response of its words", Resp),
        )
        super().__init__(
            config,
            {
                "word": In(stream.Signature(config.word_layout), "Words of memory."),
                "ends": In(1, "The beat ends the pass."),
                "beat": Out(stream.Signature(beat), "Codes of a token."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, shape = Module(), self.config.shape
        word, beat = self.word, self.beat
        takes = beat.valid & beat.ready
        refused = word.p.resp & word.p.resp[1].replicate(2)  # EXOKAY is no fault
        if shape.token_bits <= shape.data_bits:
            each = shape.data_bits // shape.token_bits
            place = Signal(range(max(2, each)))
            leaves = self.ends | (place == each - 1)
            m.d.comb += [
                beat.valid.eq(word.valid),
                beat.p.code.as_value().eq(word.p.data.word_select(place, shape.token_bits)),
                beat.p.resp.eq(refused),
                word.ready.eq(beat.ready & leaves),
            ]
            with m.If(takes):
                m.d.sync += place.eq(Mux(leaves, 0, place + 1))
            return m
        each = shape.token_bits // shape.data_bits
        kept = Signal((each - 1) * shape.data_bits, reset_less=True)
        worst = Signal(2)
        part = Signal(range(each))
        is_last = part == each - 1
        m.d.comb += [
            beat.valid.eq(word.valid & is_last),
            beat.p.code.as_value().eq(Cat(kept, word.p.data)),
            beat.p.resp.eq(worst | refused),
            word.ready.eq(beat.ready | ~is_last),
        ]
        with m.If(word.valid & word.ready):
            m.d.sync += [
                kept.eq(Cat(kept, word.p.data)[shape.data_bits :]),
                worst.eq(Mux(is_last, 0, worst | refused)),
                part.eq(Mux(is_last, 0, part + 1)),
            ]
        return m
