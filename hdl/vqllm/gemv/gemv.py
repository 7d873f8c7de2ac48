"""A vector-quantized matrix in memory times vectors (docs/blocks/vq_gemv.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream

from golden.timing import Timing
from golden.vqllm.format import Fault
from hdl.bits import any_of, flag_word
from hdl.block import Block
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.cache.book_share import VqBookShare
from hdl.vqllm.cache.config import CACHES
from hdl.vqllm.fetch.fetch import VqFetch
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.control import VqGemvControl
from hdl.vqllm.gemv.core import CORES, VqGemvCore, VqGemvCoreConfig
from hdl.vqllm.gemv.scales import VqRowScales
from hdl.vqllm.memory_port import VqPortShare, VqReadBuffer
from hdl.vqllm.reduce import VqReduce
from hdl.vqllm.row.finish import VqRowFinish

_ENGINES = {
    f"{name}{'_x4' * (cores > 1)}": VqGemvConfig(core=core, cores=cores, lanes=cores)
    for name, core in CORES.items() if name != "small"
    for cores in (1, 4)
}  # fmt: skip
# Twice the look-ups of gptvq2, and as many products
_EXCHANGED = VqGemvCoreConfig(
    cache=dataclasses.replace(CACHES["gptvq2"], lookups=32), fusion="exchange", need=2
)


class VqGemv(Block):
    """``y[n][b] = rne16(2**exponent * sum over columns k of W[n][k] * x[b][k])``, W from memory.

    With scales of the rows: ``rne16(scale[n] * rne32(2**exponent * ...))``. An element of W is
    ``rne16`` of the sum of its entries, one of each stage. The sum over the columns is exact.

    A job names the descriptors of a matrix in memory. ``cores`` cores share it: the columns are cut
    in ``2**split`` parts, and the rows go round among the others. Each core fetches the codes of
    its parts. Codebooks that several cores load at a time are read once. The sums of a row are
    added before the one rounding. Bounds of the tiers come with each descriptor. So split, n_reg
    and n_shared are numbers of a job.

    ``x`` has a buffer of vectors for each job, in order. Each job gives its rows in order and a
    ``status`` after the last one: faults (golden.vqllm.format.Fault) and counters. Rows with a
    fault are NaN (0x7E00), the others are right. A job that is out of range gives one row, NaN.

    A row per ``max(1, 2**split / lanes)`` cycles, and each core a beat per cycle, where memory and
    the banks give as much: golden.vqllm.bounds. No combinational path leads from an input to an
    output.
    Source: VQ-LLM, sections V and VI; decisions 0207 and 0208.
    Golden: golden.vqllm.product.by_dequantizing.
    """

    golden = "golden.vqllm.product:by_dequantizing"
    reference = "tests/vqllm/test_product.py: test_by_dequantizing"
    default = VqGemvConfig()
    configs: ClassVar = {
        **_ENGINES,
        "gptvq2_exchange": VqGemvConfig(core=_EXCHANGED),
        "small": VqGemvConfig(core=CORES["small"], scaled=True, ahead=8, far=8),
        "small_x4": VqGemvConfig(core=CORES["small"], cores=4, lanes=2, ahead=8, far=8),
    }

    def __init__(self, config: VqGemvConfig):
        super().__init__(
            config,
            {
                "x": In(stream.Signature(config.core.sums.x_layout), "Vectors of each job."),
                "job": In(stream.Signature(config.job_layout), "Matrices in memory."),
                "y": Out(stream.Signature(config.finish.y_layout), "Results, row by row."),
                "status": Out(stream.Signature(config.status_layout), "How each job ended."),
                "axi": Out(config.share.axi_signature, "AXI4 manager: the image of the matrices."),
            },
        )

    # A job's rows one per cycle at most (golden.vqllm.bounds); its status.
    timing = Timing(latency=1, start="the last y of a job", end="status", unit="row")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        control = add(m, "control", VqGemvControl(config))
        reduce = add(m, "reduce", VqReduce(config.reduce))
        finish = add(m, "finish", VqRowFinish(config.finish))
        link(m, self.job, control.job)
        link(m, control.rows, reduce.job)
        link(m, reduce.sum, finish.sum)
        link(m, finish.y, self.y)
        m.d.comb += [
            finish.exponent.eq(control.exponent),
            control.ends.eq(self.y.valid & self.y.ready & self.y.p.last),
            control.answered.eq(self.status.ready),
        ]
        clear = control.answer & self.status.ready
        cores, fetches, fars = [], [], []
        for k in range(config.cores):
            core, fetch, far = self._elaborate_core(m, k, control, clear)
            link(m, core.sum, reduce.part[k])
            cores.append(core)
            fetches.append(fetch)
            fars.append(far.axi)
        descriptors, books, codes = zip(*(fetch.axi for fetch in fetches), strict=True)
        # Their turns follow this order: the first codes of a job come after the codebooks.
        readers = [*descriptors, self._elaborate_books(m, books, clear), *codes, *fars]
        refused = Const(0, 2)
        if config.scaled:
            scales = add(m, "scales", VqRowScales(config.fetch.reader(8)))
            link(m, control.scales, scales.job)
            link(m, scales.scale, finish.scale)
            readers.append(scales.axi)
            refused = Mux(scales.scale.valid & scales.scale.ready, scales.resp, 0)
        share = add(m, "share", VqPortShare(config.share))
        link(m, share.axi.ar, self.axi.ar)
        link(m, self.axi.r, share.axi.r)
        for reader, port in zip(readers, share.reader, strict=True):
            link(m, reader.ar, port.ar)
            link(m, port.r, reader.r)
        nonfinite = self._elaborate_x(m, control.users, cores, clear)
        self._elaborate_status(m, control, cores, fetches, nonfinite, refused, clear)
        return m

    def _elaborate_books(self, m: Module, books: tuple, clear):
        """The one reader of codebooks for all cores."""
        if len(books) == 1:
            return books[0]
        share = add(m, "book_share", VqBookShare(self.config.book_share))
        m.d.comb += share.clear.eq(clear)
        for book, port in zip(books, share.reader, strict=True):
            link(m, book.ar, port.ar)
            link(m, port.r, book.r)
        return share.axi

    def _elaborate_core(self, m: Module, k: int, control, clear):
        config = self.config
        core = add(m, f"core_{k}", VqGemvCore(config.core))
        fetch = add(m, f"fetch_{k}", VqFetch(config.fetch))
        far = add(m, f"far_{k}", VqReadBuffer(config.fetch.reader(config.far)))
        link(m, control.core[k], fetch.job)
        for name in ("load_info", "load", "code"):
            link(m, getattr(fetch, name), getattr(core, name))
        link(m, fetch.core_job, core.job)
        link(m, core.axi.ar, far.inner.ar)
        link(m, far.inner.r, core.axi.r)
        m.d.comb += [
            fetch.go_on.eq(control.go_on[k]),
            fetch.loaded.eq(core.loaded),
            fetch.load_fault.eq(core.load_fault),
            fetch.clear.eq(clear),
            core.clear.eq(clear),
        ]
        return core, fetch, far

    def _elaborate_x(self, m: Module, users, cores, clear):
        """Each vector goes to all cores that take part; whether a job's vectors are finite."""
        found = queue(m, "found", 1, 4)
        wrong = Signal()
        special = Signal()
        takes = Signal()
        ends = Signal()
        p = self.x.p
        ready = Cat(core.x.ready | ~users.p[k] for k, core in enumerate(cores)).all()
        m.d.comb += [
            special.eq(any_of(is_special(word) for word in p.word)),
            self.x.ready.eq(users.valid & found.i.ready & ready),
            takes.eq(self.x.valid & self.x.ready),
            ends.eq(takes & p.last & p.end),
            users.ready.eq(ends),
            found.i.valid.eq(ends),
            found.i.p.eq(wrong | special),
            found.o.ready.eq(clear),
        ]
        for k, core in enumerate(cores):
            m.d.comb += [
                core.x.valid.eq(takes & users.p[k]),
                *(core.x.p[name].eq(p[name]) for name in self.config.core.sums.x_layout.members),
            ]
        with m.If(takes):
            m.d.sync += wrong.eq(Mux(ends, 0, wrong | special))
        return found.o.p

    def _elaborate_status(
        self, m: Module, control, cores, fetches, nonfinite, refused, clear
    ) -> None:
        """Drives ``status``: the faults that all parts found in the job that ran."""
        scale = Signal(2)
        m.d.sync += scale.eq(Mux(clear, 0, scale | refused))
        found = [fetch.status for fetch in fetches]
        # A job that is out of range states no length.
        is_void = any_of((each.fault & Fault.JOB).any() for each in found)
        faults = flag_word({
            Fault.NONFINITE: nonfinite,
            Fault.CODEBOOK: any_of(core.bad for core in cores),
            Fault.NO_ENTRY: any_of(core.worst[1] for core in cores),
            Fault.NO_SCALE: scale[1],
            Fault.LENGTH: cores[0].uneven & ~is_void,  # it has part in every job
        })  # fmt: skip
        p = self.status.p
        m.d.comb += [
            self.status.valid.eq(control.answer),
            p.fault.eq(faults | any_of(each.fault for each in found)),
            p.resp.eq(
                scale | any_of(each.resp for each in found)
                | any_of(Mux(core.worst[1], core.worst, 0) for core in cores)
            ),
        ]  # fmt: skip
        for name in self.config.core.cache.counts_layout.members:
            m.d.comb += p[name].eq(sum(core.counts[name] for core in cores))
