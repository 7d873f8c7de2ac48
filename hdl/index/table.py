"""Rows of indices to rows of words, outliers patched in (docs/blocks/index_table.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, power_of_two
from golden.fp16.format import FP16
from golden.index import timing
from golden.index.format import INT_BITS, TABLE_ROW
from golden.timing import Timing
from hdl.block import Block
from hdl.kinds import NUMBER, mask_of
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexTableConfig(Config):
    """Size of the table, and look-ups per cycle."""

    bits_a: int = bounded(4, 2, 4, "bits of an index")
    integer_bits: int = choice(
        8, (0, *INT_BITS), "bits of an unsigned integer in an entry; 0: no integers"
    )
    width: int = power_of_two(8, 1, 16, "look-ups per cycle")

    @property
    def i_layout(self) -> data.StructLayout:
        entry = max(self.bits_a, self.integer_bits)  # an index or an integer, low-aligned
        return Payload(
            value=(data.ArrayLayout(entry, TABLE_ROW), "entry of each element", NUMBER),
            outlier=(TABLE_ROW, "mask of the elements that are outliers", mask_of("elements")),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            word=(data.ArrayLayout(FP16.bits, TABLE_ROW), "FP16 word of each element", FP16)
        )


class IndexTable(Block):
    """``o[e] = outlier mask of e ? next outlier word : table[entry e]``, one row of 16 at a time.

    ``table`` takes 2**bits_a words in index order, at any time when no row is inside. They stay
    until the next as many. A row with n outliers takes max(16 / width, n) cycles, and the next
    one begins at once. Each one in the masks takes one ``outlier`` word,
    in ascending position. Of an entry the low bits_a bits count. ``o.valid`` and ``i.ready``
    depend combinationally on ``outlier.valid``, all ``ready`` but that of table on ``o.ready``.
    Source: KLLM, section III-C. Golden: golden.index.codebook.look_up.
    """

    golden = "golden.index.codebook:look_up"
    reference = "tests/kllm/test_functional.py: test_slots_look_up_what_was_computed_once"
    default = IndexTableConfig()
    configs: ClassVar = {"table1": IndexTableConfig(), "small": IndexTableConfig(bits_a=2, width=4)}

    def __init__(self, config: IndexTableConfig):
        word = stream.Signature(Payload(word=(16, "FP16 word", FP16)))
        super().__init__(
            config,
            {
                "table": In(word, "Words of the table, 2**bits_a of them, in index order."),
                "i": In(stream.Signature(config.i_layout), "16 entries and their outlier mask."),
                "outlier": In(word, "Outlier words in ascending position."),
                "o": Out(stream.Signature(config.o_layout), "16 words."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.table(self.config.width, TABLE_ROW)

    def elaborate(self, platform) -> Module:
        config, m = self.config, Module()
        entries, width = 1 << config.bits_a, config.width
        groups = TABLE_ROW // width
        table = [Signal(16, name=f"table_{j}", reset_less=True) for j in range(entries)]
        at = Signal(range(entries))
        held = Signal()
        filled = Signal()
        index = [
            Signal(config.bits_a, name=f"index_{e}", reset_less=True) for e in range(TABLE_ROW)
        ]
        is_outlier = Signal(TABLE_ROW, reset_less=True)
        missing = Signal(TABLE_ROW, reset_less=True)  # outliers whose word is not there yet
        group = Signal(range(max(groups, 2)))
        row = [Signal(16, name=f"row_{e}", reset_less=True) for e in range(TABLE_ROW)]

        m.d.comb += self.table.ready.eq(~held)
        with m.If(self.table.valid & self.table.ready):
            m.d.sync += [Array(table)[at].eq(self.table.p.word), at.eq(at + 1)]

        lowest = Signal(TABLE_ROW)
        after = Signal(TABLE_ROW)
        complete = Signal()
        all_looked_up = Signal()
        step = Signal()
        m.d.comb += [
            lowest.eq(missing & -missing),
            after.eq(Mux(self.outlier.valid, missing & ~lowest, missing)),
            # ``filled``: every group has been looked up in an earlier cycle.
            all_looked_up.eq(filled | (group == groups - 1)),
            complete.eq(all_looked_up & (after == 0)),
            self.o.valid.eq(held & complete),
            step.eq(held & (~complete | self.o.ready)),
            # The last word missing completes the row, which o must then take.
            self.outlier.ready.eq(
                held & missing.any() & (self.o.ready | ~all_looked_up | (missing & ~lowest).any())
            ),
            self.i.ready.eq(~held | (complete & self.o.ready)),
        ]
        words = [
            Array(table)[Array(index[lane::width])[group] if groups > 1 else index[lane]]
            for lane in range(width)
        ]
        for e in range(TABLE_ROW):
            current = Signal(16, name=f"current_{e}")
            m.d.comb += current.eq(row[e])
            with m.If(lowest[e]):
                m.d.comb += current.eq(self.outlier.p.word)
            with m.Elif(~is_outlier[e] & ~filled & (group == e // width)):
                m.d.comb += current.eq(words[e % width])
            m.d.comb += self.o.p.word[e].eq(current)
            with m.If(step):
                m.d.sync += row[e].eq(current)
        with m.If(step):
            m.d.sync += [missing.eq(after), group.eq(group + 1), filled.eq(all_looked_up)]
        with m.If(self.i.ready):
            m.d.sync += [
                held.eq(self.i.valid),
                is_outlier.eq(self.i.p.outlier),
                missing.eq(self.i.p.outlier),
                group.eq(0),
                filled.eq(0),
            ]
            m.d.sync += [index[e].eq(self.i.p.value[e]) for e in range(TABLE_ROW)]
        return m
