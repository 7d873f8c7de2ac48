"""Queries of requests, counted: passed to the products, or discarded."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream

from hdl.bits import any_of
from hdl.block import Block
from hdl.fp16.compare import is_special
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.attend.config import VqAttentionConfig
from hdl.walk import Walk

_AHEAD = 3  # requests whose queries have passed: one in use, one that waits, and one to give


class VqQueryGate(Block):
    """``queries`` vectors of ``passes`` beats per job. ``special`` follows a job's last beat.

    The block counts the beats of q: it does not look at ``q.last``.
    """

    def __init__(self, config: VqAttentionConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.gate_layout), "Queries of a request."),
                "q": In(stream.Signature(config.q_layout), "Queries."),
                "x": Out(stream.Signature(config.sums.x_layout), "Queries of a request."),
                "special": Out(stream.Signature(config.special_layout), "Which are not finite."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        done = queue(m, "done", config.special_layout, _AHEAD)
        link(m, done.o, self.special)
        job, passes = self.job.p, config.shape.passes
        active = Signal()
        takes = Signal()
        walk = Walk(m, "walk", queries=job.queries, beats=passes)
        mask = Signal(config.shape.queries)
        found = Signal(config.shape.queries)
        special = any_of(is_special(word) for word in self.q.p.word)
        m.d.comb += [
            active.eq(~walk.done),
            takes.eq(self.q.valid & self.q.ready),
            self.q.ready.eq(active & (job.discard | (self.x.ready & done.i.ready))),
            self.x.valid.eq(active & self.q.valid & ~job.discard & done.i.ready),
            self.x.p.word.eq(self.q.p.word),
            self.x.p.last.eq(walk.last.beats),
            self.x.p.end.eq(walk.is_last),
            walk.step.eq(takes),
            # A job of no queries is refused, and has nothing to discard.
            walk.start.eq(self.job.valid & walk.done & (job.queries != 0)),
            found.eq(mask | Cat(special & (walk.at.queries == n) for n in range(len(mask)))),
            done.i.valid.eq(takes & walk.is_last & ~job.discard),
            done.i.p.mask.eq(found),
            self.job.ready.eq((takes & walk.is_last) | (walk.done & (job.queries == 0))),
        ]
        with m.If(takes):
            m.d.sync += mask.eq(Mux(walk.is_last, 0, found))
        return m
