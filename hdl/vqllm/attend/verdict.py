"""The end of requests: which outputs are NaN, and the status."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.million.format import Status
from hdl.block import Block
from hdl.ports import In, Out
from hdl.stream.queue import queue
from hdl.vqllm.attend.config import VqAttentionConfig

_WAITING = 4  # statuses


class VqAttendVerdict(Block):
    """A ``result`` for each request with outputs; a ``status`` for each, in the order of ``end``.

    A status waits for the last output of its request.
    """

    def __init__(self, config: VqAttentionConfig):
        super().__init__(
            config,
            {
                "end": In(stream.Signature(config.end_layout), "A request has no more beats."),
                "total": In(stream.Signature(config.weights.total_layout), "Sums of weights."),
                "special": In(stream.Signature(config.special_layout), "Which are not finite."),
                "result": Out(stream.Signature(config.output.total_layout), "For the outputs."),
                "given": In(1, "The last output of a request leaves."),
                "status": Out(stream.Signature(config.status_layout), "How requests ended."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        queries = config.shape.queries
        kept = data.StructLayout({"tag": 8, "status": 4, "gives": 1})
        waiting = queue(m, "waiting", kept, _WAITING)
        end = Signal(config.end_layout, reset_less=True)
        full = Signal()
        is_refused = Signal()
        leaves = Signal()
        counts = Signal(queries)
        special = Signal(queries)
        failed = Signal(queries)
        all_failed = Signal()
        status = Signal(4)
        m.d.comb += [
            self.end.ready.eq(~full),
            is_refused.eq(end.status != Status.OK),
            counts.eq(Cat(end.queries > n for n in range(queries))),
            special.eq(self.special.p.mask),
            all_failed.eq(end.resp[1] | end.large | end.nonfinite | end.beyond),
            failed.eq((self.total.p.bad | special | all_failed.replicate(queries)) & counts),
        ]
        cases = (
            (is_refused, end.status),
            (end.resp == 3, Status.DECODE_ERROR),
            (end.resp[1], Status.SLAVE_ERROR),
            (end.large, Status.BAD_REQUEST),
            (end.nonfinite | special.any(), Status.NONFINITE),
            (end.beyond, Status.BAD_CODE),
            (failed.any(), Status.OVERFLOW),
        )
        for applies, name in reversed(cases):
            with m.If(applies):
                m.d.comb += status.eq(name)
        joins = full & ~is_refused & self.total.valid & self.special.valid & waiting.i.ready
        result = self.result
        m.d.comb += [
            result.valid.eq(joins),
            result.p.sum.eq(self.total.p.sum),
            result.p.bad.eq(failed),
            result.p.queries.eq(end.queries),
            result.p.exponent.eq(end.exponent_v),
            leaves.eq(Mux(is_refused, full & waiting.i.ready, joins & result.ready)),
            self.total.ready.eq(leaves & ~is_refused),
            self.special.ready.eq(leaves & ~is_refused),
            waiting.i.valid.eq(leaves),
            waiting.i.p.tag.eq(end.tag),
            waiting.i.p.status.eq(status),
            waiting.i.p.gives.eq(~is_refused),
        ]
        with m.If(leaves):
            m.d.sync += full.eq(0)
        with m.If(self.end.valid & ~full):
            m.d.sync += [full.eq(1), end.eq(self.end.p)]

        # requests whose outputs have left
        given = Signal(range(_WAITING + 1))
        taken = Signal()
        m.d.comb += [
            self.status.valid.eq(waiting.o.valid & (~waiting.o.p.gives | (given != 0))),
            self.status.p.tag.eq(waiting.o.p.tag),
            self.status.p.status.eq(waiting.o.p.status),
            taken.eq(self.status.valid & self.status.ready),
            waiting.o.ready.eq(taken),
        ]
        m.d.sync += given.eq(given + self.given - (taken & waiting.o.p.gives))
        return m
