"""Codebooks in two buffers: one is used, one is loaded (docs/blocks/index_codebook_store.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.format import CodebookFault
from golden.timing import Timing
from hdl.bits import any_of, outside
from hdl.block import Block
from hdl.children import add
from hdl.kinds import index_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload
from hdl.stream.payload import LAST

_ONE = 0x3C00  # the largest magnitude of an entry


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexCodebookStoreConfig(Config):
    """Size of the codebooks, and of their words."""

    macs: int = bounded(64, 1, 256, "FP16 words of a memory word")
    parts: int = bounded(2, 1, 64, "memory words of a row")
    entries: int = bounded(256, 1, 4096, "most rows of a book")
    books: int = bounded(1, 1, 128, "codebooks that are loaded and used together")
    exponent_min: int = bounded(-8, -128, 0, "least scale 2**exponent of a load")
    exponent_max: int = bounded(15, 1, 127, "largest scale of a load")

    def __post_init__(self) -> None:
        most = (1 << 20) // (2 * self.book_words)  # words of a RAM
        if self.books > most:
            self._refuse("books", f"1..{most} at these sizes")

    @property
    def book_words(self) -> int:
        """Places of one book."""
        return self.entries * self.parts

    @property
    def words(self) -> int:
        """Places of one buffer."""
        return self.books * self.book_words

    @property
    def address(self) -> range:
        """The addresses of the words of a buffer, at least one bit."""
        return range(max(2, self.words))

    @property
    def word_bits(self) -> int:
        return FP16.bits * self.macs

    @property
    def memory(self) -> MemoryConfig:
        return MemoryConfig(depth=2 * self.words, width=self.word_bits)

    @property
    def entries_shape(self) -> range:
        return range(self.entries + 1)

    @property
    def exponent_shape(self) -> range:
        return range(self.exponent_min, self.exponent_max + 1)

    @property
    def info_layout(self) -> data.StructLayout:
        return Payload(
            entries=(self.entries_shape, "rows of each book, 1..entries"),
            exponent=(self.exponent_shape, "the entries are times 2**exponent"),
        )

    @property
    def load_layout(self) -> data.StructLayout:
        return Payload(
            word=(data.ArrayLayout(FP16.bits, self.macs), "macs elements of a row", FP16),
            last=LAST,
        )


class IndexCodebookStore(Block):
    """Two buffers of ``books`` codebooks: readers use one while the other is loaded.

    A row of ``parts`` words holds one entry of every subspace, element 0 in the low bits. Word
    ``part`` of row j of a book is at ``(book * entries + j) * parts + part``. ``entries`` is that
    of the configuration.

    Loading: ``load_info``, then a packet of ``load``: ``books * entries * parts`` words in order,
    ``entries`` being those of ``load_info``. ``last`` alone ends it; words beyond the books are not
    written. ``loaded`` rises if no word was bad; else ``load_bad`` is set, and ``load_fault`` says
    why. Both stay until the next ``load_info``. This one also takes the place of a load that waits
    for ``swap``: a parent that does not want that holds it back while ``loaded``.

    ``swap`` while ``loaded`` exchanges the buffers at the end of the cycle. Without ``loaded``
    it does nothing. The parent lets readers finish first. A load disturbs no reader.

    ``scan`` is always granted; ``low`` is granted where no scan reads. Data come one cycle later
    and are valid in that cycle alone. ``load`` takes one word per cycle. The only combinational
    path leads from ``scan_en`` and ``low_en`` to ``low_grant``.
    Source: MILLION, section IV. Golden: golden.index.store.store_words, load_fault.
    """

    golden = "golden.index.store:store_words"
    reference = "tests/index/test_store.py: test_words_lie_where_the_address_says"
    default = IndexCodebookStoreConfig()
    configs: ClassVar = {
        "smollm2": IndexCodebookStoreConfig(parts=1),
        "per_head": IndexCodebookStoreConfig(parts=1, books=3),
        "small": IndexCodebookStoreConfig(macs=4, parts=4, entries=16),
    }

    def __init__(self, config: IndexCodebookStoreConfig):
        place, words = index_of("words of a buffer"), config.word_bits
        super().__init__(
            config,
            {
                "load_info": In(stream.Signature(config.info_layout), "Begins a load."),
                "load": In(stream.Signature(config.load_layout), "Words of the books in order."),
                "loading": Out(1, "A load has begun and not ended."),
                "loaded": Out(1, "A complete load without faults waits for swap."),
                "load_bad": Out(1, "The load has a fault; until the next load_info."),
                "load_fault": Out(len(CodebookFault), "Its faults.", CodebookFault),
                "swap": In(1, "Use the buffer that is loaded, from the next cycle on."),
                "valid": Out(1, "The buffer in use holds codebooks."),
                "entries": Out(config.entries_shape, "Rows of each book in use."),
                "exponent": Out(config.exponent_shape, "The entries in use are times 2**exponent."),
                "scan_en": In(1, "Read word scan_addr."),
                "scan_addr": In(config.address, "Word of the buffer in use.", place),
                "scan_data": Out(words, "The word, in the cycle after scan_en.", FP16),
                "low_en": In(1, "Read word low_addr, if no scan reads."),
                "low_addr": In(config.address, "Word of the buffer in use.", place),
                "low_grant": Out(1, "The word of low_addr is read."),
                "low_data": Out(words, "The word, in the cycle after low_grant.", FP16),
            },
        )

    # A word per cycle is written, and one is read.
    timing = Timing(
        latency=1,
        start="scan_en",
        end="scan_data",
        unit="word",
        delays=(
            ("from load_info to the first word of load", 1),
            ("from the last word of load to loaded", 1),
            ("from swap to the other buffer", 1),
        ),
    )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        memory = add(m, "memory", Memory1R1W(config.memory))
        side = Signal()  # the buffer in use
        next_entries = Signal.like(self.entries, name="next_entries")
        next_exponent = Signal.like(self.exponent, name="next_exponent")

        m.d.comb += [
            self.low_grant.eq(self.low_en & ~self.scan_en),
            memory.read_en.eq(self.scan_en | self.low_en),
            memory.read_addr.eq(
                Mux(self.scan_en, self.scan_addr, self.low_addr) + Mux(side, config.words, 0)
            ),
            self.scan_data.eq(memory.read_data),
            self.low_data.eq(memory.read_data),
        ]

        book = Signal(range(config.books + 1))  # books: the load is complete
        place = Signal(range(config.book_words + 1))
        final = Signal(range(config.book_words + 1))
        loading = Signal()
        fault = Signal(len(CodebookFault))
        take = Signal()
        complete = Signal()
        ends_book = Signal()
        ends = Signal()
        wrong = Signal(len(CodebookFault))  # with the word that is taken
        magnitudes = [word[:-1] for word in self.load.p.word]
        nonfinite = any_of([magnitude >= FP16.infinity for magnitude in magnitudes])
        large = any_of([(word > _ONE) & (word < FP16.infinity) for word in magnitudes])
        m.d.comb += [
            self.load_info.ready.eq(~loading),
            self.load.ready.eq(loading),
            self.loading.eq(loading),
            self.load_bad.eq(fault.any()),
            self.load_fault.eq(fault),
            take.eq(self.load.valid & loading),
            complete.eq(book == config.books),
            ends_book.eq(place == final),
            ends.eq((book == config.books - 1) & ends_book),
            wrong.eq(fault | Cat(nonfinite, large, complete | (self.load.p.last & ~ends))),
            memory.write_en.eq(take & ~complete),
            memory.write_addr.eq(book * config.book_words + place + Mux(side, 0, config.words)),
            memory.write_data.eq(self.load.p.word),
        ]
        with m.If(take):
            m.d.sync += fault.eq(wrong)
            with m.If(~complete):
                m.d.sync += [
                    place.eq(Mux(ends_book, 0, place + 1)),
                    book.eq(book + ends_book),
                ]
            with m.If(self.load.p.last):
                m.d.sync += [loading.eq(0), self.loaded.eq(~wrong.any())]
        with m.If(self.swap & self.loaded):
            m.d.sync += [
                side.eq(~side),
                self.valid.eq(1),
                self.entries.eq(next_entries),
                self.exponent.eq(next_exponent),
                self.loaded.eq(0),
            ]
        info = self.load_info.p
        refused = Signal()
        m.d.comb += refused.eq(
            outside(info.entries, config.entries_shape)
            | (info.entries == 0)
            | outside(info.exponent, config.exponent_shape)
        )
        with m.If(self.load_info.valid & ~loading):
            m.d.sync += [
                loading.eq(1),
                self.loaded.eq(0),
                fault.eq(0),
                place.eq(0),
                final.eq(info.entries * config.parts - 1),
                book.eq(0),
                next_entries.eq(info.entries),
                next_exponent.eq(info.exponent),
            ]
            with m.If(refused):
                m.d.sync += [fault.eq(CodebookFault.SHAPE), book.eq(config.books)]
        return m
