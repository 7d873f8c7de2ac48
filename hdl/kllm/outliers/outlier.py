"""Sparse path: activation outliers times dequantized weights."""

import dataclasses

from amaranth import Array, Module, Mux, Signal, signed
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.index.reducer import centroid_parts
from hdl.kinds import index_of
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmOutlierConfig(Config):
    """Shape of the sparse path."""

    bits_b: int = bounded(4, 2, 4, "bits of a weight index")
    columns: int = bounded(32, 1, 64, "output columns")
    outliers_max: int = bounded(127, 1, 16383, "most outliers of a packet")
    parts: int = 1  # cycles of an outlier, a divisor of columns: as many share a multiplier

    def __post_init__(self) -> None:
        self._check_range("parts", 1, self.columns)
        if self.columns % self.parts:
            self._refuse("parts", f"a divisor of columns = {self.columns}")

    @property
    def multipliers(self) -> int:
        return self.columns // self.parts

    @property
    def sum_bits(self) -> int:
        """A product is below 2**16 on the grid 2**-48; sums of outliers_max of them, signed."""
        return 64 + self.outliers_max.bit_length() + 1

    @property
    def codebook_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16.bits, 2**self.bits_b)

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            present=(1, "the beat holds an outlier"),
            x=(FP16.bits, "the outlier, FP16", FP16),
            index=(
                data.ArrayLayout(self.bits_b, self.columns),
                "weight index of each column",
                index_of("weight centroids"),
            ),
            last=(1, "final word of the packet"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            sum=(signed(self.sum_bits), "exact sum of x * C_B[index] in units of 2**-48"),
            last=(1, "the last column"),
        )


def outlier_ports(config: KllmOutlierConfig) -> dict:
    """Members of a sparse path, with many multipliers or few."""
    return {
        "i": In(
            stream.Signature(config.i_layout),
            "one outlier and the weight index that it meets in every column",
        ),
        "o": Out(
            stream.Signature(config.o_layout),
            "exact sums on the grid 2**-48, column by column",
        ),
        "codebook": In(
            config.codebook_layout,
            "C_B: the weight centroids as FP16 words, stable while in use",
            FP16,
        ),
    }


class KllmOutlier(Block):
    """``sum[c] = sum over present words of x * codebook[index[c]]``, exact, for every column c.

    Each column has a multiplier (``parts`` 1); KllmOutlierInTurn has fewer.

    x: any finite FP16 word; codebook: FP16 words with |c| <= 1 (others are illegal and not
    checked), stable from a packet's first word in to its last word out. Sums are integers on the
    grid 2**-48. Words without ``present`` add nothing; every packet has a word with ``last`` and at
    most ``outliers_max`` present ones (not checked).

    One outlier per cycle, all columns at once; the sums go out one column per cycle, column 0
    first, ``last`` on the final one. Latency 3 cycles from the word with ``last`` to the first
    sum: product, sum, copy. Adding up the next packet overlaps that. ``i.ready`` depends on
    ``o.ready`` combinationally. Source: KLLM, section III-D.
    Golden: golden.kllm.blocks.sparse_sums.

    A product of finite FP16 and a centroid of at most 1 is below 2**64 on the grid. So 64 +
    bit_length(outliers_max) + 1 bits hold every sum: 72 at Table I's sizes, with two sets per
    column. When both sets are full, ``i.ready`` falls. The lane refuses a job with illegal words.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:sparse_sums"
    configs = FieldOf("kllm_pe_lane", "outlier_config", ("table1", "small"))

    def __init__(self, config: KllmOutlierConfig):
        super().__init__(config, outlier_ports(config))

    # From the word with last to the sum of column 0; columns leave one per cycle.
    timing = Timing(latency=3)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        left = Signal(range(config.columns + 1))  # sums still to go out
        full = Signal()  # the sums are complete and wait for their copy
        is_open = Signal()  # the accumulators hold a part of this packet
        product_valid = Signal()
        product_last = Signal()
        read = Signal()
        hand_over = Signal()
        move = Signal()
        m.d.comb += [
            self.o.valid.eq(left != 0),
            self.o.p.last.eq(left == 1),
            read.eq(self.o.valid & self.o.ready),
            hand_over.eq(full & ((left == 0) | (read & (left == 1)))),
            move.eq(~full | hand_over),
            self.i.ready.eq(move),
        ]

        # The outlier, decoded once for all columns.
        x_sign, x_significand, x_shift = finite_parts(self.i.p.x)
        entries = [centroid_parts(word) for word in self.codebook]
        with m.If(move):
            m.d.sync += [
                product_valid.eq(self.i.valid),
                product_last.eq(self.i.p.last),
            ]

        copies = [
            Signal(signed(config.sum_bits), name=f"copy_{c}", reset_less=True)
            for c in range(config.columns)
        ]
        for c in range(config.columns):
            index = self.i.p.index[c]
            sign = Array(entry[0] for entry in entries)[index]
            significand = Array(entry[1] for entry in entries)[index]
            shift = Array(entry[2] for entry in entries)[index]
            product = Signal(22, name=f"product_{c}", reset_less=True)
            product_shift = Signal(6, name=f"product_shift_{c}", reset_less=True)
            negative = Signal(name=f"negative_{c}", reset_less=True)
            total = Signal(signed(config.sum_bits), name=f"total_{c}", reset_less=True)
            term = Signal(signed(config.sum_bits), name=f"term_{c}")
            with m.If(move):
                m.d.sync += [
                    product.eq(Mux(self.i.p.present, x_significand * significand, 0)),
                    product_shift.eq(x_shift + shift),
                    negative.eq(x_sign ^ sign),
                ]
            shifted = (product << product_shift)[: config.sum_bits - 1]
            m.d.comb += term.eq(Mux(negative, -shifted, shifted))
            with m.If(move & product_valid):
                m.d.sync += total.eq(Mux(is_open, total, 0) + term)
            following = copies[c + 1] if c + 1 < config.columns else copies[c]
            with m.If(hand_over):
                m.d.sync += copies[c].eq(total)
            with m.Elif(read):
                m.d.sync += copies[c].eq(following)
        m.d.comb += self.o.p.sum.eq(copies[0])

        with m.If(move):
            m.d.sync += full.eq(product_valid & product_last)
            with m.If(product_valid):
                m.d.sync += is_open.eq(~product_last)
        with m.If(hand_over):
            m.d.sync += left.eq(config.columns)
        with m.Elif(read):
            m.d.sync += left.eq(left - 1)
        return m


def finite_parts(word):
    """(sign, significand, shift): ``(-1)**sign * significand * 2**shift * 2**-24``."""
    exponent = word[FP16.frac_bits : FP16.frac_bits + FP16.exp_bits]
    is_normal = exponent != 0
    significand = word[: FP16.frac_bits] | (is_normal << FP16.frac_bits)
    return word[-1], significand, Mux(is_normal, exponent - 1, 0)[: FP16.exp_bits]
