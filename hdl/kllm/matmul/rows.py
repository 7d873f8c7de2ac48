"""Words of rows: the packet of LANE_CODEBOOK and the tokens of DIRECT."""

from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.isa import ROW_ELEMENTS
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.engine import row_read
from hdl.kllm.matmul.config import FIRST_REQUEST, KllmRowWalkConfig
from hdl.kllm.matmul.payloads import packet_row_layout, packet_word_layout, row_work_layout
from hdl.ports import In, Out
from hdl.walk import Walk


class KllmRowWalk(Block):
    """Gives, for each group and each token, words 0 .. words - 1 from row ``src + t * stride`` on.

    ``rows`` is ``ceil(words / 16)``. The walk begins in the cycle after ``start``. ``work`` must
    not change until ``done``. Requests run ahead of the words, as far as the memory takes them.

    Latency: ``start`` to the first request 1 cycle, a row to its first word 0 cycles. Throughput 1
    word per cycle. ``read_row.ready`` depends combinationally on ``o.ready``. With ``packet_words``
    16 a walk gives whole rows on ``row`` in place of words, if ``by_row`` is 1 from its start to
    its end.
    Golden: golden.kllm.walks.row_words.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:row_words"
    default = KllmRowWalkConfig()
    configs: ClassVar = {
        "words": KllmRowWalkConfig(),
        "rows": KllmRowWalkConfig(packet_words=ROW_ELEMENTS),
    }

    def __init__(self, config: KllmRowWalkConfig):
        whole = {}
        if config.packet_words > 1:
            whole = {
                "by_row": In(1, "The walk gives rows."),
                "row": Out(stream.Signature(packet_row_layout), "Rows of the tokens."),
            }
        super().__init__(
            config,
            {
                "start": In(1, "A walk begins."),
                "work": In(row_work_layout, "Rows and words of the walk."),
                "done": Out(1, "Every word was taken."),
                **row_read("read", "rows of the vector memory"),
                "o": Out(stream.Signature(packet_word_layout), "Words of the tokens."),
                **whole,
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

        if self.config.packet_words > 1:
            self._give(m, Mux(self.by_row, work.rows, work.words))
        else:
            self._give(m, work.words)
        return m

    def _give(self, m: Module, words) -> None:
        """The words, or the rows, as they come."""
        work = self.work
        walk = Walk(m, "walk", groups=work.groups, tokens=work.tokens, words=words)
        place = walk.at.words % ROW_ELEMENTS
        is_row_end = walk.last.words | (place == ROW_ELEMENTS - 1)
        step, valid = self.o.valid & self.o.ready, self.read_row.valid & ~walk.done
        frees = self.o.ready & ~walk.done & is_row_end
        if self.config.packet_words > 1:
            m.d.comb += [
                self.row.valid.eq(valid & self.by_row),
                self.row.p.word.eq(self.read_row.p.word),
                self.row.p.last.eq(walk.last.words),
            ]
            step = step | (self.row.valid & self.row.ready)
            frees = Mux(self.by_row, self.row.ready & ~walk.done, frees)
            valid = valid & ~self.by_row
        m.d.comb += [
            walk.start.eq(self.start),
            walk.step.eq(step),
            self.done.eq(walk.done),
            self.o.valid.eq(valid),
            self.o.p.word.eq(self.read_row.p.word.as_value().word_select(place, FP16.bits)),
            self.o.p.last.eq(walk.last.words),
            self.read_row.ready.eq(frees),
        ]
