"""Words of rows: the packet of LANE_CODEBOOK and the tokens of DIRECT."""

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.isa import ROW_ELEMENTS
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.engine import row_read
from hdl.kllm.matmul.config import FIRST_REQUEST, KllmMatmulPhaseConfig
from hdl.kllm.matmul.payloads import packet_word_layout, row_work_layout
from hdl.ports import In, Out
from hdl.walk import Walk


class KllmRowWalk(Block):
    """Gives, for each group and each token, words 0 .. words - 1 from row ``src + t * stride`` on.

    ``rows`` is ``ceil(words / 16)``. The walk begins in the cycle after ``start``. ``work`` must
    not change until ``done``. Requests run ahead of the words, as far as the memory takes them.

    Latency: ``start`` to the first request 1 cycle, a row to its first word 0 cycles. Throughput 1
    word per cycle. ``read_row.ready`` depends combinationally on ``o.ready``.
    Golden: golden.kllm.walks.row_words.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:row_words"
    default = KllmMatmulPhaseConfig()

    def __init__(self, config: KllmMatmulPhaseConfig):
        super().__init__(
            config,
            {
                "start": In(1, "A walk begins."),
                "work": In(row_work_layout, "Rows and words of the walk."),
                "done": Out(1, "Every word was taken."),
                **row_read("read", "rows of the vector memory"),
                "o": Out(stream.Signature(packet_word_layout), "Words of the tokens."),
            },
        )

    # The memory's latency is not included.
    timing = Timing(latency=0, start="a row", unit="word", delays=(FIRST_REQUEST,))

    def elaborate(self, platform) -> Module:
        m, work = Module(), self.work
        asks = Walk(m, "asks", groups=work.groups, tokens=work.tokens, rows=work.rows)
        base = Signal(16)  # first row of the token
        m.d.comb += [
            asks.start.eq(self.start),
            self.read_request.valid.eq(~asks.done),
            self.read_request.p.row.eq(base + asks.at.rows),
            asks.step.eq(self.read_request.valid & self.read_request.ready),
        ]
        with m.If(self.start | (asks.step & asks.wraps.tokens)):
            m.d.sync += base.eq(work.src)
        with m.Elif(asks.step & asks.wraps.rows):
            m.d.sync += base.eq(base + work.stride)

        walk = Walk(m, "walk", groups=work.groups, tokens=work.tokens, words=work.words)
        place = walk.at.words % ROW_ELEMENTS
        is_row_end = walk.last.words | (place == ROW_ELEMENTS - 1)
        m.d.comb += [
            walk.start.eq(self.start),
            walk.step.eq(self.o.valid & self.o.ready),
            self.done.eq(walk.done),
            self.o.valid.eq(self.read_row.valid & ~walk.done),
            self.o.p.word.eq(self.read_row.p.word.as_value().word_select(place, FP16.bits)),
            self.o.p.last.eq(walk.last.words),
            self.read_row.ready.eq(self.o.ready & ~walk.done & is_row_end),
        ]
        return m
