"""Vectors in two buffers: one is multiplied, one is filled."""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream

from hdl.bits import any_of
from hdl.block import Block
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.vqllm.row.config import VqRowSumsConfig


class VqOperands(Block):
    """Buffers are filled and used in turn. ``ready``: the next one is full.

    ``swap`` while ``ready`` makes it the one in use from the next cycle on, and the one before is
    filled anew. ``bad`` and ``length`` are those of the next cycle. The words come a cycle after
    ``read``. Vector n of a buffer is vector n % batch of group n // batch. Word k of group g is at
    place k * groups + g.

    Words beyond the room of a vector are dropped. They make all vectors of the buffer ``bad``. So
    does a vector of another length than the first one, or one vector too many.
    """

    def __init__(self, config: VqRowSumsConfig):
        super().__init__(
            config,
            {
                "x": In(stream.Signature(config.x_layout), "Vectors, one after another."),
                "ready": Out(1, "The next buffer is full."),
                "swap": In(1, "Use it, from the next cycle on."),
                "read": In(1, "Read a word of each vector."),
                "place": In(range(max(2, config.words * config.groups)), "Its place."),
                "word": Out(config.vectors_layout, "The words."),
                "bad": Out(config.batch * config.groups, "Vectors without meaning."),
                "length": Out(range(config.words + 1), "Words of each vector; 0: they differ."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        # the buffer in use; the one that is filled
        used = Signal(init=1)
        filled = Signal()
        is_used = Signal()
        full = Signal(2)
        place = Signal(range(config.words + 1))  # ``words``: the vector has no room left
        vector = Signal(range(max(2, config.batch)))
        group = Signal(range(max(2, config.groups)))
        vectors, side_words = config.batch * config.groups, config.words * config.groups
        bad = Array(Signal(vectors, name=f"bad_{side}", reset_less=True) for side in range(2))
        length = Array(Signal.like(self.length, name=f"length_{side}") for side in range(2))
        take = Signal()
        ends = Signal()
        side = Signal()
        has_room = Signal()
        special = any_of(is_special(word) for word in self.x.p.word)
        m.d.comb += [
            self.x.ready.eq(~full.bit_select(filled, 1)),
            take.eq(self.x.valid & self.x.ready),
            ends.eq(take & self.x.p.last & self.x.p.end),
            self.ready.eq(full.bit_select(~used, 1)),
            side.eq(used ^ self.swap),
            has_room.eq(place != config.words),
            self.length.eq(length[side]),
            self.bad.eq(bad[side] | (self.length == 0).replicate(vectors)),
        ]
        for b in range(config.batch):
            memory = add(m, f"vector_{b}", Memory1R1W(config.operands))
            m.d.comb += [
                memory.read_en.eq(self.read),
                memory.read_addr.eq(self.place + Mux(used, side_words, 0)),
                memory.write_en.eq(take & has_room & (vector == b)),
                memory.write_addr.eq(
                    Cat(group[: config.group_bits], place) + Mux(filled, side_words, 0)
                ),
                memory.write_data.eq(self.x.p.word),
                self.word[b].eq(memory.read_data),
            ]
        # of a buffer; its first vector
        begins = Signal(init=1)
        is_first = Signal(init=1)
        # no room for another vector; this one is not right
        is_full = Signal()
        wrong = Signal()
        m.d.comb += [
            is_full.eq((vector == config.batch - 1) & (group == config.groups - 1)),
            wrong.eq(
                ~has_room
                | (self.x.p.last & ~is_first & (place + 1 != length[filled]))
                | (self.x.p.last & ~self.x.p.end & is_full)
            ),
        ]
        with m.If(take):
            found = Cat(
                special & (vector == n % config.batch) & (group == n // config.batch)
                for n in range(vectors)
            )
            m.d.sync += [
                bad[filled].eq(Mux(begins, 0, bad[filled]) | found),
                begins.eq(ends),
                place.eq(Mux(self.x.p.last, 0, place + has_room)),
            ]
            with m.If(self.x.p.last):
                m.d.sync += is_first.eq(self.x.p.end)
                with m.If(is_first | wrong):  # no other vector is as long as 0 words
                    m.d.sync += length[filled].eq(Mux(wrong, 0, place + 1))
                ends_group = self.x.p.end | (vector == config.batch - 1)
                m.d.sync += [
                    vector.eq(Mux(ends_group, 0, vector + 1)),
                    group.eq(Mux(self.x.p.end, 0, group + (vector == config.batch - 1))),
                ]
        with m.If(self.swap):
            m.d.sync += [used.eq(side), is_used.eq(1)]
            with m.If(is_used):
                m.d.sync += full.bit_select(used, 1).eq(0)
        with m.If(ends):
            m.d.sync += [filled.eq(~filled), full.bit_select(filled, 1).eq(1)]
        return m
