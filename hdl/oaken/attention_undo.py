"""A FORK that fails in some of several engines is undone in the others."""

import dataclasses

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from golden.paging.format import Op, Status
from hdl.bits import let


@dataclasses.dataclass(frozen=True)
class UndoneForks:
    """The FREEs of children that some engines have and others do not.

    The engines have no other request from a FORK on until its status leaves. So each gets the FREE
    apart from the others, and what comes back is the status of that. A child that is open can be
    freed: the FREE does not fail.
    """

    is_on: Signal  # the FREEs are on their way, or the status of the FORK waits
    asked: Signal  # engines that have not taken their FREE
    due: Signal  # engines whose FREE has not ended
    child: Signal
    failed: data.View  # the status of the FORK

    @classmethod
    def of(cls, count: int, layout: data.StructLayout) -> "UndoneForks":
        """Registers for ``count`` engines; layout: of a status."""
        return cls(
            is_on=Signal(name="undo_is_on"),
            asked=Signal(count, name="undo_asked"),
            due=Signal(count, name="undo_due"),
            child=Signal(layout["sequence"].width, name="undo_child", reset_less=True),
            failed=Signal(layout, name="undo_failed", reset_less=True),
        )

    def give(self, m: Module, sinks, engines) -> None:
        """Requests of ``sinks`` to the engines, and the FREEs in between."""
        for n, (sink, engine) in enumerate(zip(sinks, engines, strict=True)):
            is_asked = let(m, f"undo_asks_{n}", self.asked[n])
            free = Signal(engine.request.p.shape(), name=f"undo_free_{n}")
            m.d.comb += [
                free.op.eq(Op.FREE),
                free.sequence.eq(self.child),
                engine.request.valid.eq(is_asked | sink.valid),
                Value.cast(engine.request.p).eq(Mux(is_asked, free.as_value(), Value.cast(sink.p))),
                sink.ready.eq(engine.request.ready & ~is_asked),
            ]
            with m.If(is_asked & engine.request.ready):
                m.d.sync += self.asked[n].eq(0)

    def join(self, m: Module, found, status) -> Value:
        """The statuses of all engines as one; returns whether that leaves.

        It is the first that is not OK, with its sequence.
        """
        are_there = let(m, "status_all", Cat(each.valid for each in found).all())
        is_ok = let(m, "status_ok", Cat(each.p.status == Status.OK for each in found))
        is_mixed = let(m, "status_mixed", (found[0].p.op == Op.FORK) & is_ok.any() & ~is_ok.all())
        layout = status.p.shape()
        whole, child = Value.cast(found[0].p), found[-1].p.sequence
        for n, each in reversed([*enumerate(found)]):
            whole = let(m, f"status_whole_{n}", Mux(is_ok[n], whole, Value.cast(each.p)))
            child = let(m, f"status_child_{n}", Mux(is_ok[n], each.p.sequence, child))
        may_leave = let(
            m, "status_may_leave", Mux(self.is_on, self.due == 0, are_there & ~is_mixed)
        )
        leaves = let(m, "status_moves", may_leave & status.ready)
        begins = let(m, "undo_begins", ~self.is_on & are_there & is_mixed)
        taken = let(m, "status_taken", begins | (~self.is_on & leaves))
        m.d.comb += [
            status.valid.eq(may_leave),
            Value.cast(status.p).eq(Mux(self.is_on, Value.cast(self.failed), whole)),
        ]
        for n, each in enumerate(found):
            m.d.comb += each.ready.eq(Mux(self.is_on, self.due[n], taken))
            with m.If(self.is_on & each.valid):
                m.d.sync += self.due[n].eq(0)
        with m.If(begins):
            m.d.sync += [
                self.is_on.eq(1),
                self.asked.eq(is_ok),
                self.due.eq(is_ok),
                self.child.eq(child),
                self.failed.eq(layout(whole)),
            ]
        with m.Elif(leaves):
            m.d.sync += self.is_on.eq(0)
        return leaves
