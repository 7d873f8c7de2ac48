"""Outputs and statuses of the jobs: part of attention_stream."""

from amaranth import Array, Cat, Module, Signal
from amaranth.lib import stream

from golden.attention.format import PRODUCT_GRID, Status
from golden.fp16.format import FP16
from hdl.attention.quotients import Quotients, reciprocals
from hdl.attention.stream_config import AttentionStreamConfig
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig
from hdl.walk import Walk


class AttentionStreamOutput(Block):
    """``o`` = rne16(rne32(W) * rne32(1 / rne32(S))) of each element of a job, then its ``status``.

    A job begins when it is known what its words were. ``end`` has the jobs, ``key_end`` and
    ``value_end`` their faults. A refused job has no ``total`` and no ``sum``. Words of a query
    without a result are NaN (0x7E00). One job at a time.
    """

    def __init__(self, config: AttentionStreamConfig):
        fault = stream.Signature(config.fault_layout)
        super().__init__(
            config,
            {
                "end": In(stream.Signature(config.end_layout), "Jobs."),
                "key_end": In(fault, "Faults of K and of the queries, one per job."),
                "value_end": In(fault, "Faults of V, one per job."),
                "total": In(stream.Signature(config.weights.total_layout), "Sums of weights."),
                "sum": In(stream.Signature(config.sum_layout), "Sums of weighted values."),
                "o": Out(stream.Signature(config.o_layout), "Outputs."),
                "status": Out(stream.Signature(config.status_layout), "One per job, after it."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        status = Signal(config.status_layout, reset_less=True)
        is_refused = Signal(reset_less=True)
        sums = Signal(config.weights.total_layout["sum"].shape, reset_less=True)
        inverses, invert, inverted = reciprocals(m, sums.as_value(), config.results)
        beats = StreamSkidBufferConfig(width=FP16.bits * config.width)
        beats = add(m, "beats", StreamSkidBuffer(beats))
        cells = config.lanes // config.width
        loops = {"steps": config.steps, "queries": config.queries, "cells": cells}
        walk = Walk(m, "walk", heads=config.heads, **loops)
        query = let(m, "query", walk.at.heads * config.queries + walk.at.queries)
        drains = Signal()
        takes = Signal()
        held = Signal()
        values = Signal(config.sum_layout["value"].shape, reset_less=True)
        side = {
            name: Signal(shape, name=f"held_{name}", reset_less=True)
            for name, shape in {"inverse": inverses[0].shape(), "bad": 1, "last": 1}.items()
        }
        offers = let(m, "offers", drains & (is_refused | self.sum.valid))
        m.d.comb += [
            walk.step.eq(offers & takes),
            self.sum.ready.eq(drains & ~is_refused & takes),
        ]
        with m.If(takes):
            m.d.sync += [
                held.eq(offers),
                values.eq(self.sum.p.value),
                side["inverse"].eq(Array([*inverses, inverses[0]])[query]),
                side["bad"].eq(Cat(status.bad, 0).bit_select(query, 1)),
                side["last"].eq(walk.is_last),
            ]
        divided = Quotients(m, config.value_bits, PRODUCT_GRID, held, side, takes, beats)
        for n in range(config.width):
            divided.element(n, values[n])
        m.d.comb += [
            self.o.valid.eq(beats.o.valid),
            self.o.p.word.eq(beats.o.p.data),
            self.o.p.last.eq(beats.o.p.last),
            beats.o.ready.eq(self.o.ready),
            self.status.p.eq(status),
        ]
        idle = Signal()
        begin = self._begin(m, idle, status, is_refused, sums)
        with m.FSM():
            with m.State("JOB"):
                m.d.comb += idle.eq(1)
                with m.If(begin):
                    m.next = "INVERT"
            with m.State("INVERT"):
                m.d.comb += [invert.eq(1), walk.start.eq(inverted)]
                with m.If(inverted):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += drains.eq(~walk.done)
                with m.If(self.o.valid & self.o.ready & self.o.p.last):
                    m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.next = "JOB"
        return m

    def _begin(self, m: Module, idle, status, is_refused, sums) -> Signal:
        """A job begins: its status, and the queries without a result."""
        end, total = self.end, self.total
        faults = [self.key_end.p, self.value_end.p]
        has_total = end.p.is_refused | total.valid
        has_faults = self.key_end.valid & self.value_end.valid
        begin = let(m, "begin", idle & end.valid & has_faults & has_total)
        error = let(m, "error", faults[0].error | faults[1].error)
        nonfinite = let(m, "nonfinite", faults[0].nonfinite | faults[1].nonfinite)
        unusable = faults[0].bad
        lost = let(m, "lost", end.p.is_refused | error | nonfinite)
        bad = unusable | total.p.bad | lost.replicate(len(unusable))
        m.d.comb += [stream.ready.eq(begin) for stream in (end, self.key_end, self.value_end)]
        m.d.comb += total.ready.eq(begin & ~end.p.is_refused)
        with m.If(begin):
            m.d.sync += [
                is_refused.eq(end.p.is_refused),
                sums.eq(total.p.sum),
                status.tag.eq(end.p.tag),
                status.bad.eq(bad),
            ]
            with m.If(end.p.is_refused):
                m.d.sync += status.status.eq(Status.LENGTH)
            with m.Elif(error):
                m.d.sync += status.status.eq(Status.DATA)
            with m.Elif(nonfinite | unusable.any()):
                m.d.sync += status.status.eq(Status.NONFINITE)
            with m.Elif(total.p.bad.any()):
                m.d.sync += status.status.eq(Status.OVERFLOW)
            with m.Else():
                m.d.sync += status.status.eq(Status.OK)
        return begin
