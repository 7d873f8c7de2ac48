"""Words of any size from the tiles of an image in memory."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.qet.gemv_config import QetTileReaderConfig
from hdl.stream.link import link
from hdl.stream.repack import StreamRepack
from hdl.vqllm.memory_port import VqReader


class QetTileReader(Block):
    """Gives for each tile ``bytes`` from its first word of memory on, in words of ``unit`` bytes.

    ``words`` words of memory are read of each tile, and the next tile follows them. ``last`` is
    with the last word of a tile, ``resp`` the union of the responses of its bytes that are faults.
    The next job begins when all words have left.
    """

    def __init__(self, config: QetTileReaderConfig):
        word = data.StructLayout({"data": 8 * config.unit, "resp": 2, "last": 1})
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Tiles to read."),
                "o": Out(stream.Signature(word), "Their words."),
                "axi": Out(config.reader.axi_signature, "AXI4 manager."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        reader = add(m, "reader", VqReader(config.reader))
        repack = add(m, "repack", StreamRepack(config.repack))
        link(m, reader.axi.ar, self.axi.ar)
        link(m, self.axi.r, reader.axi.r)
        size = config.data_bits // 8
        job = Signal(config.job_layout, reset_less=True)
        asked, given = Signal.like(job.tiles), Signal.like(job.tiles)  # tiles that remain
        end = Signal(range(size + 1))  # of the last word of a tile
        command, words = reader.command, reader.o
        m.d.comb += [
            self.job.ready.eq(given == 0),
            command.valid.eq(asked != 0),
            command.p.address.eq(job.address),
            command.p.words.eq(job.words),
            end.eq(Mux(job.bytes % size == 0, size, job.bytes % size)),
            repack.i.valid.eq(words.valid),
            words.ready.eq(repack.i.ready),
            repack.i.p.data.eq(words.p.data),
            repack.i.p.end.eq(Mux(words.p.last, end, size)),
            repack.i.p.error.eq(words.p.resp),
            repack.i.p.last.eq(words.p.last),
            self.o.valid.eq(repack.o.valid),
            repack.o.ready.eq(self.o.ready),
            self.o.p.data.eq(repack.o.p.data),
            self.o.p.resp.eq(repack.o.p.error),
            self.o.p.last.eq(repack.o.p.last),
        ]
        with m.If(command.valid & command.ready):
            m.d.sync += [
                asked.eq(asked - 1),
                job.address.eq(job.address + (job.words << size.bit_length() - 1)),
            ]
        with m.If(self.o.valid & self.o.ready & self.o.p.last):
            m.d.sync += given.eq(given - 1)
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += [job.eq(self.job.p), asked.eq(self.job.p.tiles), given.eq(self.job.p.tiles)]
        return m
