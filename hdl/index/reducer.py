"""Weighted sum of counts with the codebook (docs/blocks/index_reducer.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream

from golden.config import Config, bounded, power_of_two
from golden.fp16.format import FP16, FP32
from golden.index.format import GRID_PRODUCT_ROUNDED
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.histogram_parallel import HISTOGRAMS, IndexHistogramParallelConfig
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexReducerConfig(Config):
    """Shape of one reducer; follows from that of the counters it serves."""

    macs: int = power_of_two(32, 1, 256, "terms per cycle")
    count_bits: int = bounded(14, 1, 48, "bits of a count")
    wide_slots: int = 16  # the first slots take wider counts (integer mode), 0..macs
    wide_bits: int = 22  # their bits, count_bits..48
    # The largest gives a sum of 73 bits.
    total_max: int = bounded(11008 * 255, 1, 2**48 - 1, "bound of the sum of |count| over a packet")

    def __post_init__(self) -> None:
        self._check_range("wide_slots", 0, self.macs)
        self._check_range("wide_bits", self.count_bits, 48)

    @classmethod
    def of_counter(cls, counter: IndexHistogramParallelConfig, macs: int) -> "IndexReducerConfig":
        """The reducer that takes ``macs`` bins of ``counter`` per cycle, exactly."""
        shapes = [counter.slot_shape(slot) for slot in range(macs)]
        per_element = 2**counter.integer_bits - 1 if counter.integer_bits else 1
        wide = sum(shape.width > shapes[-1].width for shape in shapes)
        return cls(
            macs=macs,
            count_bits=shapes[-1].width,
            wide_slots=wide,
            wide_bits=shapes[0].width,
            total_max=counter.k_max * per_element,
        )

    def slot_shape(self, slot: int):
        return unsigned(self.wide_bits if slot < self.wide_slots else self.count_bits)

    @property
    def acc_bits(self) -> int:
        """|weight| <= 1 = 2**24 on its grid, so the sum is below total_max * 2**24."""
        return (self.total_max << 24).bit_length() + 1

    @property
    def i_layout(self) -> data.StructLayout:
        counts = {str(slot): self.slot_shape(slot) for slot in range(self.macs)}
        return Payload(
            count=(data.StructLayout(counts), "macs integers"),
            weight=(data.ArrayLayout(FP16.bits, self.macs), "FP16 words, one per count", FP16),
            last=(1, "ends the sum"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(y=(FP32.bits, "FP32 word", FP32))


class IndexReducer(Block):
    """``y = rne32(sum over the packet of count[s] * weight[s])``, the sum exact.

    count: integers; weight: FP16 words with |weight| <= 1 (codebook entries; others are illegal
    and not checked). The accumulator is an integer on the grid 2**-24, wide enough for
    ``total_max``. The only rounding is the one to FP32, nearest even.

    ``macs`` terms per cycle. Latency 3 cycles from the beat with ``last``: products, sum,
    rounding. ``i.ready`` depends on ``o.ready`` combinationally. While a sum waits at ``o``, the
    block takes the next packet to its last beat.
    Source: KLLM, section III-B, step 3.
    Golden: golden.index.histogram.reduce_counts.
    """

    golden = "golden.index.histogram:reduce_counts"
    reference = "tests/kllm/test_blocks.py: test_reduce_counts_rounds_once"
    default = IndexReducerConfig()
    configs: ClassVar = {
        name: IndexReducerConfig.of_counter(counter, counter.word_bins)
        for name, counter in HISTOGRAMS.items()
    }

    def __init__(self, config: IndexReducerConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.i_layout),
                    "macs counts and their codebook entries; last ends the sum",
                ),
                "o": Out(stream.Signature(config.o_layout), "the sum, rounded once to binary32"),
            },
        )

    # Products, sum, rounding: from the beat with last to the sum.
    timing = Timing(latency=3, unit="beat")

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        shape = FixedToFloatConfig(
            width=config.acc_bits, grid_exponents=(GRID_PRODUCT_ROUNDED,), o=FP32, stages=1
        )
        rounder = add(m, "rounder", FixedToFloat(shape))

        # Stage 1: products. Multiplying by the 11-bit significand and shifting after is smaller
        # than multiplying by the entry as a 25-bit integer.
        product_valid = Signal()
        product_last = Signal()
        sum_valid = Signal()  # a finished sum waits for the rounder
        move = Signal()  # stages 1 and 2 advance
        m.d.comb += [move.eq(~sum_valid | rounder.i.ready), self.i.ready.eq(move)]
        products = []
        for slot in range(config.macs):
            count = self.i.p.count[str(slot)]
            sign, significand, shift = centroid_parts(self.i.p.weight[slot])
            magnitude = Signal(signed(config.slot_shape(slot).width + 13), name=f"magnitude_{slot}")
            product = Signal(
                signed(config.slot_shape(slot).width + 26), name=f"product_{slot}", reset_less=True
            )
            m.d.comb += magnitude.eq(count * Mux(sign, -significand, significand))
            with m.If(move):
                m.d.sync += product.eq(magnitude << shift)
            products.append(product)
        with m.If(move):
            m.d.sync += [
                product_valid.eq(self.i.valid),
                product_last.eq(self.i.p.last),
            ]

        # Stage 2: exact sum.
        accumulator = Signal(signed(config.acc_bits), reset_less=True)
        is_open = Signal()  # the accumulator holds a part of this packet
        terms = products
        while len(terms) > 1:
            terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=True)]
        with m.If(move & product_valid):
            m.d.sync += [
                accumulator.eq(Mux(is_open, accumulator, 0) + terms[0]),
                is_open.eq(~product_last),
            ]
        with m.If(move):
            m.d.sync += sum_valid.eq(product_valid & product_last)

        # Stage 3: rounding.
        m.d.comb += [
            rounder.i.valid.eq(sum_valid),
            rounder.i.p.value.eq(accumulator),
            self.o.valid.eq(rounder.o.valid),
            self.o.p.y.eq(rounder.o.p.y),
            rounder.o.ready.eq(self.o.ready),
        ]
        return m


def centroid_parts(word):
    """(sign, significand, shift) of an FP16 word of at most 1 in magnitude.

    Its value is ``(-1)**sign * significand * 2**shift * 2**-24``, significand 11 bits, shift 0..14.
    """
    exponent = word[FP16.frac_bits : FP16.frac_bits + 4]  # up to 15: 1.0 is the largest
    is_normal = exponent != 0
    significand = word[: FP16.frac_bits] | (is_normal << FP16.frac_bits)
    shift = Mux(is_normal, exponent - 1, 0)[:4]
    return word[-1], significand, shift
