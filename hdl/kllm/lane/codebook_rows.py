"""The codebook buffer of a lane whose packets come in rows."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.lane.config import SMALL, KllmPeLaneConfig, Loaded
from hdl.kllm.lane.packet import row_beyond
from hdl.kllm.lane.select_config import PACKET_WORDS
from hdl.ports import In, Out

_ROW = PACKET_WORDS[-1]


class KllmLaneCodebookRows(Block):
    """KllmLaneCodebook for ``packet_words`` words of a packet per cycle.

    A packet of K-Means has its products in whole rows, then a row that begins with C_B. A packet of
    integers is one row that begins with C_V. The words after the centroids are ignored. ``loaded``
    is NOTHING from a packet's first row to its last. It stays NOTHING after a packet of another
    number of rows, or with an entry that is not in -1..1.

    ``product.multiply`` is 1 with the row of C_V. The table then takes several cycles.

    Throughput 1 row per cycle. Latency: ``product`` 0 cycles, the other outputs 1 cycle.
    ``i.ready`` depends combinationally on ``product.ready``. Nothing rounds.
    Golden: golden.kllm.lane.codebook_mode.
    """

    tier = Tier.PART
    golden = "golden.kllm.lane:codebook_mode"
    default = KllmPeLaneConfig(packet_words=_ROW)
    configs: ClassVar = {
        "table1": KllmPeLaneConfig(packet_words=_ROW),
        "small": dataclasses.replace(SMALL, packet_words=_ROW),
    }

    def __init__(self, config: KllmPeLaneConfig):
        config._check_choice("packet_words", (_ROW,))
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.packet_layout), "Codebook packets."),
                "loaded": Out(Loaded, "What the buffer holds."),
                "codebook_b": Out(
                    config.codebook_b_layout, "Centroids of the weights, or of the values.", FP16
                ),
                "product": Out(
                    stream.Signature(config.product_layout), "Rows of words for the table."
                ),
            },
        )

    # Rows for the table leave in the cycle in which they come.
    timing = Timing(
        latency=0,
        end="product",
        unit="row",
        delays=(("from a packet's last word to loaded", 1),),
    )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        words, rows = self.i.p.word, config.select_config.product_rows
        count = Signal(range(rows + 3))  # rows so far, held at one too many
        bad_kmeans = Signal()
        now_kmeans = Signal()
        take = Signal()
        is_product = Signal()
        beyond = row_beyond(config, words, is_product)
        m.d.comb += [
            take.eq(self.i.valid & self.i.ready),
            is_product.eq(count < rows),
            now_kmeans.eq(bad_kmeans | beyond[0]),
        ]
        with m.If(take):
            m.d.sync += [
                self.loaded.eq(Loaded.NOTHING),
                bad_kmeans.eq(now_kmeans),
                count.eq(Mux(count == rows + 2, count, count + 1)),
            ]
            with m.If(self.i.p.last):
                m.d.sync += [count.eq(0), bad_kmeans.eq(0)]
                with m.If((count == rows) & ~now_kmeans):
                    m.d.sync += self.loaded.eq(Loaded.KMEANS)
                if config.integer_bits:
                    with m.If((count == 0) & ~beyond[1]):
                        m.d.sync += self.loaded.eq(Loaded.INTEGER)

        # The row with the centroids is the last one of either packet.
        held = [
            Signal(FP16.bits, name=f"b_{j}", reset_less=True)
            for j in range(2**config.packet_bits_b)
        ]
        with m.If(take):
            m.d.sync += [each.eq(word) for each, word in zip(held, words, strict=False)]
        if config.antisymmetric:
            held += [each ^ FP16.sign_bit for each in reversed(held)]
        m.d.comb += [entry.eq(each) for entry, each in zip(self.codebook_b, held, strict=True)]

        m.d.comb += [
            self.i.ready.eq(self.product.ready | ~is_product),
            self.product.valid.eq(self.i.valid & is_product),
            self.product.p.row.eq(count),
            self.product.p.word.eq(words),
            self.product.p.multiply.eq(self.i.p.last & (count == 0)),
        ]
        return m
