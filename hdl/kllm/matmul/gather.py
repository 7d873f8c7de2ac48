"""Outputs of a lane to rows."""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.isa import ROW_ELEMENTS
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.matmul.config import KllmMatmulPhaseConfig
from hdl.kllm.matmul.payloads import packet_word_layout, row_layout
from hdl.ports import In, Out


class KllmRowGather(Block):
    """``o.word[k]`` = word ``16 * n + k`` of ``y``, for the n-th row.

    The block holds one complete row, and 15 words of the next one. It does not use ``y.last``: a
    lane gives a multiple of 16 words.

    Latency: the 16th word of a row to ``o`` 1 cycle. Throughput 1 word per cycle. ``y.ready``
    depends combinationally on ``o.ready``.
    Golden: golden.kllm.walks.gathered_rows.

    So a lane goes on while its row waits for the other lanes.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:gathered_rows"
    default = KllmMatmulPhaseConfig()

    def __init__(self, config: KllmMatmulPhaseConfig):
        super().__init__(
            config,
            {
                "y": In(stream.Signature(packet_word_layout), "Outputs of a lane."),
                "o": Out(stream.Signature(row_layout), "The same, as rows."),
            },
        )

    timing = Timing(latency=1, start="y", unit="word")

    def elaborate(self, platform) -> Module:
        m = Module()
        count = Signal(range(ROW_ELEMENTS))
        valid = Signal()
        words = [
            Signal(FP16.bits, name=f"word_{k}", reset_less=True) for k in range(ROW_ELEMENTS - 1)
        ]
        row = Signal(row_layout, reset_less=True)
        is_full = count == ROW_ELEMENTS - 1
        m.d.comb += [
            self.y.ready.eq(~is_full | ~valid | self.o.ready),
            self.o.valid.eq(valid),
            self.o.payload.eq(row),
        ]
        with m.If(self.o.ready):
            m.d.sync += valid.eq(0)
        with m.If(self.y.valid & self.y.ready):
            m.d.sync += count.eq(count + 1)
            for k, word in enumerate(words):
                with m.If(count == k):
                    m.d.sync += word.eq(self.y.p.word)
            with m.If(is_full):
                m.d.sync += [row.word.as_value().eq(Cat(*words, self.y.p.word)), valid.eq(1)]
        return m
