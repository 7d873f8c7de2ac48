"""Scales of rows from memory, one after another."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.vqllm.format import ROWS_BITS
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.memory_port import VqReadBufferConfig, VqReader


class VqRowScales(Block):
    """Reads for each job the FP16 words of ``rows`` rows from ``address`` on; NaN where refused."""

    def __init__(self, config: VqReadBufferConfig):
        job = Payload(address=config.address_bits, rows=ROWS_BITS)
        super().__init__(
            config,
            {
                "job": In(stream.Signature(job), "Where the scales are, and how many."),
                "scale": Out(stream.Signature(Payload(word=FP16.bits)), "Scales."),
                "resp": Out(2, "Response of memory to the scale that is there."),
                "axi": Out(config.axi_signature, "AXI4 manager: scales."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        reader = add(m, "reader", VqReader(config))
        link(m, reader.axi.ar, self.axi.ar)
        link(m, self.axi.r, reader.axi.r)
        words = config.data_bits // FP16.bits
        counts = queue(m, "counts", ROWS_BITS, 2)
        row = Signal(ROWS_BITS)
        place = Signal(range(words))
        is_last = Signal()
        takes = Signal()
        command, o = reader.command, reader.o
        m.d.comb += [
            command.valid.eq(self.job.valid & counts.i.ready),
            counts.i.valid.eq(self.job.valid & command.ready),
            self.job.ready.eq(command.ready & counts.i.ready),
            command.p.address.eq(self.job.p.address),
            command.p.words.eq((self.job.p.rows + words - 1) >> (words - 1).bit_length()),
            counts.i.p.eq(self.job.p.rows),
            self.scale.valid.eq(o.valid & counts.o.valid),
            self.scale.p.word.eq(
                Mux(o.p.resp[1], FP16.canonical_nan, o.p.data.word_select(place, FP16.bits))
            ),
            self.resp.eq(o.p.resp),
            takes.eq(self.scale.valid & self.scale.ready),
            is_last.eq(row == counts.o.p - 1),
            o.ready.eq(takes & (is_last | (place == words - 1))),
            counts.o.ready.eq(takes & is_last),
        ]
        with m.If(takes):
            m.d.sync += [
                row.eq(Mux(is_last, 0, row + 1)),
                place.eq(Mux(is_last | (place == words - 1), 0, place + 1)),
            ]
        return m
