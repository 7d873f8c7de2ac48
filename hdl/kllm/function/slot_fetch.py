"""Words of two activation slots through one client."""

import dataclasses

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.kllm.timing import slot_fetch
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kinds import BITS, NUMBER, index_of
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmSlotFetchConfig(Config):
    """Sizes of words, slots and queues."""

    word_bits: int = bounded(16, 1, 4096, "bits of a word")
    count_max: int = bounded(64, 1, 16383, "most words of a slot")
    position_bits: int = 14  # bits of a word's position in the requests, 1..16
    depth: int = bounded(8, 2, 64, "words of each slot requested before they are used")

    def __post_init__(self) -> None:
        self._check_range("position_bits", max(1, (self.count_max - 1).bit_length()), 16)

    @property
    def walk_layout(self) -> data.StructLayout:
        count = range(self.count_max + 1)
        return Payload(
            slot=(data.ArrayLayout(8, 2), "numbers of the two slots", index_of("slots")),
            count=(data.ArrayLayout(count, 2), "words of each, 0: none", NUMBER),
        )


class KllmSlotFetch(Block):
    """``o[k]`` = words 0 .. count[k] - 1 of slot[k], k = 0 and 1, through one read client.

    Where both slots want a word and have room for it, they take turns. A word is requested only
    if its queue has a place for it, up to ``depth`` words before their use. So ``answer`` is
    ready for every word on order. ``walk`` is ready when all words of the walk before are
    requested.

    Latency: walk to the first request 2 cycles, an answer to its word 1 cycle. Throughput 1
    request per cycle, for both slots together. ``request.valid`` comes from a register.
    ``answer.ready`` and ``o`` come from registers too: no combinational path leads from an input
    to an output. Nothing rounds. Golden: golden.kllm.phases.fetched.

    The functional unit has one for rows of entries and one for outliers. A slot that stalls does
    not stop the other.
    """

    tier = Tier.PART
    golden = "golden.kllm.phases:fetched"
    configs = FieldOf("kllm_functional_unit", "outliers")

    def __init__(self, config: KllmSlotFetchConfig):
        word = stream.Signature(Payload(word=(config.word_bits, "word of the slot", BITS)))
        request = Payload(
            slot=(8, "number of the slot", index_of("slots")),
            position=(
                config.position_bits,
                "number of the word within the slot",
                index_of("words"),
            ),
        )
        super().__init__(
            config,
            {
                "walk": In(
                    stream.Signature(config.walk_layout), "Slots and how many words of each."
                ),
                "request": Out(stream.Signature(request), "Words wanted."),
                "answer": In(word, "Those words, in order."),
                "o": Out(word, "Words of each slot, in order.").array(2),
            },
        )

    @property
    def timing(self) -> Timing:
        return slot_fetch()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        depth, most = config.depth, config.count_max
        valid = Signal()
        free = Signal()
        turn = Signal()
        payload = Signal(self.request.p.shape(), reset_less=True)
        slot = Signal(self.walk.p.slot.shape(), reset_less=True)
        chosen = Signal()
        choose = Signal()
        begin = Signal()
        order = queue(m, "order", 1, 2 * depth)
        left, at, may = [], [], []
        for k in range(2):
            words = queue(m, f"words_{k}", config.word_bits, depth)
            left.append(Signal(range(most + 1), name=f"left_{k}"))
            at.append(Signal(range(most + 1), name=f"at_{k}"))
            taken = Signal(range(depth + 1), name=f"taken_{k}")  # places of words held or on order
            take = free & choose & (chosen == k)
            m.d.sync += taken.eq(taken + take - (words.o.valid & words.o.ready))
            may.append((left[k] != 0) & (taken != depth))
            with m.If(begin):
                m.d.sync += [left[k].eq(self.walk.p.count[k]), at[k].eq(0)]
            with m.Elif(take):
                m.d.sync += [left[k].eq(left[k] - 1), at[k].eq(at[k] + 1)]
            m.d.comb += [
                words.i.valid.eq(self.answer.valid & order.o.valid & (order.o.payload == k)),
                words.i.payload.eq(self.answer.p.word),
                self.o[k].valid.eq(words.o.valid),
                self.o[k].p.word.eq(words.o.payload),
                words.o.ready.eq(self.o[k].ready),
            ]
        m.d.comb += [
            self.walk.ready.eq((left[0] == 0) & (left[1] == 0)),
            begin.eq(self.walk.valid & self.walk.ready),
            self.request.valid.eq(valid),
            self.request.payload.eq(payload),
            free.eq(~valid | self.request.ready),
            choose.eq(may[0] | may[1]),
            chosen.eq(Mux(turn, may[1], ~may[0])),
            order.i.valid.eq(free & choose),
            order.i.payload.eq(chosen),
            self.answer.ready.eq(order.o.valid),
            order.o.ready.eq(self.answer.valid),
        ]
        with m.If(begin):
            m.d.sync += slot.eq(self.walk.p.slot)
        with m.If(free):
            m.d.sync += valid.eq(choose)
            with m.If(choose):
                m.d.sync += [
                    turn.eq(~chosen),
                    payload.slot.eq(Mux(chosen, slot[1], slot[0])),
                    payload.position.eq(Value.cast(Mux(chosen, at[1], at[0]))),
                ]
        return m
