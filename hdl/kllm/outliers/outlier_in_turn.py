"""The sparse path with few multipliers: its columns take turns."""

from itertools import pairwise

from amaranth import Array, Cat, Const, Module, Mux, Signal, signed

from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.index.reducer import centroid_parts
from hdl.kllm.outliers.outlier import KllmOutlierConfig, finite_parts, outlier_ports


class KllmOutlierInTurn(Block):
    """``sum[c] = sum over present words of x * codebook[index[c]]``: KllmOutlier, in ``parts``.

    A word with ``present`` takes ``parts`` cycles, with ``columns / parts`` multipliers. Another
    word takes one. The sums of a packet go out one column per cycle. Until the last one has gone,
    no word that is present or ``last`` is taken.

    Each multiplier has a ring of ``parts`` sums. A cycle adds to the first of them and moves the
    ring by one place, so no sum needs a multiplexer. A packet without a present word leaves the
    rings as they are, and its sums are 0.

    Latency 2 cycles from the word with ``last`` to the first sum. ``i.ready`` depends
    combinationally on ``i.p``. Contract and words are those of KllmOutlier.
    Source: KLLM, section III-D. Golden: golden.kllm.blocks.sparse_sums.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:sparse_sums"
    configs = FieldOf("kllm_pe_lane", "outlier_config", ("serial",))

    def __init__(self, config: KllmOutlierConfig):
        super().__init__(config, outlier_ports(config))

    timing = Timing(latency=2)

    def elaborate(self, platform) -> Module:
        m, config, i = Module(), self.config, self.i
        part = Signal(range(max(config.parts, 2)))
        is_last_part = Signal()
        is_open = Signal()  # the rings have a part of this packet
        is_zero = Signal()  # no word of the packet was present
        closing = Signal()  # the last sums are added in this cycle
        full = Signal()  # all sums are there
        issue = Signal()
        take = Signal()
        free = Signal()
        m.d.comb += [
            free.eq(~full & ~closing),
            is_last_part.eq(part == config.parts - 1),
            issue.eq(i.valid & i.p.present & free),
            i.ready.eq(Mux(i.p.present, free & is_last_part, free | ~i.p.last)),
            take.eq(i.valid & i.ready),
        ]
        m.d.sync += closing.eq(take & i.p.last)
        with m.If(issue):
            m.d.sync += part.eq(Mux(is_last_part, 0, part + 1))
        with m.If(take):
            m.d.sync += is_open.eq(~i.p.last & (is_open | i.p.present))
            with m.If(i.p.last):
                m.d.sync += is_zero.eq(~is_open & ~i.p.present)
        column = Signal(range(max(config.columns, 2)))
        read = Signal()
        m.d.comb += [
            self.o.valid.eq(full),
            self.o.p.last.eq(column == config.columns - 1),
            read.eq(full & self.o.ready),
        ]
        with m.If(closing):
            m.d.sync += full.eq(1)
        with m.If(read):
            m.d.sync += column.eq(Mux(self.o.p.last, 0, column + 1))
            with m.If(self.o.p.last):
                m.d.sync += full.eq(0)
        heads = self._rings(m, part, issue, is_open, column, read)
        of_multiplier = Array(heads)[column % config.multipliers]
        m.d.comb += self.o.p.sum.eq(Mux(is_zero, 0, of_multiplier))
        return m

    def _rings(self, m: Module, part, issue, is_open, column, read) -> list[Signal]:
        """The first sum of each multiplier's ring."""
        config, i = self.config, self.i
        x_sign, x_significand, x_shift = finite_parts(i.p.x)
        entries = [centroid_parts(word) for word in self.codebook]
        adds = Signal()
        begins = Signal(reset_less=True)
        m.d.sync += [adds.eq(issue), begins.eq(~is_open)]
        turn = Signal()
        m.d.comb += turn.eq(read & (column % config.multipliers == config.multipliers - 1))
        heads = []
        for n in range(config.multipliers):
            own = [i.p.index[p * config.multipliers + n] for p in range(config.parts)]
            index = Signal(config.bits_b, name=f"index_{n}")
            m.d.comb += index.eq(Cat(own).word_select(part, config.bits_b))
            sign, significand, shift = (
                Array(entry[field] for entry in entries)[index] for field in range(3)
            )
            product = Signal(22, name=f"product_{n}", reset_less=True)
            product_shift = Signal(6, name=f"product_shift_{n}", reset_less=True)
            negative = Signal(name=f"negative_{n}", reset_less=True)
            m.d.sync += [
                product.eq(x_significand * significand),
                product_shift.eq(x_shift + shift),
                negative.eq(x_sign ^ sign),
            ]
            term = Signal(signed(config.sum_bits), name=f"term_{n}")
            shifted = (product << product_shift)[: config.sum_bits - 1]
            m.d.comb += term.eq(Mux(negative, -shifted, shifted))
            ring = [
                Signal(signed(config.sum_bits), name=f"sum_{n}_{p}", reset_less=True)
                for p in range(config.parts)
            ]
            total = Mux(begins, Const(0), ring[0]) + term
            with m.If(adds | turn):
                m.d.sync += [now.eq(after) for now, after in pairwise(ring)]
                m.d.sync += ring[-1].eq(Mux(adds, total, ring[0]))
            heads.append(ring[0])
        return heads
