"""The codebook buffer of a lane."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.format import integer_packet_length
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.lane.config import LANES, KllmPeLaneConfig, Loaded
from hdl.kllm.lane.packet import words_beyond
from hdl.ports import In, Out


class KllmLaneCodebook(Block):
    """C_B of the last packet of ``i``, and the words of P with their bins.

    Words and order of a packet: golden.kllm.format. ``loaded`` says what the buffer holds.
    ``loaded`` is NOTHING from a packet's first word to its last. It stays NOTHING after a packet of
    another length, or with an entry that is not in -1..1. With ``antisymmetric`` a packet has the
    lower half of C_B and of each row of P, and the block mirrors C_B.

    Throughput 1 word per cycle. Latency: ``product`` 0 cycles, the other outputs 1 cycle.
    ``i.ready`` depends combinationally on ``product.ready``. Nothing rounds.
    Golden: golden.kllm.lane.codebook_mode.

    A packet of K-Means has 2**(bits_a + bits_b) products, then C_B, and a packet of integers C_V.
    So a shift register of the last words keeps the right ones, whatever the length.
    """

    tier = Tier.PART
    golden = "golden.kllm.lane:codebook_mode"
    default = KllmPeLaneConfig()
    configs = LANES

    def __init__(self, config: KllmPeLaneConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.packet_layout), "Codebook packets."),
                "loaded": Out(Loaded, "What the buffer holds."),
                "codebook_b": Out(
                    config.codebook_b_layout, "Centroids of the weights, or of the values.", FP16
                ),
                "product": Out(
                    stream.Signature(config.product_layout), "Words of the table of products."
                ),
            },
        )

    # Words of the table of products leave in the cycle in which they come.
    timing = Timing(latency=0, end="product", delays=(("from a packet's last word to loaded", 1),))

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        word = self.i.p.word
        count = Signal(range(config.codebook_words + 2))  # words so far, held at one too many
        # A word of this packet is out of range, if it is a K-Means or an Integer packet.
        bad_kmeans = Signal()
        bad_integer = Signal()
        now_kmeans = Signal()
        now_integer = Signal()
        take = Signal()
        is_product = Signal()
        beyond = words_beyond(config, word, is_product)
        m.d.comb += [
            take.eq(self.i.valid & self.i.ready),
            is_product.eq(count < config.bins),
            now_kmeans.eq(bad_kmeans | beyond[0]),
            now_integer.eq(bad_integer | beyond[1]),
        ]
        with m.If(take):
            m.d.sync += [
                self.loaded.eq(Loaded.NOTHING),
                bad_kmeans.eq(now_kmeans),
                bad_integer.eq(now_integer),
                count.eq(Mux(count == config.codebook_words + 1, count, count + 1)),
            ]
            with m.If(self.i.p.last):
                m.d.sync += [count.eq(0), bad_kmeans.eq(0), bad_integer.eq(0)]
                with m.If((count == config.codebook_words - 1) & ~now_kmeans):
                    m.d.sync += self.loaded.eq(Loaded.KMEANS)
                if config.integer_bits:
                    is_short = count == integer_packet_length(config.packet_bits_b) - 1
                    with m.If(is_short & ~now_integer):
                        m.d.sync += self.loaded.eq(Loaded.INTEGER)

        # The last words of a packet are C_B (or C_V), so a shift register keeps the right ones.
        words = [
            Signal(FP16.bits, name=f"b_{j}", reset_less=True)
            for j in range(2**config.packet_bits_b)
        ]
        with m.If(take):
            for held, following in zip(words, [*words[1:], word], strict=True):
                m.d.sync += held.eq(following)
        if config.antisymmetric:
            words += [held ^ FP16.sign_bit for held in reversed(words)]
        m.d.comb += [entry.eq(held) for entry, held in zip(self.codebook_b, words, strict=True)]

        m.d.comb += [
            self.i.ready.eq(self.product.ready | ~is_product),
            self.product.valid.eq(self.i.valid & is_product),
            self.product.p.bin.eq(count),
            self.product.p.word.eq(word),
        ]
        return m
