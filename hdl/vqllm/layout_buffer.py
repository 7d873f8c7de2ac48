"""The same pieces to the same lanes through banks of SRAM (docs/blocks/vq_layout_buffer.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, nested
from golden.fp16.format import FP16
from golden.timing import Timing
from golden.vqllm import timing
from golden.vqllm.config import ExchangeShape
from hdl.block import Block
from hdl.children import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.vqllm.exchange import TO_ONE, TO_TWO, WIDEST, piece
from hdl.vqllm.layouts import vectors_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqLayoutBufferConfig(Config):
    """Lanes and layouts."""

    shape: ExchangeShape = nested(ExchangeShape)

    @property
    def i_layout(self) -> data.StructLayout:
        return vectors_layout(self.shape.lanes, self.shape.size)

    @property
    def o_layout(self) -> data.StructLayout:
        return vectors_layout(self.shape.lanes, self.shape.need)

    @property
    def memory(self) -> MemoryConfig:
        """A bank, both sides."""
        return MemoryConfig(depth=2 * self.shape.pieces, width=FP16.bits * self.shape.need)


class VqLayoutBuffer(Block):
    """Lane i of a mini-group gets piece i of each vector of its mini-group, as in VqExchange.

    There is a bank for each lane. Piece p of vector v of a mini-group lies in row v of bank p ^ v.
    So each bank takes a word and gives a word per cycle. A beat of vectors is written in ``pieces``
    cycles, and ``i.ready`` rises in the last of them. The other side of the banks is read
    meanwhile.

    A beat of vectors per ``pieces`` cycles. Latency golden.vqllm.timing.layout_buffer, to the first
    of its beats. No combinational path leads from an input to an output.
    Source: VQ-LLM, section VI-B, fusion by shared memory.
    Golden: golden.vqllm.exchange.exchanged.
    """

    golden = "golden.vqllm.exchange:exchanged"
    reference = "tests/vqllm/test_exchange.py: test_beats"
    default = VqLayoutBufferConfig()
    configs: ClassVar = {
        "gptvq2": VqLayoutBufferConfig(shape=TO_TWO),
        "widest": VqLayoutBufferConfig(shape=WIDEST),
        "small": VqLayoutBufferConfig(shape=TO_ONE),
    }

    def __init__(self, config: VqLayoutBufferConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "A vector of each lane."),
                "o": Out(stream.Signature(config.o_layout), "Pieces, a vector of each group."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.layout_buffer(self.config.shape.pieces)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        shape, bits = config.shape, FP16.bits * config.shape.need
        pieces, top = shape.pieces, shape.steps

        # Sides that are written to the end and not yet read to the end
        full = Signal(2)
        filled = Signal(2)
        emptied = Signal(2)
        m.d.sync += full.eq((full | filled) & ~emptied)

        put = Signal(range(pieces))
        put_side = Signal()
        go = Signal()
        last = Signal(2, reset_less=True)
        m.d.comb += [
            go.eq(self.i.valid & ~full.bit_select(put_side, 1)),
            self.i.ready.eq((put == top) & ~full.bit_select(put_side, 1)),
            filled.eq((go & (put == top)) << put_side),
        ]
        with m.If(go):
            m.d.sync += put.eq(put + 1)
            with m.If(put == top):
                m.d.sync += [put_side.eq(~put_side), last.bit_select(put_side, 1).eq(self.i.p.last)]

        get = Signal(range(pieces))
        get_side = Signal()
        read = Signal()
        shown = Signal.like(get)
        shown_last = Signal(reset_less=True)
        valid = Signal()
        m.d.comb += [
            read.eq(full.bit_select(get_side, 1) & (~valid | self.o.ready)),
            emptied.eq((read & (get == top)) << get_side),
            self.o.valid.eq(valid),
            self.o.p.last.eq(shown_last),
        ]
        with m.If(~valid | self.o.ready):
            m.d.sync += valid.eq(read)
        with m.If(read):
            m.d.sync += [
                get.eq(get + 1),
                shown.eq(get),
                shown_last.eq((get == top) & last.bit_select(get_side, 1)),
            ]
            with m.If(get == top):
                m.d.sync += get_side.eq(~get_side)

        banks = []
        for lane in range(shape.lanes):
            bank = add(m, f"bank_{lane}", Memory1R1W(config.memory))
            i = lane % pieces
            words = [piece(self.i.p, lane - i + (i ^ n), n, shape.need) for n in range(pieces)]
            m.d.comb += [
                bank.write_en.eq(go),
                bank.write_addr.eq(Cat(put ^ i, put_side)),
                bank.write_data.eq(Cat(words).word_select(put, bits)),
                bank.read_en.eq(read),
                bank.read_addr.eq(Cat(get, get_side)),
            ]
            banks.append(bank.read_data)
        for lane in range(shape.lanes):
            i = lane % pieces
            words = Cat(banks[lane - i + (i ^ k)] for k in range(pieces))
            m.d.comb += Value.cast(self.o.p.word[lane]).eq(words.word_select(shown, bits))
        return m
