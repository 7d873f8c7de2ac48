"""The codebook buffer of a lane (docs/blocks/kllm_lane_codebook.md)."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.format import integer_packet_length
from golden.kllm.timing import lane_codebook
from golden.timing import Timing
from hdl.block import Block
from hdl.kllm.lane.config import KllmPeLaneConfig, Loaded
from hdl.ports import In, Out

__all__ = ["KllmLaneCodebook"]


class KllmLaneCodebook(Block):
    """C_B of the last packet of ``i``, and the words of P with their bins.

    Words and order of a packet: golden.kllm.format. ``loaded`` says what the buffer holds.
    ``loaded`` is NOTHING from a packet's first word to its last. It stays NOTHING after a packet of
    another length, or with an entry that is not in -1..1.

    Throughput 1 word per cycle. Latency: ``product`` 0 cycles, the other outputs 1 cycle.
    ``i.ready`` depends combinationally on ``product.ready``. Nothing rounds.
    Golden: golden.kllm.lane.codebook_mode.
    """

    def __init__(self, config: KllmPeLaneConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.word_layout), "Codebook packets."),
                "loaded": Out(Loaded, "What the buffer holds."),
                "codebook_b": Out(
                    config.codebook_b_layout, "Centroids of the weights, or of the values.", FP16
                ),
                "product": Out(
                    stream.Signature(config.product_layout), "Words of the table of products."
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return lane_codebook()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        word = self.i.p.word
        count = Signal(range(config.codebook_words + 2))  # words so far, held at one too many
        is_bad = Signal()  # a word of this packet is out of range
        take, too_large = Signal(), Signal()
        m.d.comb += [
            take.eq(self.i.valid & self.i.ready),
            # 1.0 is the largest magnitude; infinities and NaN are above it as integers
            too_large.eq(word[:-1] > (FP16.bias << FP16.frac_bits)),
        ]
        with m.If(take):
            m.d.sync += [
                self.loaded.eq(Loaded.NOTHING),
                is_bad.eq(is_bad | too_large),
                count.eq(Mux(count == config.codebook_words + 1, count, count + 1)),
            ]
            with m.If(self.i.p.last):
                m.d.sync += [count.eq(0), is_bad.eq(0)]
                with m.If(~is_bad & ~too_large):
                    with m.If(count == config.codebook_words - 1):
                        m.d.sync += self.loaded.eq(Loaded.KMEANS)
                    if config.integer_bits:
                        with m.Elif(count == integer_packet_length(config.bits_b) - 1):
                            m.d.sync += self.loaded.eq(Loaded.INTEGER)

        # The last words of a packet are C_B (or C_V), so a shift register keeps the right ones.
        words = [Signal(FP16.bits, name=f"b_{j}", reset_less=True) for j in range(2**config.bits_b)]
        with m.If(take):
            for held, following in zip(words, [*words[1:], word], strict=True):
                m.d.sync += held.eq(following)
        m.d.comb += [entry.eq(held) for entry, held in zip(self.codebook_b, words, strict=True)]

        is_product = count < config.counter_config.bins
        m.d.comb += [
            self.i.ready.eq(self.product.ready | ~is_product),
            self.product.valid.eq(self.i.valid & is_product),
            self.product.p.bin.eq(count),
            self.product.p.word.eq(word),
        ]
        return m
