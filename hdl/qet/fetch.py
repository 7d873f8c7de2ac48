"""Codebooks and rows of a matrix from memory to the decoder, tile by tile."""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.qet.format import Fault
from hdl.bits import flag_word, let
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.qet.gemv_config import QetDequantGemvConfig
from hdl.qet.tile_reader import QetTileReader
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.walk import Walk


class QetFetch(Block):
    """Loads, rows and jobs of the sums, for a matrix that ``start`` begins.

    The numbers of the job stay as they are until its last row has left. ``is_void``: one row,
    wrong, and no memory is read. Codebooks that memory refuses, or that have a fault, make all rows
    of their tile wrong. ``fault`` and ``resp`` collect what was wrong, until ``clear``.
    """

    def __init__(self, config: QetDequantGemvConfig):
        decoder = config.decoder
        super().__init__(
            config,
            {
                "start": In(1, "A job begins."),
                "job": In(config.job_layout, "Its numbers."),
                "is_void": In(1, "It is out of range."),
                "info": Out(stream.Signature(decoder.info_layout), "Begins a load."),
                "load": Out(stream.Signature(decoder.load_layout), "Entries."),
                "verdict": In(stream.Signature(decoder.verdict_layout), "How each load ended."),
                "row": Out(stream.Signature(decoder.row_layout), "Codes and maps."),
                "sums": Out(stream.Signature(config.sums.job_layout), "Jobs of the sums."),
                "fault": Out(len(Fault), "What was wrong.", Fault),
                "resp": Out(2, "Of memory."),
                "clear": In(1, "Nothing was wrong."),
                "axi": Out(config.share.axi_signature, ("codebooks", "rows")).array(2),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        outcomes = queue(m, "outcomes", data.StructLayout({"switch": 1, "wrong": 1}), 2)
        refused_book, has_fault = self._elaborate_books(m, outcomes.i)
        refused_row = self._elaborate_rows(m, outcomes.o)
        self._elaborate_sums(m)
        found = flag_word({
            Fault.CODEBOOK: has_fault,
            Fault.NO_CODEBOOK: refused_book.any(),
            Fault.NO_CODE: refused_row.any(),
        })  # fmt: skip
        m.d.sync += [
            self.fault.eq(Mux(self.clear, 0, self.fault | found)),
            self.resp.eq(Mux(self.clear, 0, self.resp | refused_book | refused_row)),
        ]
        return m

    def _reader(self, m: Module, name: str, number: int, shape, size: Value):
        """A reader of ``size`` bytes of each tile from the job's address ``name`` on."""
        reader, word = add(m, name, QetTileReader(shape)), self.config.image.word_bytes
        link(m, reader.axi.ar, self.axi[number].ar)
        link(m, self.axi[number].r, reader.axi.r)
        p = reader.job.p
        m.d.comb += [
            reader.job.valid.eq(self.start & ~self.is_void),
            p.address.eq(self.job[name]),
            p.bytes.eq(size),
            p.words.eq((size + word - 1) >> (word.bit_length() - 1)),
            p.tiles.eq(self.job.tiles),
        ]
        return reader

    def _elaborate_books(self, m: Module, outcome) -> tuple[Value, Value]:
        """Loads of the decoder: the responses of a word that memory refused; entries at fault.

        What memory gives with an error may be anything, so it is no fault of the entries.
        """
        config, job = self.config, self.job
        entries = sum(job[f"entries_{stage.number}"] for stage in config.stages)
        size = let(m, "book_bytes", entries * config.image.entry_bytes)
        reader = self._reader(m, "books", 0, config.books, size)
        left = Signal.like(job.tiles, name="loads_left")
        began = Signal()
        refused = Signal()
        verdict = self.verdict
        resp = Signal(2)
        m.d.comb += [
            self.info.valid.eq((left != 0) & ~began),
            *(self.info.p[name].eq(job[name]) for name, _ in config.info_layout),
            self.load.valid.eq(reader.o.valid),
            reader.o.ready.eq(self.load.ready),
            Value.cast(self.load.p[config.entry_field]).eq(reader.o.p.data),
            self.load.p.last.eq(reader.o.p.last),
            resp.eq(Mux(reader.o.valid & reader.o.ready, reader.o.p.resp, 0)),
            outcome.valid.eq(verdict.valid),
            verdict.ready.eq(outcome.ready),
            outcome.p.switch.eq(~verdict.p.fault.any()),
            outcome.p.wrong.eq(verdict.p.fault.any() | refused),
        ]
        with m.If(self.info.valid & self.info.ready):
            m.d.sync += began.eq(1)
        with m.If(resp.any()):
            m.d.sync += refused.eq(1)
        with m.If(verdict.valid & verdict.ready):
            m.d.sync += [began.eq(0), refused.eq(0), left.eq(left - 1)]
        with m.If(self.start):
            m.d.sync += left.eq(Mux(self.is_void, 0, job.tiles))
        return resp, verdict.valid & verdict.ready & verdict.p.fault.any() & ~refused

    def _elaborate_rows(self, m: Module, outcome) -> Value:
        """Rows of the decoder; the responses of a row that memory refused."""
        config, job = self.config, self.job
        size = let(m, "row_bytes", job.rows * config.image.row_bytes)
        reader = self._reader(m, "codes", 1, config.codes, size)
        rows = let(m, "rows", Mux(self.is_void, 1, job.rows))
        tiles = let(m, "tiles", Mux(self.is_void, 1, job.tiles))
        walk = Walk(m, "walk", tiles=tiles, rows=rows)
        begins = Signal()
        wrong = Signal()
        go = Signal()
        may = Signal()
        resp = Signal(2)
        row, bits = self.row, config.shape.row_bits
        m.d.comb += [
            walk.start.eq(self.start),
            begins.eq(walk.at.rows == 0),
            may.eq(~walk.done & (self.is_void | (reader.o.valid & (~begins | outcome.valid)))),
            row.valid.eq(may),
            go.eq(may & row.ready),
            walk.step.eq(go),
            reader.o.ready.eq(go & ~self.is_void),
            outcome.ready.eq(go & begins & ~self.is_void),
            resp.eq(Mux(go & ~self.is_void, reader.o.p.resp, 0)),
            row.payload.as_value()[:bits].eq(reader.o.p.data),
            row.p.switch.eq(begins & outcome.p.switch & ~self.is_void),
            row.p.wrong.eq(
                self.is_void | reader.o.p.resp.any() | Mux(begins, outcome.p.wrong, wrong)
            ),
            row.p.last.eq(walk.is_last),
        ]
        with m.If(go & begins):
            m.d.sync += wrong.eq(outcome.p.wrong)
        return resp

    def _elaborate_sums(self, m: Module) -> None:
        """A job for each tile."""
        job, left, p = self.job, Signal.like(self.job.tiles, name="sums_left"), self.sums.p
        at, tiles = Signal.like(p.offset), Mux(self.is_void, 1, self.job.tiles)
        m.d.comb += [
            self.sums.valid.eq(left != 0),
            p.offset.eq(at),
            p.beats.eq(1),
            p.rows.eq(Mux(self.is_void, 1, job.rows)),
            p.first.eq(at == 0),
            p.final.eq(left == 1),
            p.next_x.eq(at == 0),
        ]
        with m.If(self.sums.valid & self.sums.ready):
            m.d.sync += [left.eq(left - 1), at.eq(at + 1)]
        with m.If(self.start):
            m.d.sync += [left.eq(tiles), at.eq(0)]
