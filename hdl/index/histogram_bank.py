"""One bank of IndexHistogramRam: the bins of one index, in two sets of RAMs."""

import dataclasses

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data

from golden.config import Config
from hdl.block import Block
from hdl.children import add
from hdl.kinds import index_of, mask_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexHistogramBankConfig(Config):
    """Shape of one bank; IndexHistogramRamConfig checks it."""

    bits: int = 8  # bits of an index
    elements: int = 1  # indices per cycle
    values: int = 4  # bins side by side in a row
    k_max: int = 32768  # longest packet
    amount_max: int = 1 << 24  # largest amount

    @property
    def rows(self) -> int:
        return 1 << self.bits

    @property
    def amount_bits(self) -> int:
        return self.amount_max.bit_length()

    @property
    def copy_bits(self) -> int:
        """The bits of a bin of one element's RAM: exact for its share of a packet."""
        return (-(-self.k_max // self.elements) * self.amount_max).bit_length()

    @property
    def bin_bits(self) -> int:
        """The bits of a bin, all elements together: exact for ``k_max`` amounts."""
        return (self.k_max * self.amount_max).bit_length()

    @property
    def memory(self) -> MemoryConfig:
        return MemoryConfig(depth=self.rows, width=self.values * self.copy_bits)

    @property
    def bins_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(self.bin_bits, self.values)

    @property
    def amount_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(data.ArrayLayout(self.amount_bits, self.values), self.elements)


class IndexHistogramBank(Block):
    """Bins of one index: two sets of ``elements`` RAMs, and what adds to them.

    Counting, on set ``counting``: with ``take`` the rows of ``index`` are read. ``amount`` comes
    one cycle later; the sums are written in the same cycle. An index that reads the row being
    written gets the sum forwarded. An index of ``rows`` or above counts nothing and sets
    ``outside``.

    Reading, on the other set: with ``fetch`` row ``fetch_row`` is read. ``bin`` shows it from the
    next cycle until the next fetch: the elements' bins added. ``clear`` has a bit per set.
    """

    def __init__(self, config: IndexHistogramBankConfig):
        row = index_of("rows")
        super().__init__(
            config,
            {
                "take": In(1, "A beat is counted."),
                "counting": In(1, "Set that counts it."),
                "inlier": In(config.elements, "Elements that count.", mask_of("elements")),
                "index": In(
                    data.ArrayLayout(config.bits, config.elements), "Row of each element.", row
                ),
                "rows": In(range(config.rows + 1), "Rows of the packet."),
                "outside": Out(1, "An index of an inlier is beyond the rows."),
                "amount": In(config.amount_layout, "Of the beat one cycle ago."),
                "fetch": In(1, "Read row fetch_row of set fetch_set."),
                "fetch_set": In(1, "Set to read."),
                "fetch_row": In(config.bits, "Row to read.", row),
                "shown_set": In(1, "Set that bin shows."),
                "clear": In(2, "Sets whose row clear_row becomes 0.", mask_of("sets")),
                "clear_row": In(config.bits, "Row that becomes 0.", row),
                "bin": Out(config.bins_layout, "The bins of the row fetched."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        written_set = Signal()
        with m.If(self.take):
            m.d.sync += written_set.eq(self.counting)
        outsides, copies = [], []
        for element in range(config.elements):
            rams = [add(m, f"ram_{side}_{element}", Memory1R1W(config.memory)) for side in range(2)]
            index = self.index[element]
            counts = Signal(name=f"counts_{element}")
            outside = Signal(name=f"outside_{element}")
            m.d.comb += [
                outside.eq(self.inlier[element] & (index >= self.rows)),
                counts.eq(self.take & self.inlier[element] & ~outside),
            ]
            outsides.append(outside)
            stored = [ram.read_data for ram in rams]
            written, row, sums = self._update(m, element, counts, stored, written_set)
            for side, ram in enumerate(rams):
                fetches = self.fetch & (self.fetch_set == side)
                clears = self.clear[side]
                m.d.comb += [
                    ram.read_en.eq((counts & (self.counting == side)) | fetches),
                    ram.read_addr.eq(Mux(fetches, self.fetch_row, index)),
                    ram.write_en.eq(clears | (written & (written_set == side))),
                    ram.write_addr.eq(Mux(clears, self.clear_row, row)),
                    ram.write_data.eq(Mux(clears, 0, sums)),
                ]
            shown = Signal(config.memory.width, name=f"shown_{element}")
            m.d.comb += shown.eq(Mux(self.shown_set, stored[1], stored[0]))
            copies.append(shown)
        m.d.comb += self.outside.eq(sum(outsides[1:], outsides[0]) != 0)
        for value in range(config.values):
            words = [_part(copy, value, config.copy_bits) for copy in copies]
            m.d.comb += self.bin[value].eq(sum(words[1:], words[0]))
        return m

    def _update(
        self, m: Module, element: int, counts: Signal, stored: list, written_set: Signal
    ) -> tuple[Signal, Signal, Value]:
        """(whether a row is written, which, its word) one cycle after ``counts``."""
        config = self.config
        written = Signal(name=f"written_{element}")
        row = Signal(config.bits, name=f"row_{element}", reset_less=True)
        forward = Signal(name=f"forward_{element}")
        width = config.memory.width
        forwarded = Signal(width, name=f"forwarded_{element}", reset_less=True)
        sums = Signal(width, name=f"sums_{element}")
        base = Signal(width, name=f"base_{element}")
        same = (row == self.index[element]) & (written_set == self.counting)
        m.d.sync += [written.eq(counts), forward.eq(written & same)]
        with m.If(counts):
            m.d.sync += row.eq(self.index[element])
        with m.If(written):
            m.d.sync += forwarded.eq(sums)
        m.d.comb += base.eq(Mux(forward, forwarded, Mux(written_set, stored[1], stored[0])))
        total = Signal(data.ArrayLayout(config.copy_bits, config.values), name=f"total_{element}")
        for value in range(config.values):
            amount = self.amount[element][value]
            m.d.comb += total[value].eq(_part(base, value, config.copy_bits) + amount)
        m.d.comb += sums.eq(total.as_value())
        return written, row, sums


def _part(word: Value, number: int, bits: int) -> Value:
    return word[number * bits : (number + 1) * bits]
