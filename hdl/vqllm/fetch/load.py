"""Codebooks of a core from memory to its cache, while others are in use."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.index.format import CodebookFault
from golden.vqllm.format import HEADER, Fault
from golden.vqllm.timing import LOAD_IN_FLIGHT
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.fetch.config import VqFetchConfig
from hdl.vqllm.memory_port import VqReader

_HEADER = data.StructLayout(HEADER)


class VqFetchLoad(Block):
    """Reads a header and the first entries of each stage, and tells how each load ended.

    The words are read ahead. They go to the cache when no load waits there for its switch.
    Codebooks of another matrix or tile do not go there. ``load_entries`` of them take a cycle.
    """

    def __init__(self, config: VqFetchConfig):
        cache = config.core.cache
        super().__init__(
            config,
            {
                "load": In(stream.Signature(config.load_layout), "Codebooks to load."),
                "info": Out(stream.Signature(cache.info_layout), "Begins a load of the cache."),
                "entry": Out(stream.Signature(cache.load_layout), "Its entries."),
                "waits": In(1, "The cache has a load that waits for its switch."),
                "fault": In(len(CodebookFault), "Faults of its load.", CodebookFault),
                "loaded": Out(stream.Signature(config.loaded_layout), "How each load ended."),
                "axi": Out(cache.axi_signature, "AXI4 manager: codebooks."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        cache, stages = config.core.cache, config.core.cache.vq.stages
        reader = add(m, "reader", VqReader(config.reader(LOAD_IN_FLIGHT)))
        link(m, reader.axi.ar, self.axi.ar)
        link(m, self.axi.r, reader.axi.r)
        loads = self._elaborate_commands(m, reader)
        load, word = loads.o.p, reader.o.p
        loaded = queue(m, "ends", config.loaded_layout, 2)
        link(m, loaded.o, self.loaded)

        header = _HEADER(word.data[: _HEADER.size])
        is_other = Signal()
        ends_stage = Signal()
        ends_word = Signal()
        ends = Signal()
        stage = Signal(range(max(2, stages)))
        entry = Signal(range(max(2, cache.shared)))
        width = cache.load_entries
        parts = cache.word_entries // width  # of a word, one after another
        place = Signal(range(max(2, parts)))
        skips = Signal()
        entries = Signal.like(header.entries)
        takes = Signal()
        status = Signal(config.status_layout)
        some = word.data.word_select(place, 8 * cache.entry_bytes * width)
        refused = Mux(word.resp[1], Fault.NO_CODEBOOK.value, 0)
        m.d.comb += [
            is_other.eq((header.tensor != load.tensor) | (header.tile != load.tile)),
            ends_stage.eq(entry + width >= load.bounds.shared),
            ends_word.eq(ends_stage | (place == parts - 1)),
            ends.eq(ends_stage & (stage == stages - 1)),
            self.info.p.registers.eq(load.bounds.registers),
            self.info.p.shared.eq(load.bounds.shared),
            self.info.p.base.eq(load.book + config.image.word_bytes),
            *(
                Value.cast(self.entry.p.word[k]).eq(some[8 * cache.entry_bytes * k :])
                for k in range(width)
            ),
            self.entry.p.last.eq(ends),
            loaded.i.p.entries.eq(entries),
            loaded.i.p.swap.eq(~skips & ~self.fault.any()),
            loaded.i.p.status.resp.eq(status.resp),
            loaded.i.p.status.fault.eq(
                status.fault | Mux(~skips & self.fault.any(), Fault.CODEBOOK.value, 0)
            ),
        ]
        with m.FSM():
            with m.State("HEADER"):
                m.d.comb += reader.o.ready.eq(loads.o.valid)
                short = (header.entries < load.bounds.shared) & ~is_other
                m.d.sync += [
                    entries.eq(header.entries),
                    skips.eq(word.resp[1] | is_other | short),
                    status.resp.eq(word.resp),
                    status.fault.eq(
                        Mux(word.resp[1], refused,
                            Mux(is_other, Fault.TENSOR.value, Mux(short, Fault.SHAPE.value, 0)))
                    ),
                ]  # fmt: skip
                with m.If(loads.o.valid & reader.o.valid):
                    m.next = "INFO"
            with m.State("INFO"):
                m.d.comb += self.info.valid.eq(~skips & ~self.waits)
                m.d.sync += [stage.eq(0), entry.eq(0), place.eq(0)]
                with m.If(skips | (self.info.valid & self.info.ready)):
                    m.next = "ENTRIES"
            with m.State("ENTRIES"):
                m.d.comb += [
                    self.entry.valid.eq(reader.o.valid & ~skips),
                    takes.eq(reader.o.valid & (skips | self.entry.ready)),
                    reader.o.ready.eq(takes & ends_word),
                ]
                with m.If(takes):
                    m.d.sync += [
                        status.fault.eq(status.fault | Mux(skips, 0, refused)),
                        status.resp.eq(status.resp | word.resp),
                        place.eq(Mux(ends_word, 0, place + 1)),
                        entry.eq(Mux(ends_stage, 0, entry + width)),
                        stage.eq(Mux(ends, 0, stage + ends_stage)),
                    ]
                    with m.If(ends):
                        m.next = "END"
            with m.State("END"):
                m.d.comb += [loaded.i.valid.eq(1), loads.o.ready.eq(loaded.i.ready)]
                with m.If(loaded.i.ready):
                    m.next = "HEADER"
        return m

    def _elaborate_commands(self, m: Module, reader):
        """A command for each stage, the header with the first one; the loads that are read.

        A load is told with its first command: the reader takes the next one only when words of the
        first are taken.
        """
        config = self.config
        cache, stages = config.core.cache, config.core.cache.vq.stages
        loads = queue(m, "loads", config.load_layout, 2)
        load = self.load.p
        stage = Signal(range(max(2, stages)))
        address = Signal(cache.address_bits, reset_less=True)  # of the entries of ``stage``
        is_first = Signal()
        is_last = Signal()
        words = Signal.like(reader.command.p.words)
        shift = (cache.word_entries - 1).bit_length()
        m.d.comb += [
            is_first.eq(stage == 0),
            is_last.eq(stage == stages - 1),
            words.eq((load.bounds.shared + cache.word_entries - 1) >> shift),
            reader.command.p.address.eq(Mux(is_first, load.book, address)),
            reader.command.p.words.eq(words + is_first),
            reader.command.valid.eq(self.load.valid & (~is_first | loads.i.ready)),
            loads.i.valid.eq(self.load.valid & is_first & reader.command.ready),
            loads.i.p.eq(load),
            self.load.ready.eq(reader.command.ready & is_last & (~is_first | loads.i.ready)),
        ]
        base = Mux(is_first, load.book + config.image.word_bytes, address)
        with m.If(reader.command.valid & reader.command.ready):
            m.d.sync += [
                stage.eq(Mux(is_last, 0, stage + 1)),
                address.eq(base + config.image.stage_bytes),
            ]
        return loads
