"""The MMU's TRIMs and FREEs, in the background: one stream per command of the page table."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.paging.config import SLOTS_MAX
from golden.paging.format import Op, PageOp, Status
from hdl.block import Block
from hdl.paging.layouts import STATUS_LAYOUT, TOKEN_BITS
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT
from hdl.stream.link import link
from hdl.stream.queue import queue

__all__ = ["CONTROL_LAYOUT", "PagingMmuControl", "PagingMmuControlConfig"]

CONTROL_LAYOUT = data.StructLayout(
    {
        "tag": 8,
        "is_free": 1,
        "sequence": 8,
        "token": TOKEN_BITS,
        "status": 4,  # not OK: refused already
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuControlConfig(Config):
    """What a sequence consists of."""

    layers: int = 32  # 1..256
    slots: int = 17  # streams of a (sequence, layer, K or V), 1..511
    waiting: int = 4  # TRIMs and FREEs that are accepted and not yet complete, 1..16

    def __post_init__(self) -> None:
        self._check_range("layers", 1, 256)
        self._check_range("slots", 1, SLOTS_MAX)
        self._check_range("waiting", 1, 16)


class PagingMmuControl(Block):
    """TRIMs and FREEs in order. Each waits until ``is_busy`` is low for its sequence.

    FREE: CLOSE, FREE_STREAM of every stream, VACATE. TRIM: TRIM_CHECK of every vector, then
    SET_START and TRIM_STREAM of every stream; nothing is changed when a check fails.

    Members
    -------
    i : In(stream)        CONTROL_LAYOUT
    sequence : Out        of the request to be done next
    is_busy : In          some READ or APPEND of ``sequence`` is on its way
    status : Out(stream)  STATUS_LAYOUT
    command : Out(stream), response : In(stream)  to the page table
    """

    meaning: ClassVar[dict[str, str]] = {
        "i": "TRIMs and FREEs.",
        "sequence": "Of the request to be done next.",
        "is_busy": "Some READ or APPEND of that sequence is in flight.",
        "status": "How each ended.",
        "command": "To the page table.",
        "response": "Its answers.",
    }

    def __init__(self, config: PagingMmuControlConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(CONTROL_LAYOUT)),
                "sequence": Out(8),
                "is_busy": In(1),
                "status": Out(stream.Signature(STATUS_LAYOUT)),
                "command": Out(stream.Signature(PAGE_COMMAND_LAYOUT)),
                "response": In(stream.Signature(PAGE_RESPONSE_LAYOUT)),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        requests = queue(m, "requests", CONTROL_LAYOUT, config.waiting)
        link(m, self.i, requests.i)
        request = requests.o.p
        status = Signal(4, reset_less=True)
        op = Signal(4, reset_less=True)
        layer, kv, slot = Signal(8), Signal(), Signal(9)
        command, response = self.command, self.response
        m.d.comb += [
            self.sequence.eq(request.sequence),
            command.p.op.eq(op),
            command.p.sequence.eq(request.sequence),
            command.p.layer.eq(layer),
            command.p.kv.eq(kv),
            command.p.slot.eq(slot),
            command.p.token.eq(request.token),
            response.ready.eq(1),
            self.status.p.tag.eq(request.tag),
            self.status.p.op.eq(Mux(request.is_free, Op.FREE, Op.TRIM)),
            self.status.p.status.eq(status),
            self.status.p.sequence.eq(request.sequence),
        ]
        # The commands that go over all streams, or over all vectors, of the sequence.
        by_slot, by_vector = Signal(), Signal()
        m.d.comb += [
            by_slot.eq((op == PageOp.FREE_STREAM) | (op == PageOp.TRIM_STREAM)),
            by_vector.eq(by_slot | (op == PageOp.TRIM_CHECK)),
        ]
        with m.FSM():
            with m.State("START"):
                m.d.sync += [
                    status.eq(request.status),
                    op.eq(Mux(request.is_free, PageOp.CLOSE, PageOp.TRIM_CHECK)),
                    layer.eq(0),
                    kv.eq(0),
                    slot.eq(0),
                ]
                with m.If(requests.o.valid):
                    with m.If(request.status != Status.OK):
                        m.next = "STATUS"
                    with m.Elif(~self.is_busy):
                        m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += command.valid.eq(1)
                with m.If(command.ready):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.sync += status.eq(response.p.status)
                with m.If(response.valid):
                    m.next = "NEXT"
                    with m.If(response.p.status != Status.OK):
                        m.next = "STATUS"
            with m.State("NEXT"):
                m.next = "ASK"
                with m.If(by_slot & (slot != config.slots - 1)):
                    m.d.sync += slot.eq(slot + 1)
                with m.Elif(by_vector & ~(kv & (layer == config.layers - 1))):
                    m.d.sync += [slot.eq(0), kv.eq(~kv), layer.eq(layer + kv)]
                with m.Else():
                    m.d.sync += [slot.eq(0), kv.eq(0), layer.eq(0)]
                    with m.Switch(op):
                        with m.Case(PageOp.CLOSE):
                            m.d.sync += op.eq(PageOp.FREE_STREAM)
                        with m.Case(PageOp.FREE_STREAM):
                            m.d.sync += op.eq(PageOp.VACATE)
                        with m.Case(PageOp.TRIM_CHECK):
                            m.d.sync += op.eq(PageOp.SET_START)
                        with m.Case(PageOp.SET_START):
                            m.d.sync += op.eq(PageOp.TRIM_STREAM)
                        with m.Default():
                            m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.d.comb += requests.o.ready.eq(1)
                    m.next = "START"
        return m
