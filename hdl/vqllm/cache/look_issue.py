"""The way from beats of codes to the reads of each cycle."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream

from hdl.bits import any_of, let
from hdl.block import Block
from hdl.ports import In, Out
from hdl.vqllm.cache.config import VqCodebookCacheConfig


class VqLookIssue(Block):
    """Each bank, and memory, serve the lowest lane that still waits for them, in every cycle.

    A beat takes as many cycles as the fullest of them has look-ups, at least one. Beats follow each
    other without a pause. A beat with ``switch`` waits for ``loaded``; later beats wait, too.
    """

    def __init__(self, config: VqCodebookCacheConfig):
        lanes = config.lookups
        super().__init__(
            config,
            {
                "look": In(stream.Signature(config.look_layout), "Codes."),
                "room": In(1, "A beat may begin."),
                "begins": Out(1, "A beat is taken."),
                "loaded": In(1, "Codebooks wait for swap."),
                "swap": Out(1, "Use them from the next cycle on."),
                "bounds": In(config.bounds_layout, "Ends of the tiers."),
                "read": Out(config.banks, "Banks that read."),
                "row": Out(config.row_layout, "Their words, of one side."),
                "ask": Out(stream.Signature(config.place_bits), "Code and stage, of memory."),
                "beat": Out(config.beat_layout, "The beat whose reads these are."),
                "begun": Out(1, "It begins its reads."),
                "now": Out(lanes, "Lanes that are read from banks."),
                "bank": Out(data.ArrayLayout(range(max(2, config.banks)), lanes), "Their banks."),
                "done": Out(1, "The beat has no other reads."),
                "hits": Out(config.hits_layout, "Look-ups by tier, and waits, of this cycle."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        lanes, stages = config.lookups, config.vq.stages
        held = Signal(config.look_layout, reset_less=True)
        is_held = Signal()
        busy = Signal()
        done = Signal()
        free = Signal()
        move = Signal()
        waits = Signal()
        # lanes that wait; none while idle
        near = Signal(lanes)
        far = Signal(lanes)

        # Tiers
        index = [code[config.vq.point_bits :] for code in held.code]
        beyond = [
            Cat(index[k] >= self.bounds[name] for k in range(lanes))
            for name in ("registers", "shared")
        ]
        hot = let(m, "hot", held.use & ~beyond[0])
        in_memory = let(m, "in_memory", held.use & beyond[1])
        in_banks = let(m, "in_banks", held.use & beyond[0] & ~beyond[1])
        m.d.comb += [
            free.eq(~busy | done),
            waits.eq(is_held & held.switch & ~self.loaded),
            move.eq(is_held & free & ~waits),
            self.look.ready.eq((~is_held | move) & self.room),
            self.begins.eq(self.look.valid & self.look.ready),
            self.swap.eq(move & held.switch),
            self.done.eq(done),
            self.hits.stalls.eq((waits & free) | (self.look.valid & ~self.room)),
        ]
        for name, mask in (("registers", hot), ("shared", in_banks), ("memory", in_memory)):
            count = sum(mask[k] for k in range(lanes))
            m.d.comb += self.hits[name].eq(Mux(move, count, 0))
        m.d.sync += self.begun.eq(move)
        with m.If(move):
            m.d.sync += is_held.eq(0)
        with m.If(self.begins):
            m.d.sync += [is_held.eq(1), held.eq(self.look.p)]
        with m.If(done):
            m.d.sync += busy.eq(0)
        with m.If(move):
            m.d.sync += [
                busy.eq(1),
                *(self.beat.index[k].eq(index[k]) for k in range(lanes)),
                self.beat.hot.eq(hot),
                self.beat.far.eq(in_memory),
                self.beat.last.eq(held.last),
            ]
            if config.vq.lattice:
                bits = config.vq.point_bits
                m.d.sync += [self.beat.point[k].eq(held.code[k][:bits]) for k in range(lanes)]

        # Reads
        bank_bits = (config.banks - 1).bit_length()
        places = [let(m, f"place_{k}", self.beat.index[k] + k % stages) for k in range(lanes)]
        rows = [
            let(m, f"row_{k}", (place >> bank_bits) + k % stages * config.bank_rows)
            for k, place in enumerate(places)
        ]
        m.d.comb += [self.bank[k].eq(place[:bank_bits]) for k, place in enumerate(places)]
        taken = [Signal(lanes, name=f"taken_{bank}") for bank in range(config.banks)]
        for bank, mask in enumerate(taken):
            wants = [near[k] & (places[k][:bank_bits] == bank) for k in range(lanes)]
            m.d.comb += [mask.eq(_lowest(wants)), self.read[bank].eq(busy & mask.any())]
            m.d.comb += self.row[bank].eq(_chosen(mask, rows))
        asked = let(m, "asked", _lowest([far[k] for k in range(lanes)]))
        sites = [Cat(self.beat.index[k], _constant(config, k % stages)) for k in range(lanes)]
        left_near = Signal(lanes)
        left_far = Signal(lanes)
        m.d.comb += [
            self.now.eq(any_of(taken)),
            self.ask.valid.eq(busy & far.any()),
            self.ask.p.eq(_chosen(asked, sites)),
            left_near.eq(near & ~self.now),
            left_far.eq(far & ~(asked & self.ask.ready.replicate(lanes))),
            done.eq(busy & ~left_near.any() & ~left_far.any()),
            self.hits.conflicts.eq(busy & left_near.any()),
        ]
        with m.If(busy):
            m.d.sync += [near.eq(left_near), far.eq(left_far)]
        with m.If(move):
            m.d.sync += [near.eq(in_banks), far.eq(in_memory)]
        return m


def _lowest(wants: list) -> Value:
    """The lowest of the lanes that want, one bit each."""
    return Cat(want & ~any_of(wants[:k]) if k else want for k, want in enumerate(wants))


def _chosen(mask, values: list) -> Value:
    """The value of the only lane of the mask; 0 without one."""
    return any_of(Mux(mask[k], value, 0) for k, value in enumerate(values))


def _constant(config: VqCodebookCacheConfig, stage: int) -> Const:
    return Const(stage, (config.vq.stages - 1).bit_length())
