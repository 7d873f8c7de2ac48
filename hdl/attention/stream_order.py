"""The order in which rows come: part of attention_stream."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from hdl.attention.stream_config import AttentionStreamConfig
from hdl.bits import let
from hdl.block import Block
from hdl.ports import In, Out


class AttentionStreamOrder(Block):
    """``phase`` says whose rows come next: K0 K1 V0 K2 V1 ... V of a run; ``end`` has its jobs.

    V of a job follows K of the next one, which hides its softmax, or its own K at the end of a run.
    ``end`` has a job before ``phase`` has its K. A refused job has its phases too, so that the
    words of others keep their place.
    """

    def __init__(self, config: AttentionStreamConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Jobs; last ends a run."),
                "phase": Out(stream.Signature(config.phase_layout), "Stretches of rows."),
                "end": Out(stream.Signature(config.end_layout), "Jobs in their order."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        rows = self.job.p.rows
        is_refused = let(m, "is_refused", (rows == 0) | (rows > config.max_rows))
        waiting = Signal(config.phase_layout, reset_less=True)  # V of the job before
        has_waiting = Signal()
        gives_value = Signal()
        m.d.comb += [
            self.end.p.tag.eq(self.job.p.tag),
            self.end.p.is_refused.eq(is_refused),
            self.phase.p.is_value.eq(gives_value),
            self.phase.p.rows.eq(Mux(gives_value, waiting.rows, rows)),
            self.phase.p.is_refused.eq(Mux(gives_value, waiting.is_refused, is_refused)),
        ]
        if config.caps:
            m.d.comb += self.phase.p.cap.eq(self.job.p.cap)  # of K
        with m.FSM():
            with m.State("END"):
                m.d.comb += self.end.valid.eq(self.job.valid)
                with m.If(self.job.valid & self.end.ready):
                    m.next = "KEYS"
            with m.State("KEYS"):
                m.d.comb += self.phase.valid.eq(1)
                with m.If(self.phase.ready):
                    m.next = "VALUES"
            with m.State("VALUES"):
                m.d.comb += [self.phase.valid.eq(has_waiting), gives_value.eq(1)]
                with m.If(~has_waiting | self.phase.ready):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += [
                    waiting.rows.eq(rows),
                    waiting.is_refused.eq(is_refused),
                    has_waiting.eq(~self.job.p.last),
                ]
                m.next = "END"
                with m.If(self.job.p.last):
                    m.next = "LAST_VALUES"
            with m.State("LAST_VALUES"):
                m.d.comb += [self.phase.valid.eq(1), gives_value.eq(1)]
                with m.If(self.phase.ready):
                    m.next = "END"
        return m
