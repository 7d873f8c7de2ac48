"""Rows of a tile to codes and maps with given codebooks (docs/blocks/qet_encoder.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.qet import timing
from golden.qet.format import RowFault
from golden.timing import Timing
from hdl.bits import any_of
from hdl.block import Block
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.ports import In, Out, Payload
from hdl.qet.codebooks import add_codebooks, load_members
from hdl.qet.encode_stage import QetEncodeStage
from hdl.qet.shapes import PRODUCT, SMALL, SMOLLM2
from hdl.qet.tile import QetTileConfig
from hdl.stream.link import link
from hdl.stream.payload import LAST
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetEncoderConfig(QetTileConfig):
    """The tiles that are encoded."""

    has_exponent: ClassVar[bool] = True

    @property
    def x_layout(self) -> data.StructLayout:
        return Payload(
            word=(self.words_layout, "columns of the tile", FP16),
            switch=(1, "use the codebooks that were loaded, from this row on"),
            last=LAST,
        )


class QetEncoder(Block):
    """``code = argmin over j of sum_i (X_i - E[j][i])**2`` of each group and stage, and the maps.

    A stage swaps the words of the row, takes the nearest entry of each group, and leaves ``rne16(
    2**(exponent - 24) * (X - E))`` to the next stage. X is a word times ``2**(24 - exponent)``
    without what lies below its last bit, at most 2**26 - 1 in magnitude. The sums are exact. Of
    equal distances the lowest j wins. An infinite residual becomes the largest number.

    ``info``, ``load``, ``verdict`` and ``switch`` are those of QetDecoder. ``info`` has the
    exponent of the matrix, too. ``o`` has the fields of a row of QetDecoder.

    | wrong | effect |
    |---|---|
    | a load: too few or many words, numbers out of range, NaN, above 2 | its verdict; not used |
    | NaN or infinity in the row, no codebooks in use | ``fault``; codes and maps have no meaning |

    A stage compares one entry of each group per cycle. The stages work on different rows. So a row
    takes the cycles of the slowest stage, golden.qet.timing.encode_stage. Latency
    golden.qet.timing.encoder, with the largest codebooks. With one stage ``x.ready`` depends
    combinationally on ``o.ready``, else on no input.
    Source: QET, sections 3.2 and 3.4, Algorithm 1; decisions 0220 and 0221.
    Golden: golden.qet.matrix.encode, golden.qet.tiling.tiles_of.
    """

    golden = "golden.qet.matrix:encode"
    reference = "tests/qet/test_matrix.py: test_codes_are_the_nearest_of_the_stored_entries"
    default = QetEncoderConfig()
    configs: ClassVar = {
        "smollm2": QetEncoderConfig(shape=SMOLLM2),
        "product": QetEncoderConfig(shape=PRODUCT),
        "small": QetEncoderConfig(shape=SMALL),
    }

    def __init__(self, config: QetEncoderConfig):
        super().__init__(
            config,
            {
                **load_members(config),
                "x": In(stream.Signature(config.x_layout), "Rows of the tile."),
                "o": Out(stream.Signature(config.coded_layout), "Codes and maps, row by row."),
            },
        )

    @property
    def timing(self) -> Timing:
        shape = self.config.shape
        return timing.encoder(shape.stages, shape.group)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        books = add_codebooks(m, config, self.info, self.load, self.verdict)
        special = Signal()
        rows, waiting = self.x, []
        for stage, book in zip(config.stages, books, strict=True):
            n = stage.number
            part = add(m, f"stage_{n}", QetEncodeStage(stage))
            if n == 0:
                m.d.comb += [
                    special.eq(any_of(is_special(word) for word in rows.p.word)),
                    part.i.valid.eq(rows.valid),
                    rows.ready.eq(part.i.ready),
                    Value.cast(part.i.p.word).eq(Value.cast(rows.p.word)),
                    part.i.p.flags.switch.eq(rows.p.switch),
                    part.i.p.flags.fault.eq(Mux(special, RowFault.NONFINITE, 0)),
                    part.i.p.flags.last.eq(rows.p.last),
                ]
            else:
                link(m, rows, part.i)
            m.d.comb += [
                part.waits.eq(book.waits),
                book.adopt.eq(part.adopt),
                part.used.eq(book.used),
                part.valid.eq(book.valid),
                book.read.eq(part.read),
                book.row.eq(part.row),
                part.entry.eq(book.entry),
            ]
            coded = part.coded
            if not stage.is_final:
                # Codes wait for those of the last stage. Each stage that follows may have a row
                # in each register of its swaps, and in both of the residual before it.
                after = [max(each.stage.levels, 1) + 2 for each in config.stages[n + 1 :]]
                held = queue(m, f"coded_{n}", coded.p.shape(), sum(after) + 1)
                link(m, coded, held.i)
                coded, rows = held.o, part.rest
            waiting.append(coded)
        valid = Cat(each.valid for each in waiting).all()
        final = waiting[-1].p.flags
        m.d.comb += [
            self.o.valid.eq(valid),
            *(each.ready.eq(self.o.valid & self.o.ready) for each in waiting),
            self.o.p.switch.eq(final.switch),
            self.o.p.fault.eq(any_of(each.p.flags.fault for each in waiting)),
            self.o.p.last.eq(final.last),
        ]
        for stage, each in zip(config.stages, waiting, strict=True):
            n = stage.number
            m.d.comb += Value.cast(self.o.p[f"code_{n}"]).eq(Value.cast(each.p.code))
            if stage.map_bits:
                m.d.comb += Value.cast(self.o.p[f"map_{n}"]).eq(Value.cast(each.p.map))
        return m
