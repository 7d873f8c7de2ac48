"""A matrix quantized by QET in memory times vectors (docs/blocks/qet_dequant_gemv.md)."""

from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.qet.format import Fault, RowFault
from golden.timing import Timing
from hdl.bits import any_of, flag_word, outside
from hdl.block import Block
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.ports import In, Out
from hdl.qet.decoder import QetDecoder
from hdl.qet.fetch import QetFetch
from hdl.qet.gemv_config import QetDequantGemvConfig
from hdl.qet.shapes import LLAMA, SMALL, SMOLLM2
from hdl.qet.tile import EXPONENTS, refused_numbers
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.memory_port import VqPortShare
from hdl.vqllm.row.finish import VqRowFinish
from hdl.vqllm.row.sums import VqRowSums


class QetDequantGemv(Block):
    """``y[n][b] = rne16(2**exponent * sum over columns k of W[n][k] * x[b][k])``, W from memory.

    ``2**exponent * W`` is the matrix that QetDecoder restores, and the sum is exact. All rows of a
    tile are decoded before those of the next, whose codebooks are loaded meanwhile. So the sums of
    all rows are kept.

    A job names the codebooks and the rows in memory (golden.qet.image). ``x`` has a buffer of
    vectors for each job, with 0 in columns that fill the last tile. Each job gives its rows in
    order and a ``status`` after the last one (golden.qet.format.Fault). The next job is taken then.

    | wrong | effect |
    |---|---|
    | a number of the job out of range, an address that is no word's | one row, NaN |
    | NaN or infinity in x | all results of the vector are NaN |
    | codebooks that memory refuses, an entry above 2 or not finite | all rows are NaN |
    | a code beyond its codebook, a row that memory refuses | the row is NaN |

    A row of a tile per cycle, where memory gives as much: golden.qet.timing.gemv_bound. No
    combinational path leads from an input to an output.
    Source: QET, sections 3.2 and 3.4; decision 0223. Golden: golden.qet.product.product.
    """

    golden = "golden.qet.product:product"
    reference = "tests/qet/test_image.py: test_encode_image_and_product_by_hand"
    default = QetDequantGemvConfig()
    configs: ClassVar = {
        "smollm2": QetDequantGemvConfig(shape=SMOLLM2, columns=1536, rows=1536),
        "llama": QetDequantGemvConfig(shape=LLAMA, rows=11008),
        "small": QetDequantGemvConfig(shape=SMALL, columns=32, rows=16, data_bits=64, ahead=8),
    }

    def __init__(self, config: QetDequantGemvConfig):
        super().__init__(
            config,
            {
                "x": In(stream.Signature(config.sums.x_layout), "Vectors of each job."),
                "job": In(stream.Signature(config.job_layout), "Matrices in memory."),
                "y": Out(stream.Signature(config.finish.y_layout), "Results, row by row."),
                "status": Out(stream.Signature(config.status_layout), "How each job ended."),
                "axi": Out(config.share.axi_signature, "AXI4 manager: the image of the matrices."),
            },
        )

    # A row of a tile per cycle at most (``gemv_bound``); the status of a job.
    timing = Timing(latency=1, start="the last y of a job", end="status", unit="row")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        fetch = add(m, "fetch", QetFetch(config))
        decoder = add(m, "decoder", QetDecoder(config.decoder))
        sums = add(m, "sums", VqRowSums(config.sums))
        finish = add(m, "finish", VqRowFinish(config.finish))
        share = add(m, "share", VqPortShare(config.share))
        link(m, share.axi.ar, self.axi.ar)
        link(m, self.axi.r, share.axi.r)
        for reader, port in zip(fetch.axi, share.reader, strict=True):
            link(m, reader.ar, port.ar)
            link(m, port.r, reader.r)
        for name in ("info", "load", "row"):
            link(m, getattr(fetch, name), getattr(decoder, name))
        link(m, decoder.verdict, fetch.verdict)
        link(m, fetch.sums, sums.job)
        link(m, sums.sum, finish.sum)
        link(m, finish.y, self.y)
        o = decoder.o
        m.d.comb += [
            sums.w.valid.eq(o.valid),
            o.ready.eq(sums.w.ready),
            Value.cast(sums.w.p.word).eq(Value.cast(o.p.word)),
            sums.w.p.wrong.eq(o.p.fault.any()),
            sums.w.p.last.eq(o.p.last),
        ]
        # Codes of a row that is wrong for another reason may be anything.
        either = RowFault.CODE | RowFault.WRONG
        has_beyond = o.valid & o.ready & ((o.p.fault & either) == RowFault.CODE)
        self._elaborate_jobs(m, fetch, finish, self._elaborate_x(m, sums), has_beyond)
        return m

    def _elaborate_x(self, m: Module, sums):
        """Whether the vectors of each job have a NaN or an infinity: a queue."""
        found = queue(m, "found", 1, 2)
        wrong = Signal()
        special = Signal()
        ends = Signal()
        p = self.x.p
        m.d.comb += [
            special.eq(any_of(is_special(word) for word in p.word)),
            self.x.ready.eq(sums.x.ready & found.i.ready),
            sums.x.valid.eq(self.x.valid & found.i.ready),
            *(sums.x.p[name].eq(p[name]) for name in self.config.sums.x_layout.members),
            ends.eq(self.x.valid & self.x.ready & p.last & p.end),
            found.i.valid.eq(ends),
            found.i.p.eq(wrong | special),
        ]
        with m.If(self.x.valid & self.x.ready):
            m.d.sync += wrong.eq(Mux(ends, 0, wrong | special))
        return found.o

    def _elaborate_jobs(self, m: Module, fetch, finish, nonfinite, has_beyond) -> None:
        """One job after another: checked, run, answered."""
        config = self.config
        job = Signal(config.job_layout, reset_less=True)
        void = Signal()
        beyond = Signal()
        done = Signal()
        own = {Fault.JOB: void, Fault.CODE: beyond, Fault.NONFINITE: nonfinite.p}
        y, p = self.y, self.status.p
        m.d.comb += [
            fetch.job.eq(job),
            fetch.is_void.eq(void),
            finish.exponent.eq(Mux(void, 0, job.exponent)),
            p.fault.eq(flag_word(own) | fetch.fault),
            p.resp.eq(fetch.resp),
            done.eq(self.status.valid & self.status.ready),
            fetch.clear.eq(done),
            nonfinite.ready.eq(done),
        ]
        m.d.sync += beyond.eq(~done & (beyond | has_beyond))
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.job.ready.eq(1)
                with m.If(self.job.valid):
                    m.d.sync += [job.eq(self.job.p), void.eq(self._refused())]
                    m.next = "START"
            with m.State("START"):
                m.d.comb += fetch.start.eq(1)
                m.next = "RUN"
            with m.State("RUN"):
                with m.If(y.valid & y.ready & y.p.last):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.next = "IDLE"

    def _refused(self) -> Value:
        """Numbers of a job that are out of range."""
        config, p = self.config, self.job.p
        aligned = config.image.word_bytes.bit_length() - 1
        found = [
            outside(p.rows, range(1, config.rows + 1)),
            outside(p.tiles, range(1, config.tiles + 1)),
            p.books[:aligned].any(), p.codes[:aligned].any(), outside(p.exponent, EXPONENTS),
        ]  # fmt: skip
        return any_of([*found, *refused_numbers(config, p)])
