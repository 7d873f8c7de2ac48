"""Codebooks in registers, SRAM and memory (docs/blocks/vq_codebook_cache.md)."""

from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.axi.format import BURST_INCR, CACHE_NORMAL
from golden.index.format import CodebookFault
from golden.timing import Timing
from golden.vqllm import timing
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.cache.config import CACHES, VqCodebookCacheConfig
from hdl.vqllm.cache.entry_banks import VqEntryBanks
from hdl.vqllm.cache.entry_fill import VqEntryFill
from hdl.vqllm.cache.loader import VqCacheLoader
from hdl.vqllm.cache.look_issue import VqLookIssue


class VqCodebookCache(Block):
    """Entry ``code[l]`` of the codebook of stage ``l % stages``, for each lane l of a beat.

    | index of the entry | where it lies | look-ups per cycle |
    |---|---|---|
    | below registers | registers | any number |
    | below shared | SRAM, entry j of stage z in bank (j + z) % banks | one per bank |
    | others | memory, at base + (stage * entries + j) * entry_bytes | one |

    Load: ``load_info``, then entries 0..shared-1 of stage 0, of stage 1, and so on. ``last`` alone
    ends it. A complete load without faults raises ``loaded``. Access: ``look``; answers come in
    order. Switch: a beat with ``switch`` waits for ``loaded``, and uses those codebooks. So the
    next codebooks are loaded during the work. A ``load_info`` before the switch takes the place of
    a load that waits.

    An entry that memory refuses is 0, and ``resp`` says so. ``bad``: an entry of memory is beyond
    1 in magnitude, or not finite. Before the first switch every look-up gives words of no meaning.

    A beat per cycle, or as many cycles as the fullest bank, or memory, has look-ups
    (golden.vqllm.cache). Latency golden.vqllm.timing.codebook_cache. No combinational path leads
    from an input to an output.
    Source: VQ-LLM, section V. Golden: golden.vqllm.cache.
    """

    golden = "golden.vqllm.cache:LookUps"
    reference = "tests/vqllm/test_cache.py: test_look_ups"
    default = VqCodebookCacheConfig()
    configs: ClassVar = {name: CACHES[name] for name in ("aqlm3", "gptvq2", "quip4", "small")}

    def __init__(self, config: VqCodebookCacheConfig):
        super().__init__(
            config,
            {
                "load_info": In(stream.Signature(config.info_layout), "Begins a load."),
                "load": In(stream.Signature(config.load_layout), "Entries, stage by stage."),
                "loaded": Out(1, "A complete load without faults waits for a switch."),
                "load_fault": Out(len(CodebookFault), "Faults of the load.", CodebookFault),
                "look": In(stream.Signature(config.look_layout), "Codes."),
                "entry": Out(stream.Signature(config.entries_layout), "Entries."),
                "counts": Out(config.counts_layout, "Counters; they wrap."),
                "clear": In(1, "The counters begin at 0 in the next cycle."),
                "axi": Out(config.axi_signature, "AXI4 manager: the memory of the entries."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.codebook_cache()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        loader = add(m, "loader", VqCacheLoader(config))
        issue = add(m, "issue", VqLookIssue(config))
        banks = add(m, "banks", VqEntryBanks(config))
        fill = add(m, "fill", VqEntryFill(config))
        for name in ("load_info", "load"):
            link(m, getattr(self, name), getattr(loader, name))
        link(m, self.look, issue.look)
        link(m, self.axi.r, fill.r)
        link(m, fill.entry, self.entry)

        held = Signal(range(config.beats + 1))  # beats that have begun and not left
        m.d.sync += held.eq(held + issue.begins - fill.leaves)
        m.d.comb += [
            self.loaded.eq(loader.loaded),
            self.load_fault.eq(loader.fault),
            loader.swap.eq(issue.swap),
            issue.loaded.eq(loader.loaded),
            issue.room.eq(held != config.beats),
            banks.side.eq(loader.side),
            banks.write.eq(loader.write),
            banks.stage.eq(loader.stage),
            banks.entry.eq(loader.entry),
            banks.word.eq(self.load.p.word),
            fill.begun.eq(issue.begun),
            fill.asked.eq(issue.beat),
            fill.valid.eq(banks.valid),
            fill.shown.eq(banks.shown),
            fill.found.eq(banks.found),
        ]
        for name in ("registers", "shared"):
            bound = Mux(issue.swap, loader.next[name], loader.used[name])
            m.d.comb += issue.bounds[name].eq(bound)
        for name in ("read", "row", "beat", "now", "bank", "done"):
            m.d.comb += getattr(banks, name).eq(getattr(issue, name))

        asks = queue(m, "asks", config.address_bits, 2)
        word = (config.data_bits // 8 - 1).bit_length()
        address = Signal(config.address_bits)
        m.d.comb += [
            address.eq(loader.used.base + issue.ask.p * config.entry_bytes),
            asks.i.p.eq(address >> word << word),
            asks.i.valid.eq(issue.ask.valid),
            issue.ask.ready.eq(asks.i.ready),
            self.axi.ar.p.addr.eq(asks.o.p),
            self.axi.ar.p.size.eq(word),
            self.axi.ar.p.burst.eq(BURST_INCR),
            self.axi.ar.p.cache.eq(CACHE_NORMAL),
            self.axi.ar.valid.eq(asks.o.valid),
            asks.o.ready.eq(self.axi.ar.ready),
        ]
        for name in config.counts_layout.members:
            more = self.counts[name] + issue.hits[name]
            m.d.sync += self.counts[name].eq(Mux(self.clear, 0, more))
        return m
