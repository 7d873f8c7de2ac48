"""Weighted histograms of many indices at a time, in RAMs (docs/blocks/index_histogram_ram.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.bits import any_of
from hdl.block import Block
from hdl.children import add
from hdl.index.histogram_bank import IndexHistogramBank, IndexHistogramBankConfig
from hdl.kinds import NUMBER, index_of, mask_of
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_PACKETS = 2  # that wait, so that one follows another without a pause


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexHistogramRamConfig(Config):
    """Banks, bins, and what is counted per cycle."""

    banks: int = bounded(64, 1, 128, "indices of an element, each with bins of its own")
    bits: int = bounded(8, 1, 12, "bits of an index")
    elements: int = bounded(1, 1, 4, "elements counted per cycle")
    values: int = bounded(4, 1, 16, "amounts of an element, side by side in the bins")
    word_banks: int = 32  # banks per output word, a divisor of banks
    k_max: int = bounded(32768, 1, 65535, "longest packet in elements")
    amount_max: int = bounded(1 << 24, 1, (1 << 25) - 1, "largest amount")

    def __post_init__(self) -> None:
        self._check_range("word_banks", 1, self.banks)
        if self.banks % self.word_banks:
            self._refuse("word_banks", f"a divisor of banks = {self.banks}")

    @property
    def bank(self) -> IndexHistogramBankConfig:
        return IndexHistogramBankConfig(
            bits=self.bits,
            elements=self.elements,
            values=self.values,
            k_max=self.k_max,
            amount_max=self.amount_max,
        )

    @property
    def rows(self) -> int:
        """Bins of a bank, for each value."""
        return self.bank.rows

    @property
    def parts(self) -> int:
        """Output words that show one row of all banks."""
        return self.banks // self.word_banks

    @property
    def sram_bits(self) -> int:
        """Bits of all RAMs: two sets, a copy for each element of a beat."""
        return 2 * self.banks * self.elements * self.bank.memory.bits

    @property
    def packet_layout(self) -> data.StructLayout:
        return Payload(
            rows=(range(self.rows + 1), "rows that are counted and read, 1..2**bits"),
            empty=(1, "the packet has no beat: its bins are 0"),
        )

    @property
    def i_layout(self) -> data.StructLayout:
        index = data.ArrayLayout(data.ArrayLayout(self.bits, self.banks), self.elements)
        return Payload(
            index=(index, "of each element its row in each bank", index_of("rows")),
            amount=(self.bank.amount_layout, "values of each element, unsigned", NUMBER),
            inlier=(self.elements, "mask of the elements that count", mask_of("elements")),
            last=(1, "final beat of the packet"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        bins = data.ArrayLayout(self.bank.bins_layout, self.word_banks)
        return Payload(
            bin=(bins, "of each bank of the part its row, the values side by side", NUMBER),
            bad=(1, "an index was beyond the rows and was not counted"),
            last=(1, "final word of the packet"),
        )


class IndexHistogramRam(Block):
    """``bin[b][j][l] = sum of amount_kl over inlier k with index_kb = j``, exact, for each bank b.

    ``packet`` announces a packet: its rows, and whether it has beats. ``i`` brings ``elements``
    elements per cycle; each adds its ``values`` amounts to one row of every bank. Then ``o`` gives
    the bins: for each part of ``word_banks`` banks, for each row, a word; ``last`` on the final
    one. Packets come out in order. An element whose index lies beyond ``rows`` counts nothing in
    that bank, and ``bad`` is set on all words. At most ``k_max`` inliers per packet (not checked).

    Each bank has two sets of 1R1W RAMs: one counts while the other is read and cleared. A row is
    read in the cycle of the transfer and written in the next; a same row in between is forwarded.
    Each element of a beat has RAMs of its own; reading adds them. After reset all rows are cleared
    for ``2**bits`` cycles, and ``i.ready`` is low. ``packet`` has a queue of two, so that packets
    follow each other without a pause.

    Latency from the beat with ``last`` to the first word: 3 cycles when the other set is free. One
    beat and one word per cycle. ``i.ready`` and ``packet.ready`` come from registers. ``o.ready``
    reaches the RAMs' read enables combinationally. Source: MILLION, section IV.
    Golden: golden.index.histogram.bank_histogram, bank_words.
    """

    golden = "golden.index.histogram:bank_histogram"
    reference = "tests/index/test_histogram.py: test_bank_histogram_is_its_definition"
    default = IndexHistogramRamConfig()
    configs: ClassVar = {
        "smollm2": IndexHistogramRamConfig(banks=32, values=3),
        "four_keys": IndexHistogramRamConfig(elements=4),
        "small": IndexHistogramRamConfig(
            banks=4, bits=4, values=2, word_banks=2, k_max=100, amount_max=255
        ),
    }

    def __init__(self, config: IndexHistogramRamConfig):
        super().__init__(
            config,
            {
                "packet": In(stream.Signature(config.packet_layout), "Begins a packet."),
                "i": In(stream.Signature(config.i_layout), "Elements of the packet."),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Bins of a finished packet: part by part, row 0 first.",
                ),
            },
        )

    # From the beat with last to the first word of bins; counting overlaps giving.
    timing = Timing(latency=3, unit="beat", delays=(("from packet to its first beat", 1),))

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        banks = [
            add(m, f"bank_{bank}", IndexHistogramBank(config.bank)) for bank in range(config.banks)
        ]
        full = Signal(2)  # a bit per set: it waits to be read, or is read
        rows = Array(Signal(range(config.rows + 1), name=f"rows_{side}") for side in range(2))
        bad = Signal(2)
        clearing = Signal(init=1)
        clear_row = Signal(config.bits)
        with m.If(clearing):
            m.d.sync += [clear_row.eq(clear_row + 1), clearing.eq(~clear_row.all())]

        # Counting: beats into the set that is free, the final write one cycle after the transfer.
        packets = queue(m, "packets", config.packet_layout, _PACKETS)
        link(m, self.packet, packets.i)
        counting = Signal()
        is_open = Signal()
        take = Signal()
        done = Signal()
        bad_before = Signal()
        outside = Signal()
        ended = Signal()
        ended_set = Signal()
        amount = Signal(config.bank.amount_layout, reset_less=True)
        head = packets.o.p
        m.d.comb += [
            is_open.eq(packets.o.valid & ~clearing & ~full.bit_select(counting, 1)),
            self.i.ready.eq(is_open & ~head.empty),
            take.eq(self.i.valid & self.i.ready),
            done.eq((take & self.i.p.last) | (is_open & head.empty)),
            packets.o.ready.eq(done),
            outside.eq(take & any_of(bank.outside for bank in banks)),
        ]
        m.d.sync += ended.eq(done)
        with m.If(take):
            m.d.sync += [amount.eq(self.i.p.amount), bad_before.eq(bad_before | outside)]
        with m.If(done):
            m.d.sync += [
                counting.eq(~counting),
                ended_set.eq(counting),
                rows[counting].eq(head.rows),
                bad.bit_select(counting, 1).eq(bad_before | outside),
                bad_before.eq(0),
            ]
        with m.If(ended):
            m.d.sync += full.bit_select(ended_set, 1).eq(1)

        # Reading: the RAMs' outputs are the register that ``o`` shows. A row shown is cleared.
        part = Signal(range(max(2, config.parts)))
        row = Signal(config.bits)
        fetch_set = Signal()
        fetch = Signal()
        final_row = Signal()
        final = Signal()
        shown = Signal()
        shown_set = Signal()
        shown_last = Signal()
        shown_part, shown_row = Signal.like(part), Signal.like(row)
        m.d.comb += [
            fetch.eq(full.bit_select(fetch_set, 1) & (~shown | self.o.ready)),
            final_row.eq(row + 1 == rows[fetch_set]),
            final.eq(final_row & (part == config.parts - 1)),
            self.o.valid.eq(shown),
            self.o.p.bad.eq(bad.bit_select(shown_set, 1)),
            self.o.p.last.eq(shown_last),
        ]
        with m.If(~shown | self.o.ready):
            m.d.sync += shown.eq(fetch)
        with m.If(shown & self.o.ready & shown_last):
            m.d.sync += full.bit_select(shown_set, 1).eq(0)
        with m.If(fetch):
            m.d.sync += [
                row.eq(Mux(final_row, 0, row + 1)),
                part.eq(Mux(final, 0, part + final_row)),
                fetch_set.eq(fetch_set ^ final),
                shown_set.eq(fetch_set),
                shown_last.eq(final),
                shown_part.eq(part),
                shown_row.eq(row),
            ]

        for number, bank in enumerate(banks):
            here = number // config.word_banks
            clears = shown & (shown_part == here)
            m.d.comb += [
                bank.take.eq(take),
                bank.counting.eq(counting),
                bank.inlier.eq(self.i.p.inlier),
                bank.index.eq(Cat(self.i.p.index[e][number] for e in range(config.elements))),
                bank.rows.eq(head.rows),
                bank.amount.eq(amount),
                bank.fetch.eq(fetch & (part == here)),
                bank.fetch_set.eq(fetch_set),
                bank.fetch_row.eq(row),
                bank.shown_set.eq(shown_set),
                bank.clear.eq(
                    Cat(clearing | (clears & ~shown_set), clearing | (clears & shown_set))
                ),
                bank.clear_row.eq(Mux(clearing, clear_row, shown_row)),
            ]
        for place in range(config.word_banks):
            bins = [bank.bin.as_value() for bank in banks[place :: config.word_banks]]
            m.d.comb += self.o.p.bin[place].eq(_chosen(shown_part, bins))
        return m


def _chosen(number: Signal, values: list[Value]) -> Value:
    return Array(values)[number] if len(values) > 1 else values[0]
