"""Codes of a matrix and vectors to exact sums of rows (docs/blocks/vq_gemv_core.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.axi.format import Resp
from golden.config import Config, choice, nested
from golden.index.format import CodebookFault
from golden.timing import Timing
from golden.vqllm import timing
from golden.vqllm.config import ExchangeShape
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Member, Out, Payload
from hdl.stream.link import StreamView, link
from hdl.vqllm.cache.cache import VqCodebookCache
from hdl.vqllm.cache.config import CACHES, VqCodebookCacheConfig
from hdl.vqllm.dequantizer import VqDequantizer, VqDequantizerConfig
from hdl.vqllm.exchange import VqExchange, VqExchangeConfig
from hdl.vqllm.layout_buffer import VqLayoutBuffer, VqLayoutBufferConfig
from hdl.vqllm.row.config import VqRowSumsConfig
from hdl.vqllm.row.sums import VqRowSums

_FUSIONS = {
    "exchange": (VqExchange, VqExchangeConfig),
    "buffer": (VqLayoutBuffer, VqLayoutBufferConfig),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqGemvCoreConfig(Config):
    """Codebooks and look-ups, and the largest matrix."""

    conditional_parts: ClassVar[tuple[str, ...]] = ("dequantizer", "exchange")

    cache: VqCodebookCacheConfig = nested(VqCodebookCacheConfig)
    batch: int = 1  # vectors side by side, 1..64
    groups: int = 1  # most groups of vectors that a beat meets in turn, a power of two in 1..64
    columns: int = 11264  # most of the matrix, a multiple of the elements of a beat
    rows: int = 256  # most rows of a job, 1..65,536
    fusion: str = choice(
        "none", ("none", "exchange", "buffer"), "what brings elements to other lanes"
    )
    need: int = 0  # elements that a lane multiplies at a time, 1..8; 0, all, without fusion

    def __post_init__(self) -> None:
        if self.fusion == "none" and self.need:
            self._refuse("need", "0 without fusion")
        self.check_parts()
        beat = self.vectors * self.cache.vq.size
        if self.columns % beat:
            self._refuse("columns", f"a multiple of {beat}, the elements of a beat")

    @property
    def exchange(self) -> ExchangeShape:
        """ConfigError: vectors of the beat and ``need`` do not fit each other."""
        return ExchangeShape(size=self.cache.vq.size, need=self.need, lanes=self.vectors)

    @property
    def pieces(self) -> int:
        """Words of x that a beat of codes meets."""
        return 1 if self.fusion == "none" else self.exchange.pieces

    @property
    def vectors(self) -> int:
        """Vectors of the matrix in a beat."""
        return self.cache.lookups // self.cache.vq.stages

    @property
    def timing(self) -> Timing:
        """The timing of a core of this size."""
        return timing.gemv_core(self.sums.macs, self.cache.vq.summed, self.fusion, self.pieces)

    @property
    def sums(self) -> VqRowSumsConfig:
        vq = self.cache.vq
        return VqRowSumsConfig(
            macs=self.vectors * vq.size // self.pieces,
            largest=vq.largest,
            batch=self.batch,
            groups=self.groups,
            columns=self.columns,
            rows=self.rows,
            states_words=True,
        )

    @property
    def code_layout(self) -> data.StructLayout:
        parts = {**self.cache.look_layout.parts}
        del parts["last"]
        return Payload(**parts, wrong=(1, "the row has no meaning"))

    @property
    def dequantizer(self) -> VqDequantizerConfig:
        return VqDequantizerConfig(vq=self.cache.vq, vectors=self.vectors)


def core_members(config: VqGemvCoreConfig) -> dict[str, Member]:
    """Ports of the core; an engine that rounds has them, too, but ``sum``."""
    cache, sums = config.cache, config.sums
    return {
        "load_info": In(stream.Signature(cache.info_layout), "Begins a load."),
        "load": In(stream.Signature(cache.load_layout), "Entries, stage by stage."),
        "loaded": Out(1, "A complete load without faults waits for a switch."),
        "load_fault": Out(len(CodebookFault), "Faults of the load.", CodebookFault),
        "code": In(stream.Signature(config.code_layout), "Codes of the tiles."),
        "x": In(stream.Signature(sums.x_layout), "Vectors, one after another."),
        "job": In(stream.Signature(sums.job_layout), "Rows and columns of the tiles."),
        "sum": Out(stream.Signature(sums.sum_layout), "Sums of final jobs, row by row."),
        "worst": Out(2, "Largest response of memory.", Resp),
        "bad": Out(1, "An entry of memory was above 1 or not finite."),
        "uneven": Out(1, "Vectors had another length than their job states, or were too many."),
        "counts": Out(cache.counts_layout, "Counters of the look-ups."),
        "clear": In(1, "Counters, worst, bad and uneven begin at 0 in the next cycle."),
        "axi": Out(cache.axi_signature, "AXI4 manager: the memory of the entries."),
    }


CORES = {
    **{name: VqGemvCoreConfig(cache=cache) for name, cache in CACHES.items()},
    "small": VqGemvCoreConfig(cache=CACHES["small"], batch=2, columns=32, rows=8),
}  # fmt: skip


class VqGemvCore(Block):
    """``sum[n][b] = sum over columns k of W[n][k] * x[b][k]``, exact, W from codes.

    An element of W is ``rne16`` of the sum of its entries, one of each stage. A lattice's entries
    have signs and shifts in their codes, which the dequantizer applies. The sums are on the grid
    2**-48.

    The codes of a tile are ``code`` beats: for each row the codes of its vectors, ``vectors`` of
    them a beat, stage by stage. Lanes beyond the end of a row are not used. The first beat of a
    tile with other codebooks has ``switch``. A job of VqRowSums says which rows and columns a tile
    has. The tiles of the same rows follow each other, and ``final`` is the last of them. So the
    engine switches codebooks along the columns, and splits the sums there.

    With ``fusion`` a lane multiplies ``need`` elements of a vector at a time, and a beat of codes
    meets ``pieces`` words of x. A job counts such words, and x comes in the order of
    golden.vqllm.exchange.lane_order. Look-ups of the next beats go on meanwhile.

    | wrong | effect |
    |---|---|
    | NaN or infinity in x | ``bad`` of the vector in all sums |
    | vectors of another length than ``words`` of their job, or too many | ``bad`` of all sums |
    | an entry that memory refuses, or that is above 1 or not finite | ``bad`` of all in the row |
    | ``wrong`` of a beat | ``bad`` of all in the row |
    | a load with faults | ``load_fault``; a ``switch`` waits for another load |

    ``worst`` is the largest response of memory, ``bad`` an entry that was wrong, and ``uneven``
    vectors of another length, until ``clear``.

    A beat per ``pieces`` cycles where the cache gives as many. Latency
    golden.vqllm.timing.gemv_core, from the last beat of a row. Source: VQ-LLM, sections II and V.
    Golden: golden.vqllm.product.exact_sums of golden.vqllm.matrix.VqMatrix.dequantized.
    """

    golden = "golden.vqllm.product:exact_sums"
    reference = "tests/vqllm/test_product.py: test_by_dequantizing"
    default = VqGemvCoreConfig()
    configs: ClassVar = {name: CORES[name] for name in ("aqlm3", "gptvq2", "quip4", "small")}

    def __init__(self, config: VqGemvCoreConfig):
        super().__init__(config, core_members(config))

    @property
    def timing(self) -> Timing:
        return self.config.timing

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        cache = add(m, "cache", VqCodebookCache(config.cache))
        sums = add(m, "sums", VqRowSums(config.sums))
        for name in ("load_info", "load"):
            link(m, getattr(self, name), getattr(cache, name))
        link(m, self.code, cache.look, rename={"wrong": "last"})  # it goes along with the beat
        link(m, cache.axi.ar, self.axi.ar)
        link(m, self.axi.r, cache.axi.r)
        for name in ("x", "job"):
            link(m, getattr(self, name), getattr(sums, name))
        link(m, sums.sum, self.sum)
        m.d.comb += [
            self.loaded.eq(cache.loaded),
            self.load_fault.eq(cache.load_fault),
            self.counts.eq(cache.counts),
            cache.clear.eq(self.clear),
        ]
        entry = cache.entry
        wrong = Signal()
        m.d.comb += wrong.eq(entry.p.bad | entry.p.resp[1] | entry.p.last)
        m.d.sync += self.uneven.eq(sums.uneven | (self.uneven & ~self.clear))
        with m.If(self.clear):
            m.d.sync += [self.worst.eq(0), self.bad.eq(0)]
        with m.Elif(entry.valid & entry.ready):
            worse = entry.p.resp > self.worst
            m.d.sync += [
                self.worst.eq(Mux(worse, entry.p.resp, self.worst)),
                self.bad.eq(self.bad | entry.p.bad),
            ]
        self._elaborate_words(m, entry, wrong, sums.w)
        return m

    def _elaborate_words(self, m: Module, entry: StreamView, wrong, w) -> None:
        """Entries to the elements of a beat; a row with a wrong entry is wrong."""
        config = self.config
        words, is_wrong, value = entry, wrong, entry.p.entry
        if config.cache.vq.summed:
            words = add(m, "dequantizer", VqDequantizer(config.dequantizer))
            i = words.i
            m.d.comb += [
                i.valid.eq(entry.valid),
                Value.cast(i.p.entry).eq(Value.cast(entry.p.entry)),
                i.p.last.eq(wrong),  # it goes along with the beat
                entry.ready.eq(i.ready),
            ]
            if config.cache.vq.lattice:
                m.d.comb += Value.cast(i.p.point).eq(Value.cast(entry.p.point))
            words, is_wrong, value = words.o, words.o.p.last, words.o.p.word
        if config.fusion != "none":
            block, sizes = _FUSIONS[config.fusion]
            change = add(m, "change", block(sizes(shape=config.exchange)))
            m.d.comb += [
                change.i.valid.eq(words.valid),
                Value.cast(change.i.p.word).eq(Value.cast(value)),
                change.i.p.last.eq(is_wrong),  # it comes with the last word of the beat
                words.ready.eq(change.i.ready),
            ]
            words, is_wrong, value = change.o, change.o.p.last, change.o.p.word
        m.d.comb += [
            Value.cast(w.p.word).eq(Value.cast(value)),
            w.p.wrong.eq(is_wrong),
            w.valid.eq(words.valid),
            words.ready.eq(w.ready),
        ]
