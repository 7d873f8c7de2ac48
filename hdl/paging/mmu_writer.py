"""The MMU's APPENDs: one transaction of the page table each, through one write port."""

import dataclasses

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.axi.format import Resp
from golden.config import Config, flag
from golden.paging.config import RecordShape, VectorRecords
from golden.paging.format import Kv, Op, PageOp, Status
from hdl.axi.signature import Axi4Write, axi4_write, pass_channels
from hdl.axi.write_port import AxiWritePort, AxiWritePortConfig
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BITS, NUMBER, index_of
from hdl.paging.layouts import BYTES_BITS, STATUS_LAYOUT, TOKEN_BITS
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_WRITES_AHEAD = 16  # bursts: the answers to an APPEND's records are waited for together
_COPIES_AHEAD = 8  # pages: the same of a FORK's

APPEND_LAYOUT = Payload(
    tag=(8, "comes back with the status", BITS),
    sequence=(8, "number of the sequence", index_of("sequences")),
    layer=(8, "layer of the model", index_of("layers")),
    kv=(1, "0: K, 1: V", Kv),
    token=(TOKEN_BITS, "position", NUMBER),
    status=(4, "not OK: refused already", Status),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuWriterConfig(Config):
    """Widths and queues of the MMU's writing side; fields as in PagingMmuConfig."""

    kv: RecordShape = dataclasses.field(default_factory=VectorRecords)
    data_bits: int = 256
    address_bits: int = 40
    page_bytes: int = 4096
    burst_beats: int = 64
    appends: int = 4
    forks: bool = flag(False, "pages are copied")

    @property
    def length_bits(self) -> int:
        """Bits of the bytes of a write: a record, or what a page has."""
        return max(BYTES_BITS, self.page_bytes.bit_length() if self.forks else 0)

    @property
    def port(self) -> AxiWritePortConfig:
        return AxiWritePortConfig(
            address_bits=self.address_bits,
            data_bits=self.data_bits,
            burst_beats=self.burst_beats,
            outstanding=_WRITES_AHEAD,
            length_bits=self.length_bits,
        )

    @property
    def write_signature(self) -> Axi4Write:
        return axi4_write(self.address_bits, self.data_bits)


class PagingMmuWriter(Block):
    """APPENDs in order, one at a time: BEGIN, an EXTEND and a write per record, COMMIT, status.

    Every APPEND, good or refused, takes the records of all slots from ``record``. For each
    that has bytes, it takes the words up to ``last`` from ``w``. A record that the page table does
    not place is dropped, with all after it. COMMIT and ABORT follow the answers to all writes:
    pages that go back have no write in flight. The words of one record move while the
    next are placed.

    With ``forks`` it also copies pages, between two APPENDs: a command of ``copy`` and its words of
    ``copy_w``. While APPENDs wait, they and copies take turns. ``is_copying`` falls when all writes
    of copies are answered; ``copied`` is then the worst answer since the copying began.
    """

    def __init__(self, config: PagingMmuWriterConfig):
        copies = {}
        if config.forks:
            copies = {
                "copy": In(stream.Signature(config.port.command_layout), "Where a page's copy is."),
                "copy_w": In(stream.Signature(config.port.i_layout), "Its bytes."),
                "is_copying": Out(1, "Some write of a copy is not answered."),
                "copied": Out(Payload(resp=(2, "worst response of the copies", Resp)), "Answers."),
            }
        super().__init__(
            config,
            {
                "i": In(stream.Signature(APPEND_LAYOUT), "APPENDs."),
                "status": Out(stream.Signature(STATUS_LAYOUT), "How each ended."),
                "base": In(config.address_bits, "Byte address of page 0.", index_of("bytes")),
                "record": In(
                    stream.Signature(Payload(bytes=(BYTES_BITS, "bytes of the record", NUMBER))),
                    "Sizes of the records, in order of slots.",
                ),
                "w": In(stream.Signature(config.port.i_layout), "The records' bytes."),
                "command": Out(stream.Signature(PAGE_COMMAND_LAYOUT), "To the page table."),
                "response": In(stream.Signature(PAGE_RESPONSE_LAYOUT), "Its answers."),
                "axi": Out(config.write_signature, "AXI4 write manager."),
                **copies,
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        port = add(m, "port", AxiWritePort(self.config.port))
        pass_channels(m, port.axi, self.axi)
        # For each record that has words: is it written, or dropped?
        verdicts = queue(m, "verdicts", 1, 4)
        self._elaborate_words(m, port, verdicts)
        requests = queue(m, "requests", APPEND_LAYOUT, self.config.appends)
        link(m, self.i, requests.i)
        append = _append(requests.o.p)
        writes = self._elaborate_answers(m, port)
        self._elaborate_command(m, append)
        is_rest = Signal()  # of a record that straddles: this is its second write
        self._elaborate_write(m, port, append, is_rest)
        m.d.comb += verdicts.i.p.eq(append.status == Status.OK)
        with m.FSM():
            self._begin(m, requests, append, writes)
            self._place(m, append)
            self._write(m, port, verdicts, append, is_rest)
            self._end(m, requests, verdicts, append, writes)
            if self.config.forks:
                self._copy(m, port, requests, writes)
        return m

    def _elaborate_words(self, m: Module, port, verdicts) -> None:
        is_written = verdicts.o.p
        m.d.comb += [
            port.i.valid.eq(self.w.valid & verdicts.o.valid & is_written),
            port.i.payload.eq(self.w.payload),
            self.w.ready.eq(verdicts.o.valid & (~is_written | port.i.ready)),
            verdicts.o.ready.eq(self.w.valid & self.w.ready & self.w.p.last),
        ]

    def _elaborate_answers(self, m: Module, port) -> "_Writes":
        most = 2 * self.config.kv.slots
        owed = Signal(range((max(most, _COPIES_AHEAD) if self.config.forks else most) + 1))
        worst = Signal(2)
        written = Signal()
        answered = Signal()
        m.d.comb += [
            written.eq(port.command.valid & port.command.ready),
            port.done.ready.eq(1),
            answered.eq(port.done.valid),
        ]
        m.d.sync += owed.eq(owed + written - answered)
        with m.If(answered):
            m.d.sync += worst.eq(worst | port.done.p.resp)  # 2 | 3 is 3
        return _Writes(owed, worst, Signal(name="is_turn") if self.config.forks else None)

    def _elaborate_command(self, m: Module, append: "_Append") -> None:
        """The fields of every command to the page table, and of the status."""
        command, request = self.command, append.request
        m.d.comb += [
            self.response.ready.eq(1),
            command.p.op.eq(append.op),
            command.p.sequence.eq(request.sequence),
            command.p.layer.eq(request.layer),
            command.p.kv.eq(request.kv),
            command.p.slot.eq(append.slot),
            command.p.token.eq(request.token),
            command.p.bytes.eq(append.size),
            self.status.p.tag.eq(request.tag),
            self.status.p.op.eq(Op.APPEND),
            self.status.p.status.eq(append.status),
            self.status.p.sequence.eq(request.sequence),
        ]

    def _elaborate_write(self, m: Module, port, append: "_Append", rest) -> None:
        """Sends a record to where it goes: one page, or two."""
        answer, size, page_bytes = append.answer, append.size, self.config.page_bytes
        write = port.command.p
        m.d.comb += [
            append.straddles.eq(answer.bytes != size),
            write.address.eq(
                self.base
                + Mux(rest, answer.page2, answer.page) * page_bytes
                + Mux(rest, 0, answer.offset)
            ),
            write.bytes.eq(Mux(rest, size - answer.bytes, answer.bytes)),
            write.more.eq(append.straddles & ~rest),
        ]

    def _advance(self, m: Module, append: "_Append") -> None:
        """Goes to the next record."""
        m.d.sync += append.slot.eq(append.slot + 1)
        m.next = "RECORD"
        with m.If(append.slot == self.config.kv.slots - 1):
            m.next = "SETTLE"

    def _begin(self, m: Module, requests, append: "_Append", writes: "_Writes") -> None:
        command, response, status = self.command, self.response, append.status
        with m.State("START"):
            m.d.sync += [
                status.eq(append.request.status),
                append.slot.eq(0),
                writes.worst.eq(0),
                append.has_begun.eq(0),
            ]
            with m.If(requests.o.valid):
                m.next = "BEGIN"
                with m.If(append.request.status != Status.OK):
                    m.next = "RECORD"
            if self.config.forks:
                with m.If(requests.o.valid):
                    m.d.sync += writes.is_turn.eq(0)
                with m.If(self.copy.valid & ~(requests.o.valid & writes.is_turn)):
                    m.next = "COPY"
        with m.State("BEGIN"):
            m.d.comb += [append.op.eq(PageOp.BEGIN), command.valid.eq(1)]
            with m.If(command.ready):
                m.next = "BEGUN"
        with m.State("BEGUN"):
            m.d.sync += [
                status.eq(response.p.status),
                append.has_begun.eq(response.p.status == Status.OK),
            ]
            with m.If(response.valid):
                m.next = "RECORD"

    def _place(self, m: Module, append: "_Append") -> None:
        """A record's size, and its place from the page table."""
        command, response, status = self.command, self.response, append.status
        with m.State("RECORD"):
            m.d.comb += self.record.ready.eq(1)
            m.d.sync += append.size.eq(self.record.p.bytes)
            with m.If(self.record.valid):
                m.next = "EXTEND"
                with m.If(status != Status.OK):
                    m.next = "DROP"
        with m.State("EXTEND"):
            m.d.comb += [append.op.eq(PageOp.EXTEND), command.valid.eq(1)]
            with m.If(command.ready):
                m.next = "EXTENDED"
        with m.State("EXTENDED"):
            m.d.sync += append.answer.eq(response.payload)
            with m.If(response.valid):
                with m.Switch(response.p.status):
                    with m.Case(Status.OK):
                        m.next = "WRITE"
                    with m.Case(Status.BAD_REQUEST):  # no size of such a record
                        m.d.sync += status.eq(Status.VECTOR_LENGTH)
                        m.next = "DROP"
                    with m.Default():
                        m.d.sync += status.eq(response.p.status)
                        m.next = "DROP"

    def _write(self, m: Module, port, verdicts, append: "_Append", is_rest) -> None:
        """The record's one or two writes, or none."""
        with m.State("WRITE"):
            # Both at once: the write port may take a command only when its words come.
            m.d.comb += [
                port.command.valid.eq(verdicts.i.ready),
                verdicts.i.valid.eq(port.command.ready),
            ]
            with m.If(port.command.ready & verdicts.i.ready):
                self._advance(m, append)
                with m.If(append.straddles):
                    m.next = "WRITE_REST"
        with m.State("WRITE_REST"):
            m.d.comb += [port.command.valid.eq(1), is_rest.eq(1)]
            with m.If(port.command.ready):
                m.next = "RECORD"
                with m.If(append.slot == self.config.kv.slots):
                    m.next = "SETTLE"
        with m.State("DROP"):
            # A record without bytes has no words.
            m.d.comb += verdicts.i.valid.eq(append.size != 0)
            with m.If(verdicts.i.ready | (append.size == 0)):
                self._advance(m, append)

    def _end(self, m: Module, requests, verdicts, append: "_Append", writes: "_Writes") -> None:
        """COMMIT or ABORT when every write is answered; then the status."""
        command, status = self.command, append.status
        owed, worst = writes.owed, writes.worst
        with m.State("SETTLE"):
            # The verdicts too: a status comes when the APPEND's words are gone.
            with m.If((owed == 0) & ~verdicts.o.valid):
                with m.If((status == Status.OK) & worst[1]):
                    m.d.sync += status.eq(Mux(worst[0], Status.DECODE_ERROR, Status.SLAVE_ERROR))
                m.next = "CLOSE"
                with m.If(~append.has_begun):
                    m.next = "STATUS"
        with m.State("CLOSE"):
            m.d.comb += [
                append.op.eq(Mux(status == Status.OK, PageOp.COMMIT, PageOp.ABORT)),
                command.valid.eq(1),
            ]
            with m.If(command.ready):
                m.next = "CLOSED"
        with m.State("CLOSED"):
            with m.If(self.response.valid):
                m.next = "STATUS"
        with m.State("STATUS"):
            m.d.comb += self.status.valid.eq(1)
            with m.If(self.status.ready):
                m.d.comb += requests.o.ready.eq(1)
                m.next = "START"

    def _copy(self, m: Module, port, requests, writes: "_Writes") -> None:
        """Copies of pages, until an APPEND waits or none is left."""
        owed = writes.owed
        in_copy = Signal()
        in_wait = Signal()
        m.d.comb += [self.is_copying.eq(in_copy | in_wait), self.copied.resp.eq(writes.worst)]
        with m.State("COPY"):
            m.d.comb += [
                in_copy.eq(1),
                port.command.valid.eq(self.copy.valid),
                port.command.payload.eq(self.copy.payload),
                self.copy.ready.eq(port.command.ready),
            ]
            with m.If(self.copy.valid & self.copy.ready):
                m.next = "COPY_WORDS"
        with m.State("COPY_WORDS"):
            m.d.comb += [
                in_copy.eq(1),
                port.i.valid.eq(self.copy_w.valid),
                port.i.payload.eq(self.copy_w.payload),
                self.copy_w.ready.eq(port.i.ready),
            ]
            with m.If(self.copy_w.valid & self.copy_w.ready & self.copy_w.p.last):
                m.next = "COPIED"
        with m.State("COPIED"):
            m.d.comb += in_wait.eq(1)
            m.d.sync += writes.is_turn.eq(1)
            with m.If(self.copy.valid & ~requests.o.valid & (owed != _COPIES_AHEAD)):
                m.next = "COPY"
            with m.Elif(owed == 0):
                m.next = "START"


@dataclasses.dataclass(frozen=True)
class _Writes:
    """Writes of the APPEND."""

    owed: Signal  # not answered
    worst: Signal  # of their answers
    is_turn: Signal | None  # a copy was the last; where there are forks


@dataclasses.dataclass(frozen=True)
class _Append:
    """The APPEND and its record at work."""

    request: data.View
    status: Signal
    slot: Signal  # of the record
    size: Signal  # bytes of the record
    answer: Signal  # of the page table to EXTEND
    straddles: Signal  # the record goes to two pages
    has_begun: Signal
    op: Signal  # of the command to the page table


def _append(request) -> _Append:
    status = Signal(4, reset_less=True)
    slot = Signal(9)
    size = Signal(BYTES_BITS, reset_less=True)
    answer = Signal(PAGE_RESPONSE_LAYOUT, reset_less=True)
    straddles = Signal()
    has_begun = Signal()
    op = Signal(4)
    return _Append(request, status, slot, size, answer, straddles, has_begun, op)
