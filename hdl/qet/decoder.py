"""Codes and maps of a tile to its rows (docs/blocks/qet_decoder.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.qet.format import RowFault
from golden.timing import Timing
from hdl.bits import any_of, let
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.qet.codebooks import add_codebooks, load_members
from hdl.qet.dequantizer import QetDequantizer, beat_layout
from hdl.qet.shapes import LLAMA, PRODUCT, SMALL, SMOLLM2
from hdl.qet.tile import QetStageConfig, QetTileConfig
from hdl.qet.unswap import QetUnswap, QetUnswapConfig
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetDecoderConfig(QetTileConfig):
    """The tiles that are decoded."""

    @property
    def has_sums(self) -> bool:
        """Whether a word is more than the word of an entry."""
        return self.has_ranges or len(self.stages) > 1

    def unswap(self, stage: QetStageConfig) -> QetUnswapConfig:
        return QetUnswapConfig(
            levels=stage.stage.levels, networks=stage.networks, bits=self.shape.element_bits
        )


class QetDecoder(Block):
    """``word[c] = rne16(2**-24 * sum over stages s of unswap_s(E_s)[c])``, a row of a tile.

    ``E_s`` is the entry that a code of stage s names, an integer ``low + step * element`` on the
    grid 2**-24, or its FP16 word. The codes of part p come after those of part p - 1. The maps of
    the stage put the values of the parts to their columns. The words are those of the matrix times
    ``2**-exponent``.

    A load is ``info``, then all entries of stage 0, then those of each next stage. A word has the
    entries of the same number of all groups. ``last`` ends it. Each load has a ``verdict``. Without
    faults it waits for a row with ``switch``, which uses it, as do the rows after it. Such a row
    waits for a load. The next load may come while rows pass. ``low`` and ``low + step *
    (2**entry_bits - 1)`` lie within -2..2. The last may exceed 2 by ``2**entry_bits - 1`` ulps.

    | wrong | effect |
    |---|---|
    | a load: too few or many words, numbers out of range, NaN, above 2 | its verdict; not used |
    | a code beyond its codebook, no codebooks in use, ``wrong`` | ``fault``; all words are NaN |

    A row per cycle, and a word of a load per cycle. Latency ``timing``: look-up,
    unswap, and with sums products, sum, rounding. ``row.ready`` depends combinationally on
    ``o.ready`` and ``row.switch``.
    Source: QET, sections 3.2 and 3.4, Algorithm 2; decisions 0221 and 0223.
    Golden: golden.qet.tiling.tiles_of.
    """

    golden = "golden.qet.tiling:tiles_of"
    reference = "tests/qet/test_matrix.py: test_tiles_hold_the_words_of_exact_fractions"
    default = QetDecoderConfig()
    configs: ClassVar = {
        "smollm2": QetDecoderConfig(shape=SMOLLM2),
        "llama": QetDecoderConfig(shape=LLAMA),
        "product": QetDecoderConfig(shape=PRODUCT),
        "small": QetDecoderConfig(shape=SMALL),
    }

    def __init__(self, config: QetDecoderConfig):
        super().__init__(
            config,
            {
                **load_members(config),
                "row": In(stream.Signature(config.row_layout), "Codes and maps, row by row."),
                "o": Out(stream.Signature(config.decoded_layout), "Rows of the tile."),
            },
        )

    @property
    def timing(self) -> Timing:
        """Look-up and unswap; where words are sums, products, sum and rounding."""
        return Timing(latency=5 if self.config.has_sums else 2, start="row", end="o", unit="row")

    def elaborate(self, platform) -> Module:
        m, config, row = Module(), self.config, self.row
        books = add_codebooks(m, config, self.info, self.load, self.verdict)
        unswaps = [
            add(m, f"unswap_{stage.number}", QetUnswap(config.unswap(stage)))
            for stage in config.stages
        ]
        flags = beat_layout(config)
        kept = queue(m, "kept", self._kept_layout(flags), 3)

        beyond = [
            [
                let(m, f"beyond_{stage.number}_{k}", code >= book.used.entries)
                for k, code in enumerate(row.p[f"code_{stage.number}"])
            ]
            for stage, book in zip(config.stages, books, strict=True)
        ]

        # Look-up: the RAMs hold the entries of the row that ``full`` says is there.
        # the stages move together
        full = Signal()
        takes = Signal()
        moves = unswaps[0].i.ready
        waits = let(m, "waits", books[0].waits)  # a load comes to all stages at once
        m.d.comb += [
            row.ready.eq((~full | moves) & kept.i.ready & (~row.p.switch | waits)),
            takes.eq(row.valid & row.ready),
            kept.i.valid.eq(takes),
            kept.i.p.last.eq(row.p.last),
            kept.i.p.fault.eq(self._fault(beyond, books[0].valid)),
        ]
        m.d.sync += full.eq(takes | (full & ~moves))
        for stage, book, unswap in zip(config.stages, books, unswaps, strict=True):
            n = stage.number
            m.d.comb += [
                book.adopt.eq(takes & row.p.switch),
                book.read.eq(takes),
                *(
                    book.row[k].eq(Mux(beyond[n][k], 0, code))
                    for k, code in enumerate(row.p[f"code_{n}"])
                ),
                unswap.i.valid.eq(full),
            ]
            if config.has_ranges:
                m.d.comb += [
                    kept.i.p.low[n].eq(book.used.low),
                    kept.i.p.step[n].eq(book.used.step),
                ]
            if stage.map_bits:
                held = Signal.like(Value.cast(row.p[f"map_{n}"]), name=f"map_{n}", reset_less=True)
                with m.If(takes):
                    m.d.sync += held.eq(row.p[f"map_{n}"])
                m.d.comb += Value.cast(unswap.i.p.map).eq(held)
            self._place(m, stage, book, unswap)
        self._elaborate_sums(m, unswaps, kept.o)
        return m

    @staticmethod
    def _kept_layout(beat: data.StructLayout) -> data.StructLayout:
        """The fields that go around the networks."""
        return data.StructLayout({k: v for k, v in beat.members.items() if k != "entry"})

    @staticmethod
    def _place(m: Module, stage: QetStageConfig, book, unswap) -> None:
        """Elements of the entries to the parts of the networks."""
        parts = stage.stage.parts
        for at, (group, element) in enumerate(stage.places()):
            network, part = divmod(at, parts)
            m.d.comb += Value.cast(unswap.i.p.word[network][part]).eq(book.entry[group][element])

    def _fault(self, beyond: list[list[Value]], valid) -> Value:
        """The faults of the row that is taken."""
        is_beyond = any_of([bit for bits in beyond for bit in bits])
        return (
            Mux(valid & is_beyond, RowFault.CODE, 0)
            | Mux(valid, 0, RowFault.UNLOADED)
            | Mux(self.row.p.wrong, RowFault.WRONG, 0)
        )

    def _elaborate_sums(self, m: Module, unswaps: list, kept) -> None:
        """The values of all stages to words."""
        config, first = self.config, unswaps[0]
        if not config.has_sums:
            is_wrong = kept.p.fault.any()
            m.d.comb += [
                self.o.valid.eq(first.o.valid),
                first.o.ready.eq(self.o.ready),
                kept.ready.eq(self.o.valid & self.o.ready),
                self.o.p.fault.eq(kept.p.fault),
                self.o.p.last.eq(kept.p.last),
            ]
            for c, word in enumerate(self._columns(first)):
                nan = Const(FP16.canonical_nan, FP16.bits)
                m.d.comb += self.o.p.word[c].eq(Mux(is_wrong, nan, word))
            return
        sums = add(m, "dequantizer", QetDequantizer(config))
        m.d.comb += [
            sums.i.valid.eq(first.o.valid),
            kept.ready.eq(sums.i.valid & sums.i.ready),
            *(unswap.o.ready.eq(sums.i.ready) for unswap in unswaps),
            *(sums.i.p[name].eq(kept.p[name]) for name in kept.p.shape().members),
            self.o.valid.eq(sums.o.valid),
            self.o.p.eq(sums.o.p),
            sums.o.ready.eq(self.o.ready),
        ]  # fmt: skip
        for z, unswap in enumerate(unswaps):
            m.d.comb += [
                sums.i.p.entry[z][c].eq(word) for c, word in enumerate(self._columns(unswap))
            ]

    @staticmethod
    def _columns(unswap) -> list[Value]:
        return [Value.cast(word) for network in unswap.o.p.word for word in network]
