"""Codebooks of a cache: checked, and written while others are in use."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.index.format import CodebookFault
from hdl.bits import any_of, let
from hdl.block import Block
from hdl.ports import In, Out
from hdl.vqllm.cache.config import VqCodebookCacheConfig

_ONE = 0x3C00  # the largest magnitude of an entry


def wrong_entry(words) -> tuple:
    """(an element is finite and above 1 in magnitude, one is NaN or infinite)."""
    magnitudes = [word[:-1] for word in words]
    large = any_of([(word > _ONE) & (word < FP16.infinity) for word in magnitudes])
    return large, any_of([word >= FP16.infinity for word in magnitudes])


class VqCacheLoader(Block):
    """``load_info``, then the entries 0..shared-1 of stage 0, of stage 1 and so on; last ends them.

    A word has ``load_entries`` neighbours. Those of its entries that are not below shared are left
    out. ``loaded`` until ``swap``, unless ``fault``. Another ``load_info`` takes the place of both.
    """

    def __init__(self, config: VqCodebookCacheConfig):
        super().__init__(
            config,
            {
                "load_info": In(stream.Signature(config.info_layout), "Begins a load."),
                "load": In(stream.Signature(config.load_layout), "Entries, stage by stage."),
                "swap": In(1, "Use the side that is loaded, from the next cycle on."),
                "loaded": Out(1, "A complete load without faults waits for swap."),
                "fault": Out(len(CodebookFault), "Faults of the load.", CodebookFault),
                "side": Out(1, "The side in use."),
                "used": Out(config.info_layout, "What the load of the side in use said."),
                "next": Out(config.info_layout, "What the latest load said."),
                "write": Out(config.load_entries, "Write these of load to the other side."),
                "stage": Out(range(max(2, config.vq.stages)), "Their stage."),
                "entry": Out(range(max(2, config.shared)), "Index of the first one."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        info, stages = self.load_info.p, config.vq.stages
        loading = Signal()
        complete = Signal()
        take = Signal()
        ends_stage = Signal()
        ends = Signal()
        wrong = Signal(len(CodebookFault))
        width = config.load_entries
        counts = Signal(config.load_entries)
        found = [wrong_entry(word) for word in self.load.p.word]
        large, nonfinite = (
            any_of(each[kind] & counts[k] for k, each in enumerate(found)) for kind in range(2)
        )
        aligned = (config.data_bits // 8 - 1).bit_length()
        refused = let(
            m,
            "refused",
            (info.registers > info.shared)
            | (info.shared == 0)
            | _above(info.shared, config.shared)
            | _above(info.registers, config.registers)
            | info.base[:aligned].any(),
        )
        m.d.comb += [
            self.load_info.ready.eq(~loading),
            self.load.ready.eq(loading),
            take.eq(loading & self.load.valid),
            counts.eq(Cat(~complete & (self.entry + k < self.next.shared) for k in range(width))),
            self.write.eq(Mux(take, counts, 0)),
            ends_stage.eq(self.entry + width >= self.next.shared),
            ends.eq(ends_stage & (self.stage == stages - 1)),
            wrong.eq(self.fault | Cat(nonfinite, large, complete | (self.load.p.last & ~ends))),
        ]
        with m.If(take):
            m.d.sync += self.fault.eq(wrong)
            with m.If(~complete):
                m.d.sync += [
                    self.entry.eq(Mux(ends_stage, 0, self.entry + width)),
                    self.stage.eq(Mux(ends, 0, self.stage + ends_stage)),
                    complete.eq(ends),
                ]
            with m.If(self.load.p.last):
                m.d.sync += [loading.eq(0), self.loaded.eq(~wrong.any())]
        with m.If(self.swap & self.loaded):
            m.d.sync += [self.side.eq(~self.side), self.used.eq(self.next), self.loaded.eq(0)]
        with m.If(self.load_info.valid & ~loading):
            m.d.sync += [
                loading.eq(1),
                self.loaded.eq(0),
                self.next.eq(info),
                self.fault.eq(Mux(refused, CodebookFault.SHAPE, 0)),
                complete.eq(refused),
                self.entry.eq(0),
                self.stage.eq(0),
            ]
        return m


def _above(value, most: int) -> Value:
    """Whether ``value`` is above ``most``; a bound that its bits cannot pass is left out."""
    return value > most if most < (1 << len(value)) - 1 else Const(0, 1)
