"""Index distribution counter of one output column (docs/blocks/index_histogram_parallel.md)."""

import dataclasses
from itertools import pairwise
from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, power_of_two
from golden.index.format import INT_BITS, K_MAX
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.kinds import index_of, mask_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload

ARCHITECTURES = ("flipflop", "sram")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexHistogramParallelConfig(Config):
    """Shape and micro-architecture of one counter."""

    bits_a: int = bounded(4, 2, 4, "bits of an activation index")
    bits_b: int = bounded(4, 2, 4, "bits of a weight index")
    elements: int = bounded(16, 1, 16, "pairs counted per cycle")
    k_max: int = bounded(11008, 1, K_MAX, "longest reduction")
    integer_bits: int = choice(
        8, (0, *INT_BITS), "integer mode: bits of an unsigned operand; 0: no such mode"
    )
    architecture: str = choice("flipflop", ARCHITECTURES, "what holds the bins")
    word_bins: int = power_of_two(32, 1, 256, "bins per output word; sram: 1")

    def __post_init__(self) -> None:
        if self.architecture == "sram":
            self._check_power_of_two("word_bins", 1, 1)

    @property
    def value_bits(self) -> int:
        """Bits above the weight index: activation index or integer."""
        return max(self.bits_a, self.integer_bits)

    @property
    def bins(self) -> int:
        return 2 ** (self.bits_a + self.bits_b)

    @property
    def integer_bins(self) -> int:
        """Bins of the integer mode: one per weight index, the first ones."""
        return 2**self.bits_b if self.integer_bits else 0

    @property
    def words(self) -> int:
        """Output words of a packet, K-Means mode."""
        return -(-self.bins // self.word_bins)

    @property
    def integer_words(self) -> int:
        """Output words of a packet, integer mode."""
        return -(-(2**self.bits_b) // self.word_bins)

    @property
    def sram_bits(self) -> int:
        """sram: bits of a word, exact for one position of the beat."""
        beats_max = -(-self.k_max // self.elements)
        return (beats_max * (2**self.integer_bits - 1 or 1)).bit_length()

    def bin_shape(self, index: int):
        """Exact for ``k_max`` elements: a count or a sum of integers."""
        weight = (2**self.integer_bits - 1) if index < self.integer_bins else 1
        return unsigned((self.k_max * weight).bit_length())

    def slot_shape(self, slot: int):
        """Shape of position ``slot`` of an output word: that of its widest bin, the first."""
        return self.bin_shape(min(slot, self.bins - 1))

    @property
    def i_layout(self) -> data.StructLayout:
        pair = data.ArrayLayout(self.value_bits + self.bits_b, self.elements)
        return Payload(
            pair=(pair, "value above weight index of each element", index_of("bins")),
            inlier=(self.elements, "mask of the elements that count", mask_of("elements")),
            integer=(1, "the value is an unsigned operand; the same on every beat of a packet"),
            last=(1, "final beat of the packet"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        slots = {str(slot): self.slot_shape(slot) for slot in range(self.word_bins)}
        return Payload(
            count=(data.StructLayout(slots), "word_bins bins, the lowest first"),
            last=(1, "final word of the packet"),
        )


# Histograms of the size of KLLM's lane: Table I, three bits, bins in RAMs, and a small one.
HISTOGRAMS = {
    "table1": IndexHistogramParallelConfig(),
    "table1_w4a3": IndexHistogramParallelConfig(bits_a=3),
    "table1_sram": IndexHistogramParallelConfig(architecture="sram", word_bins=1),
    "small": IndexHistogramParallelConfig(
        bits_a=2, bits_b=3, elements=4, k_max=100, integer_bits=4, word_bins=8
    ),
}


class IndexHistogramParallel(Block):
    """``count[b] = #{k : inlier_k and pair_k = b}`` over a packet of pairs; all bins, exactly.

    In integer mode ``integer`` is set on every beat of the packet. The value above the weight index
    is then an unsigned operand, and only the first ``integer_words`` words go out:

        count[j] = sum of value_k over inlier k with weight index j

    ``elements`` pairs per cycle; ``ceil(bins / word_bins)`` words per packet, one per cycle,
    bin ``word * word_bins + slot`` in each slot, ``last`` on the final one. Slots beyond the
    last bin are zero. A packet holds at most ``k_max`` counted elements, in sram at most
    ``ceil(k_max / elements)`` at each position of the beat (not checked).

    Counting the next packet overlaps reading the last in every architecture:

    flipflop   one register per bin, copied to a second set that is shifted out
    sram       ``elements`` RAMs of ``bins`` words, twice: read-modify-write with forwarding;
               after reset it clears them, ``bins`` cycles long, before ``i.ready`` rises

    Latency from the beat with ``last`` to the first word: 3 cycles when the second set is free.
    ``i.ready`` depends on ``o.ready`` combinationally (not in sram). Source: KLLM, section IV-B.
    Golden: golden.index.histogram.index_histogram, value_histogram (integers), bin_words.
    """

    golden = "golden.index.histogram:index_histogram"
    reference = "tests/kllm/test_blocks.py: test_histograms_count_each_inlier_once"
    default = IndexHistogramParallelConfig()
    configs = HISTOGRAMS

    verilate_separately = True

    def __init__(self, config: IndexHistogramParallelConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.i_layout),
                    "concatenated indices of one beat; inlier masks the elements that count",
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "bins of a finished packet, word_bins at a time, lowest first",
                ),
            },
        )

    # From the beat with last to the first word of bins; counting overlaps giving.
    timing = Timing(latency=3, unit="beat")

    def elaborate(self, platform) -> Module:
        m = Module()
        if self.config.architecture == "sram":
            self._elaborate_sram(m)
        else:
            self._elaborate_registers(m)
        return m

    def _split_pairs(self, pairs) -> list:
        """[(weight index, value)] of a beat."""
        b = self.config.bits_b
        return [(pair[:b], pair[b:]) for pair in pairs]

    def _increments(self, m: Module, pairs: list, inlier) -> tuple[list, list]:
        """The amounts that a beat adds to each bin, and those that it adds in integer mode."""
        config = self.config
        # match_b[j] tells, element by element, who has weight index j. Decoding both halves once
        # and combining them per bin is smaller and simulates faster than a comparison per bin.
        match_b = [
            _spread(
                m, f"match_b_{j}", [(index == j) & inlier[e] for e, (index, _) in enumerate(pairs)]
            )
            for j in range(2**config.bits_b)
        ]
        match_a = [
            _spread(m, f"match_a_{i}", [value[: config.bits_a] == i for _, value in pairs])
            for i in range(2**config.bits_a)
        ]
        ones = [
            _popcount(m, a & b, config.elements, f"{i}_{j}")
            for i, a in enumerate(match_a)
            for j, b in enumerate(match_b)
        ]
        sums = [
            _sum(
                [
                    Mux(match[_FIELD * e], value[: config.integer_bits], 0)
                    for e, (_, value) in enumerate(pairs)
                ]
            )
            for match in match_b
        ]
        return ones, sums

    def _elaborate_registers(self, m: Module) -> None:
        config = self.config
        word_bins = config.word_bins
        shapes = [config.bin_shape(b) for b in range(config.bins)]
        bins = [Signal(shape, name=f"bin_{b}", reset_less=True) for b, shape in enumerate(shapes)]
        # Slot-aligned words, so that reading is a shift by a whole word.
        word_layout = self.o.p.count.shape()
        shadow = [
            Signal(word_layout, name=f"shadow_{word}", reset_less=True)
            for word in range(config.words)
        ]
        left = Signal(range(config.words + 1))  # words still to go out
        is_open = Signal()  # the packet has begun: bins hold its counts
        full = Signal()  # the packet is complete and not yet handed over
        full_integer = Signal()

        beat = Signal(config.i_layout, reset_less=True)
        beat_valid = Signal()
        read = self.o.valid & self.o.ready
        hand_over = Signal()
        move = Signal()  # the beat in the register, if any, is counted
        take = Signal()
        m.d.comb += [
            self.o.valid.eq(left != 0),
            self.o.p.count.eq(shadow[0]),
            self.o.p.last.eq(left == 1),
            hand_over.eq(full & ((left == 0) | (read & (left == 1)))),
            move.eq(~full | hand_over),
            take.eq(beat_valid & move),
            self.i.ready.eq(~beat_valid | move),
        ]
        with m.If(self.i.ready):
            m.d.sync += [beat_valid.eq(self.i.valid), beat.eq(self.i.p)]

        with m.If(take):
            m.d.sync += [
                is_open.eq(~beat.last),
                full.eq(beat.last),
                full_integer.eq(beat.integer if config.integer_bits else 0),
            ]
        with m.Elif(hand_over):
            m.d.sync += full.eq(0)

        ones, sums = self._increments(m, self._split_pairs(beat.pair), beat.inlier)
        starts = [Mux(is_open, register, 0) for register in bins]
        with m.If(take & (beat.integer if config.integer_bits else 0)):
            for register, start, increment in zip(bins, starts, sums, strict=False):
                m.d.sync += register.eq(start + increment)
            for register in bins[len(sums) :]:
                m.d.sync += register.eq(0)
        with m.Elif(take):
            for register, start, increment in zip(bins, starts, ones, strict=True):
                m.d.sync += register.eq(start + increment)

        with m.If(hand_over):
            for word, held in enumerate(shadow):
                row = bins[word * word_bins : (word + 1) * word_bins]
                slots = [
                    Signal(config.slot_shape(slot), name=f"slot_{word}_{slot}")
                    for slot in range(word_bins)
                ]
                for slot, register in zip(slots, row, strict=False):
                    m.d.comb += slot.eq(register)
                m.d.sync += held.as_value().eq(Cat(slots))
            m.d.sync += left.eq(Mux(full_integer, config.integer_words, config.words))
        with m.Elif(read):
            for held, following in pairwise(shadow):
                m.d.sync += held.eq(following)
            m.d.sync += left.eq(left - 1)

    def _elaborate_sram(self, m: Module) -> None:
        config = self.config
        shape = MemoryConfig(depth=config.bins, width=config.sram_bits)
        memories = [
            [add(m, f"bins_{side}_{e}", Memory1R1W(shape)) for e in range(config.elements)]
            for side in range(2)
        ]
        clearing = Signal(init=1)  # after reset: write zero to every word
        clear_addr = Signal(range(config.bins))
        sides = _Sides.new()
        count = _count(m, sides, self.i, clearing, has_integers=bool(config.integer_bits))
        fetch = _fetch(m, config, sides, self.o)
        with m.If(clearing):
            m.d.sync += clear_addr.eq(clear_addr + 1)
            with m.If(clear_addr == config.bins - 1):
                m.d.sync += clearing.eq(0)

        outputs = []
        for e, (weight_index, value) in enumerate(self._split_pairs(self.i.p.pair)):
            if config.integer_bits:
                bin_index = Mux(
                    self.i.p.integer, weight_index, Cat(weight_index, value[: config.bits_a])
                )
                amount = Mux(self.i.p.integer, value[: config.integer_bits], 1)
            else:
                bin_index, amount = Cat(weight_index, value[: config.bits_a]), 1
            rams = [memories[side][e] for side in range(2)]
            stored = [ram.read_data for ram in rams]
            element = _Element(e, bin_index, amount, self.i.p.inlier[e])
            update = _update(m, config, sides, count, element, stored)
            for side, ram in enumerate(rams):
                counts_here = sides.counting == side
                reads_here = fetch.goes & (sides.reading == side)
                writes_here = update.valid & (count.write_side == side)
                clears_here = fetch.fetched & (sides.reading == side)
                m.d.comb += [
                    ram.read_en.eq((count.take & counts_here) | reads_here),
                    ram.read_addr.eq(Mux(reads_here, fetch.bin, bin_index)),
                    ram.write_en.eq(clearing | writes_here | clears_here),
                    ram.write_addr.eq(
                        Mux(clearing, clear_addr, Mux(writes_here, update.addr, fetch.fetched_bin))
                    ),
                    ram.write_data.eq(Mux(~clearing & writes_here, update.word, 0)),
                ]
            outputs.append(Mux(sides.reading, stored[1], stored[0]))
        m.d.comb += self.o.p.count["0"].eq(_sum(outputs))


class _Sides(NamedTuple):
    """The two sets of RAMs: one counts while the other is read."""

    counting: Signal
    reading: Signal
    full: Signal  # a bit per side: it waits to be read
    full_integer: Signal

    @classmethod
    def new(cls) -> "_Sides":
        return cls(
            Signal(name="counting_side"),
            Signal(name="reading_side"),
            Signal(2, name="full"),
            Signal(2, name="full_integer"),
        )


class _Count(NamedTuple):
    """Counting: a bin is read in the cycle of the transfer and written in the next."""

    take: Signal  # the cycle of the transfer
    write_side: Signal  # of the beat that is written now


class _Fetch(NamedTuple):
    """Reading out: a bin is read in one cycle, and given and cleared in the next."""

    goes: Signal
    bin: Signal
    fetched: Signal  # ``fetched_bin`` is on the RAMs' outputs
    fetched_bin: Signal


class _Element(NamedTuple):
    """Position ``number`` of the beat: what it adds to which bin, if it counts."""

    number: int
    bin: Value
    amount: Value | int
    inlier: Value


class _Update(NamedTuple):
    """A word to write."""

    valid: Signal
    addr: Signal
    word: Signal


def _count(m: Module, sides: _Sides, i, clearing, *, has_integers: bool) -> _Count:
    """Take beats of ``i`` to the counting side, and change sides after a packet."""
    write_valid = Signal()
    write_side = Signal()
    write_last = Signal()
    write_integer = Signal()
    take = Signal()
    m.d.comb += [
        i.ready.eq(
            ~clearing
            & ~sides.full.bit_select(sides.counting, 1)
            # the beat that ends the last packet is still to be written
            & ~(write_valid & write_last)
        ),
        take.eq(i.valid & i.ready),
    ]
    m.d.sync += write_valid.eq(take)
    with m.If(take):
        m.d.sync += [
            write_side.eq(sides.counting),
            write_last.eq(i.p.last),
            write_integer.eq(i.p.integer if has_integers else 0),
        ]
    with m.If(write_valid & write_last):
        m.d.sync += [
            sides.counting.eq(~sides.counting),
            sides.full.bit_select(sides.counting, 1).eq(1),
            sides.full_integer.bit_select(sides.counting, 1).eq(write_integer),
        ]
    return _Count(take, write_side)


def _fetch(m: Module, config: IndexHistogramParallelConfig, sides: _Sides, o) -> _Fetch:
    """Read one bin of all RAMs of the full side per word of ``o``; drive its valid and last."""
    read_bin = Signal(range(config.bins))
    fetch = Signal()
    fetched = Signal()
    fetched_last = Signal()
    fetched_bin = Signal(range(config.bins))
    read_done = Signal()  # the last bin has been fetched
    fetch_last = Signal()
    last_bin = Mux(
        sides.full_integer.bit_select(sides.reading, 1), 2**config.bits_b - 1, config.bins - 1
    )
    m.d.comb += [
        fetch.eq(sides.full.bit_select(sides.reading, 1) & ~read_done & (~fetched | o.ready)),
        fetch_last.eq(read_bin == last_bin),
    ]
    with m.If(fetch):
        m.d.sync += [
            fetched.eq(1),
            fetched_last.eq(fetch_last),
            fetched_bin.eq(read_bin),
            read_bin.eq(Mux(fetch_last, 0, read_bin + 1)),
            read_done.eq(fetch_last),
        ]
    with m.Elif(o.ready):
        m.d.sync += fetched.eq(0)
    with m.If(fetched & fetched_last & o.ready):
        m.d.sync += [
            sides.full.bit_select(sides.reading, 1).eq(0),
            sides.reading.eq(~sides.reading),
            read_done.eq(0),
        ]
    m.d.comb += [o.valid.eq(fetched), o.p.last.eq(fetched_last)]
    return _Fetch(fetch, read_bin, fetched, fetched_bin)


def _update(m: Module, config, sides: _Sides, count: _Count, element: _Element, stored) -> _Update:
    """The word of one element's bin with its amount added, a cycle after the transfer.

    stored: read data of the element's RAM on each side. The word written last is forwarded to a
    beat that reads it while it is being written.
    """
    e = element.number
    counted = Signal(name=f"counted_{e}")
    addr = Signal(config.bits_a + config.bits_b, name=f"addr_{e}", reset_less=True)
    added = Signal(max(config.integer_bits, 1), name=f"added_{e}", reset_less=True)
    forward = Signal(name=f"forward_{e}")
    forwarded = Signal(config.sram_bits, name=f"forwarded_{e}", reset_less=True)
    updated = Signal(config.sram_bits, name=f"updated_{e}")
    is_same_side = count.write_side == sides.counting
    m.d.sync += counted.eq(count.take & element.inlier)
    m.d.sync += forward.eq(counted & (addr == element.bin) & is_same_side)
    m.d.sync += forwarded.eq(updated)
    with m.If(count.take):
        m.d.sync += [addr.eq(element.bin), added.eq(element.amount)]
    word = Mux(forward, forwarded, Mux(count.write_side, stored[1], stored[0]))
    m.d.comb += updated.eq(word + added)
    return _Update(counted, addr, updated)


def _sum(terms: list):
    """Balanced adder tree."""
    while len(terms) > 1:
        terms = [sum(terms[n + 1 : n + 2], terms[n]) for n in range(0, len(terms), 2)]
    return terms[0]


_FIELD = 4  # bits between the elements of a match vector


def _spread(m: Module, name: str, hits: list):
    """One bit per element, each at the bottom of a field of its own."""
    match = Signal(_FIELD * len(hits), name=name)
    m.d.comb += match.eq(Cat(Cat(hit, Const(0, _FIELD - 1)) for hit in hits))
    return match


def _popcount(m: Module, match, elements: int, name: str):
    """Number of ones of a spread vector of at most 16 elements, by halving.

    The fields leave room for the carries, so every addition is a row of small independent
    adders. A simulator does the whole row in one machine word.
    """
    value = Signal(_FIELD * elements, name=f"match_{name}")
    width = _FIELD * elements
    m.d.comb += value.eq(match)
    while width > _FIELD:
        low = _FIELD * (-(-width // _FIELD // 2))
        # A field holds up to 15; only the final sum, of two fields of 8, needs a fifth bit.
        half = Signal(low if low > _FIELD else _FIELD + 1, name=f"ones_{name}_{low // _FIELD}")
        m.d.comb += half.eq(value[:low] + value[low:width])
        value, width = half, low
    return value[: elements.bit_length()]
