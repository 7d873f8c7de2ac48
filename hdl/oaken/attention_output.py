"""Words and ends of attends: part of oaken_attention."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.attention.format import Status as JobStatus
from golden.fp16.format import FP16
from golden.paging.format import Status
from hdl.bits import let
from hdl.block import Block
from hdl.oaken.attention_config import (
    STATUS_BITS,
    OakenAttentionConfig,
    attended_layout,
    is_refusal,
)
from hdl.ports import In, Out


class OakenAttentionOutput(Block):
    """``o`` has the words of each ``task``; ``attended`` ends an attend of several.

    The words of a job wait for the statuses of its READs: of K, then of V unless K was refused. The
    first that is not OK decides. A refusal makes the words ``void``, an error of memory NaN.
    """

    def __init__(self, config: OakenAttentionConfig):
        status, job = stream.Signature(STATUS_BITS), config.stream
        super().__init__(
            config,
            {
                "task": In(stream.Signature(config.task_layout), "Jobs."),
                "key_end": In(status, "Statuses of K, one per job.", Status),
                "value_end": In(status, "Statuses of V, one per job whose K went ahead.", Status),
                "i": In(stream.Signature(job.o_layout), "Words of the jobs."),
                "result": In(stream.Signature(job.status_layout), "How each job ended."),
                "o": Out(stream.Signature(config.o_layout), "Words of the attends."),
                "attended": Out(stream.Signature(attended_layout), "How each attend ended."),
                "done": Out(1, "A job has ended."),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        task, attended, key, value = self.task, self.attended, self.key_end, self.value_end
        is_void = Signal(reset_less=True)
        is_nan = Signal(reset_less=True)
        key_status = Signal(STATUS_BITS)  # the first of the attend's jobs that is not OK
        value_status = Signal(STATUS_BITS)
        result = Signal(3)
        status = let(m, "status", Mux(key_status != Status.OK, key_status, value_status))
        is_refused = let(m, "is_refused", is_refusal(key.p))  # so that V was not read
        decisive = let(m, "decisive", Mux(key.p != Status.OK, key.p, value.p))
        begins = Signal()
        m.d.comb += [
            key.ready.eq(begins),
            value.ready.eq(begins & ~is_refused),
            self.o.p.void.eq(is_void),
            self.o.p.last.eq(self.i.p.last & task.p.last),
            attended.p.tag.eq(task.p.tag),
            attended.p.status.eq(status),
            attended.p.result.eq(Mux(status == Status.OK, result, JobStatus.OK)),
            task.ready.eq(self.done),
        ]
        for source, sink in zip(self.i.p.word, self.o.p.word, strict=True):
            m.d.comb += sink.eq(Mux(is_nan, FP16.canonical_nan, source))
        with m.FSM():
            with m.State("STATUSES"):
                is_known = key.valid & (value.valid | is_refused)
                m.d.comb += begins.eq(task.valid & is_known)
                with m.If(begins):
                    m.d.sync += [
                        is_void.eq(is_refusal(decisive)),
                        is_nan.eq(decisive >= Status.SLAVE_ERROR),
                    ]
                    with m.If(key_status == Status.OK):
                        m.d.sync += key_status.eq(key.p)
                    with m.If(~is_refused & (value_status == Status.OK)):
                        m.d.sync += value_status.eq(value.p)
                    m.next = "WORDS"
            with m.State("WORDS"):
                m.d.comb += [self.o.valid.eq(self.i.valid), self.i.ready.eq(self.o.ready)]
                with m.If(self.i.valid & self.o.ready & self.i.p.last):
                    m.next = "RESULT"
            with m.State("RESULT"):
                found = self.result.p.status
                m.d.comb += [
                    self.result.ready.eq(1),
                    self.done.eq(self.result.valid & ~task.p.last),
                ]
                with m.If(self.result.valid):
                    with m.If((result == JobStatus.OK) | ((found != 0) & (found < result))):
                        m.d.sync += result.eq(found)
                    m.next = "STATUSES"
                    with m.If(task.p.last):
                        m.next = "ATTENDED"
            with m.State("ATTENDED"):
                m.d.comb += [attended.valid.eq(1), self.done.eq(attended.ready)]
                with m.If(attended.ready):
                    m.d.sync += [key_status.eq(0), value_status.eq(0), result.eq(0)]
                    m.next = "STATUSES"
        return m
