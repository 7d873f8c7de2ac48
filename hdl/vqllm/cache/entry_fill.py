"""Beats of entries in order: those of memory take their places when they come."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from hdl.bits import any_of, let
from hdl.block import Block
from hdl.ports import In, Out
from hdl.stream.queue import queue
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.cache.loader import wrong_entry


class VqEntryFill(Block):
    """A beat leaves when its last entry has come from memory: the lowest lane's comes first.

    A beat takes as many cycles as it has entries of memory, at least one. Entries of memory are
    taken as they come, whether the others of their beat are found or not. So a memory with any
    number of reads in flight serves beats with any number of them.
    """

    def __init__(self, config: VqCodebookCacheConfig):
        words = data.ArrayLayout(config.entry_layout, config.lookups)
        r = config.axi_signature.members["r"].signature.members["payload"].shape
        super().__init__(
            config,
            {
                "begun": In(1, "A beat begins its reads; there is room for it."),
                "asked": In(config.beat_layout, "That beat."),
                "valid": In(1, "A beat comes; it began its reads before."),
                "shown": In(config.beat_layout, "The beat."),
                "found": In(words, "Its entries that are on chip."),
                "r": In(stream.Signature(r), "Words of memory, in the order of the look-ups."),
                "entry": Out(stream.Signature(config.entries_layout), "Entries."),
                "leaves": Out(1, "A beat leaves."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        lanes, bits = config.lookups, config.entry_bits
        place_bits = max(1, (config.word_entries - 1).bit_length())
        place = data.ArrayLayout(place_bits, lanes)
        point = {"point": config.points_layout} if config.vq.lattice else {}
        asks = queue(
            m, "asks", data.StructLayout({"place": place, "far": lanes}), config.beats,
            storage="memory",
        )  # fmt: skip
        beats = queue(
            m, "beats", data.StructLayout({"words": self.found.shape(), "last": 1, **point}),
            config.beats, storage="memory",
        )  # fmt: skip
        m.d.comb += [
            asks.i.valid.eq(self.begun),
            asks.i.p.far.eq(self.asked.far),
            beats.i.valid.eq(self.valid),
            beats.i.p.words.eq(self.found),
            beats.i.p.last.eq(self.shown.last),
        ]
        if config.word_entries > 1:
            index = self.asked.index
            m.d.comb += [asks.i.p.place[k].eq(index[k][:place_bits]) for k in range(lanes)]
        if config.vq.lattice:
            m.d.comb += beats.i.p.point.eq(self.shown.point)

        # The entry that comes
        head = beats.o.p
        have = Signal(lanes)
        missing = let(m, "missing", asks.o.p.far & ~have)
        lane = let(m, "lane", missing & (~missing + 1))
        place_now = any_of(Mux(lane[k], asks.o.p.place[k], 0) for k in range(lanes))
        is_refused = let(m, "is_refused", self.r.p.resp[1])
        entry = let(
            m,
            "came",
            Mux(is_refused, 0, self.r.p.data.word_select(place_now, 8 * config.entry_bytes)[:bits]),
        )
        wrong = any_of(wrong_entry([entry.word_select(n, 16) for n in range(config.vq.size)]))
        resp = Signal(2)
        bad = Signal()
        resp_now = let(m, "resp_now", Mux(is_refused & (self.r.p.resp > resp), self.r.p.resp, resp))

        # The beat that leaves
        is_last = Signal()
        can_leave = Signal()
        leaves = Signal()
        takes = Signal()
        m.d.comb += [
            is_last.eq(~(missing & ~lane).any()),
            can_leave.eq(beats.o.valid & (~self.entry.valid | self.entry.ready)),
            self.r.ready.eq(asks.o.valid & missing.any()),
            takes.eq(self.r.valid & self.r.ready),
            leaves.eq(can_leave & (~missing.any() | (is_last & takes))),
            beats.o.ready.eq(leaves),
            asks.o.ready.eq(leaves),
            self.leaves.eq(leaves),
        ]
        with m.If(takes):
            m.d.sync += [have.eq(have | lane), resp.eq(resp_now), bad.eq(bad | wrong)]
        with m.If(leaves):
            m.d.sync += [have.eq(0), resp.eq(0), bad.eq(0)]
        with m.If(self.entry.ready):
            m.d.sync += self.entry.valid.eq(0)
        with m.If(leaves):
            m.d.sync += [
                self.entry.valid.eq(1),
                self.entry.p.last.eq(head.last),
                self.entry.p.resp.eq(Mux(takes, resp_now, resp)),
                self.entry.p.bad.eq(bad | (takes & wrong)),
            ]
            if config.vq.lattice:
                m.d.sync += self.entry.p.point.eq(head.point)
        for k in range(lanes):
            kept = Signal(bits, name=f"kept_{k}", reset_less=True)
            with m.If(takes & lane[k]):
                m.d.sync += kept.eq(entry)
            far = Mux(lane[k], entry, kept)
            with m.If(leaves):
                m.d.sync += self.entry.p.entry[k].eq(
                    Mux(asks.o.p.far[k], far, head.words[k])
                )  # fmt: skip
        return m
