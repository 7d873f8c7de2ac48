"""The MMU's TRIMs and FREEs, in the background: one stream per command of the page table."""

import dataclasses
from collections.abc import Sequence

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.utils import bits_for

from golden.axi.format import Resp
from golden.config import Config, bounded, flag
from golden.paging.config import SLOTS_MAX
from golden.paging.format import Op, PageOp, Status
from golden.paging.timing import page_table_cycles
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BITS, NUMBER, index_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.paging.layouts import STATUS_LAYOUT, TOKEN_BITS
from hdl.paging.mmu_copier import COPY_LAYOUT
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue


def control_layout(forks: bool) -> data.StructLayout:
    return Payload(
        tag=(8, "comes back with the status", BITS),
        is_free=(1, "FREE; 0: TRIM, or FORK"),
        sequence=(8, "number of the sequence", index_of("sequences")),
        token=(TOKEN_BITS, "TRIM: first position that stays; FORK: tokens of the child", NUMBER),
        status=(4, "not OK: refused already", Status),
        **({"is_fork": (1, "FORK")} if forks else {}),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PagingMmuControlConfig(Config):
    """The numbers that make up a sequence, and how many there are."""

    sequences: int = bounded(4, 1, 256, "sequences open at a time")
    layers: int = bounded(32, 1, 256, "layers of the model")
    slots: int = bounded(17, 1, SLOTS_MAX, "streams of a (sequence, layer, K or V)")
    max_tokens: int = bounded(4096, 1, 1 << 20, "longest sequence, in tokens")
    waiting: int = bounded(4, 1, 16, "TRIMs and FREEs that are accepted and not yet complete")
    forks: bool = flag(False, "FORKs too")

    @property
    def vectors(self) -> int:
        """The vectors of a sequence: K and V of each layer."""
        return 2 * self.layers

    @property
    def bounds(self) -> MemoryConfig:
        """A row for each vector, and one for all of a sequence: its least."""
        return MemoryConfig(
            depth=self.sequences * (self.vectors + 1), width=bits_for(self.max_tokens)
        )


def mmu_trim_cycles(vectors: int, checks: int, streams: Sequence[int]) -> int:
    """Cycles from a TRIM to its status, where nothing else is in flight.

    ``vectors``: 2 per layer. ``checks``: the vectors whose bound the token reaches. ``streams``:
    the page table's cycles for each stream of these vectors. Without checks the token is below the
    bound of the sequence; the TRIM then takes 9 cycles.
    """
    if not checks:
        return 9
    check = page_table_cycles("TRIM_CHECK", 0) + 2
    return 10 + 2 * vectors + checks * check + sum(cycles + 2 for cycles in streams)


def mmu_fork_cycles(shared: Sequence[int], pages: int, words: int, memory: int) -> int:
    """The most cycles from a FORK to its status, where nothing else is in flight.

    ``shared``: for each stream the pages that are shared. ``pages``: those that are copied, and
    ``words`` of them. ``memory``: cycles of the memory, to the first word read or to an answer. The
    page table works while pages are copied; here one waits for the other.
    """
    looks = sum(page_table_cycles("FORK_STREAM", 0, walked=each) + 4 for each in shared)
    return 20 + looks + words + pages * (6 + memory) + memory


class PagingMmuControl(Block):
    """TRIMs and FREEs in order. Each waits until ``is_busy`` is low for its sequence.

    FREE: CLOSE, FREE_STREAM of every stream, VACATE.

    TRIM: TRIM_CHECK of every vector, then SET_START and TRIM_STREAM of every stream. Nothing is
    changed when a check fails. The answers give a bound for each vector. A TRIM to a token below
    the bound frees no page there and is within the vector's length, so it leaves out that vector.
    A TRIM below the least bound of its sequence is SET_START alone.

    A bound stays right until the FREE of its sequence, which forgets it. A later record or page
    starts with a token that was not there at the TRIM. The bound is at most the first such token.

    Cycles of a TRIM: ``mmu_trim_cycles``.

    FORK: FORK of the page table, FORK_STREAM of every stream, and FORK_END when all copies are
    answered. An answer to FORK_STREAM may name a page to be copied. Where one of them fails, the
    child goes as by a FREE, also after the answers. Its pages have no write in flight then.
    """

    def __init__(self, config: PagingMmuControlConfig):
        copies = {}
        if config.forks:
            copies = {
                "copy": Out(stream.Signature(COPY_LAYOUT), "Pages to be copied."),
                "forget": Out(1, "A FORK begins."),
                "is_copied": In(1, "All copies are made and answered."),
                "copied": In(Payload(resp=(2, "worst response", Resp)), "How they ended."),
            }
        super().__init__(
            config,
            {
                "i": In(stream.Signature(control_layout(config.forks)), "TRIMs and FREEs."),
                "next_sequence": Out(8, "Of the request to be done next.", index_of("sequences")),
                "is_busy": In(1, "Some READ or APPEND of that sequence is in flight."),
                "status": Out(stream.Signature(STATUS_LAYOUT), "How each ended."),
                "command": Out(stream.Signature(PAGE_COMMAND_LAYOUT), "To the page table."),
                "response": In(stream.Signature(PAGE_RESPONSE_LAYOUT), "Its answers."),
                **copies,
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        requests = queue(m, "requests", control_layout(self.config.forks), self.config.waiting)
        link(m, self.i, requests.i)
        work = _work(requests.o.p, _fork() if self.config.forks else None)
        bounds = _bounds(m, self.config, work.request)
        self._elaborate_command(m, work)
        with m.FSM():
            self._start(m, requests, work, bounds)
            self._walk(m, work, bounds)
            self._ask(m, work, bounds)
            self._end(m, requests, work, bounds)
            if work.fork:
                self._fork(m, work)
        return m

    def _elaborate_command(self, m: Module, work: "_Work") -> None:
        """The fields of every command to the page table, and of the status."""
        command, request = self.command, work.request
        m.d.comb += [
            self.next_sequence.eq(request.sequence),
            command.p.op.eq(work.op),
            command.p.sequence.eq(request.sequence),
            command.p.layer.eq(work.row >> 1),
            command.p.kv.eq(work.row[0]),
            command.p.slot.eq(work.slot),
            command.p.token.eq(request.token),
            self.response.ready.eq(1),
            self.status.p.tag.eq(request.tag),
            self.status.p.op.eq(Mux(request.is_free, Op.FREE, Op.TRIM)),
            self.status.p.status.eq(work.status),
            self.status.p.sequence.eq(request.sequence),
        ]
        if work.fork:
            self._elaborate_fork(m, work)

    def _start(self, m: Module, requests, work: "_Work", bounds: "_Bounds") -> None:
        """A FREE goes on with CLOSE, a TRIM with the bound of its sequence."""
        request = work.request
        with m.State("START"):
            m.d.sync += [
                work.status.eq(request.status),
                work.op.eq(PageOp.CLOSE),
                work.row.eq(0),
                work.slot.eq(0),
                bounds.least.eq(bounds.most),
            ]
            bounds.get(m, self.config.vectors)
            with m.If(requests.o.valid):
                with m.If(request.status != Status.OK):
                    m.next = "STATUS"
                with m.Elif(~self.is_busy):
                    m.next = "ASK"
                    with m.If(~request.is_free):
                        m.next = "BOUND"
                    if work.fork:
                        with m.If(request.is_fork):
                            m.d.sync += work.op.eq(PageOp.FORK)
                            m.next = "ASK"
        with m.State("BOUND"):
            m.d.sync += work.is_alone.eq(bounds.is_above)
            with m.If(bounds.is_above):
                m.d.sync += work.op.eq(PageOp.SET_START)
                m.next = "ASK"
            with m.Else():
                m.d.sync += work.op.eq(PageOp.TRIM_CHECK)
                bounds.get(m, 0)
                m.next = "ROW"

    def _walk(self, m: Module, work: "_Work", bounds: "_Bounds") -> None:
        """A TRIM looks at the bound of each vector, once to check it and once to trim it."""
        with m.State("ROW"):
            m.d.sync += bounds.lowest.eq(bounds.most)
            with m.If(bounds.is_above):
                m.d.sync += bounds.least.eq(_least(bounds.least, bounds.given))
                self._end_row(m, work, bounds)
            with m.Else():
                m.next = "ASK"

    def _end_row(self, m: Module, work: "_Work", bounds: "_Bounds") -> None:
        """Goes to the next vector of a TRIM, or from its checks to SET_START, or to its end."""
        with m.If(work.row != self.config.vectors - 1):
            m.d.sync += work.row.eq(work.row + 1)
            bounds.get(m, work.row + 1)
            m.next = "ROW"
        with m.Else():
            m.d.sync += [work.row.eq(0), work.op.eq(PageOp.SET_START)]
            m.next = "ASK"
            with m.If(work.op == PageOp.TRIM_STREAM):
                m.next = "KEEP"

    def _ask(self, m: Module, work: "_Work", bounds: "_Bounds") -> None:
        """A command, its answer, and where the request goes on."""
        command, response = self.command, self.response
        op, row, slot = work.op, work.row, work.slot
        is_last_slot = slot == self.config.slots - 1
        with m.State("ASK"):
            m.d.comb += command.valid.eq(1)
            with m.If(command.ready):
                m.next = "WAIT"
        with m.State("WAIT"):
            if work.fork:  # what is undone has its status
                with m.If(~work.fork.is_undone):
                    m.d.sync += work.status.eq(response.p.status)
            else:
                m.d.sync += work.status.eq(response.p.status)
            with m.If(response.valid):
                m.d.sync += bounds.lowest.eq(_least(bounds.lowest, response.p.skip))
                m.next = "NEXT"
                with m.If(response.p.status != Status.OK):
                    m.next = "STATUS"
                if work.fork:
                    self._answer(m, work)
        with m.State("NEXT"):
            m.next = "ASK"
            m.d.sync += slot.eq(0)
            with m.Switch(op):
                with m.Case(PageOp.CLOSE):
                    m.d.sync += op.eq(PageOp.FREE_STREAM)
                    if work.fork:  # an undone child has no bounds
                        with m.If(~work.fork.is_undone):
                            bounds.forget(m)
                    else:
                        bounds.forget(m)
                with m.Case(PageOp.FREE_STREAM):
                    with m.If(~is_last_slot):
                        m.d.sync += slot.eq(slot + 1)
                    with m.Elif(row != self.config.vectors - 1):
                        m.d.sync += row.eq(row + 1)
                    with m.Else():
                        m.d.sync += op.eq(PageOp.VACATE)
                with m.Case(PageOp.TRIM_CHECK):
                    self._end_row(m, work, bounds)
                with m.Case(PageOp.SET_START):
                    m.d.sync += op.eq(PageOp.TRIM_STREAM)
                    # The bounds of vectors that are left out count once, in the second walk.
                    m.d.sync += bounds.least.eq(bounds.most)
                    bounds.get(m, 0)
                    m.next = "ROW"
                    with m.If(work.is_alone):
                        m.next = "STATUS"
                with m.Case(PageOp.TRIM_STREAM):
                    with m.If(~is_last_slot):
                        m.d.sync += slot.eq(slot + 1)
                    with m.Else():
                        bounds.put(m, row, bounds.lowest)
                        m.d.sync += bounds.least.eq(_least(bounds.least, bounds.lowest))
                        self._end_row(m, work, bounds)
                if work.fork:
                    self._go_on(m, work)
                with m.Default():  # VACATE, FORK_END
                    m.next = "STATUS"

    def _elaborate_fork(self, m: Module, work: "_Work") -> None:
        """The fields that a FORK changes, and the page that it copies."""
        request, fork, command, status = work.request, work.fork, self.command.p, self.status.p
        m.d.comb += [
            self.copy.p.source.eq(fork.source),
            self.copy.p.target.eq(fork.target),
            self.copy.p.bytes.eq(fork.bytes),
        ]
        with m.If(fork.is_undone):
            m.d.comb += command.sequence.eq(fork.child)
        with m.If(request.is_fork):
            m.d.comb += status.op.eq(Op.FORK)
            with m.If(work.status == Status.OK):
                m.d.comb += status.sequence.eq(fork.child)

    def _answer(self, m: Module, work: "_Work") -> None:
        """Part of WAIT: what the answers to a FORK's commands say."""
        fork, found = work.fork, self.response.p
        with m.If(work.op == PageOp.FORK):
            m.d.sync += fork.child.eq(found.sequence)
        with m.If(work.op == PageOp.FORK_STREAM):
            m.d.sync += [
                fork.source.eq(found.page),
                fork.target.eq(found.page2),
                fork.bytes.eq(found.bytes),
                fork.is_last.eq(found.skip == 0),
            ]
            with m.If(found.status != Status.OK):
                m.next = "SETTLE"

    def _go_on(self, m: Module, work: "_Work") -> None:
        """Cases of NEXT: after a FORK's commands."""
        fork = work.fork
        with m.Case(PageOp.FORK):
            m.d.sync += work.op.eq(PageOp.FORK_STREAM)
        with m.Case(PageOp.FORK_STREAM):
            with m.If(fork.bytes != 0):
                m.next = "COPY"
            with m.Elif(fork.is_last):
                m.next = "SETTLE"

    def _fork(self, m: Module, work: "_Work") -> None:
        """A page to be copied; and the end, after all answers."""
        fork = work.fork
        with m.State("COPY"):
            m.d.comb += self.copy.valid.eq(1)
            with m.If(self.copy.ready):
                m.next = "ASK"
                with m.If(fork.is_last):
                    m.next = "SETTLE"
        with m.State("SETTLE"):
            has_failed = self.copied.resp[1]
            with m.If(self.is_copied):
                m.next = "ASK"
                m.d.sync += work.op.eq(PageOp.FORK_END)
                with m.If((work.status != Status.OK) | has_failed):
                    m.d.sync += [work.op.eq(PageOp.CLOSE), fork.is_undone.eq(1)]
                with m.If((work.status == Status.OK) & has_failed):
                    error = Mux(self.copied.resp[0], Status.DECODE_ERROR, Status.SLAVE_ERROR)
                    m.d.sync += work.status.eq(error)

    def _end(self, m: Module, requests, work: "_Work", bounds: "_Bounds") -> None:
        with m.State("KEEP"):
            bounds.put(m, self.config.vectors, bounds.least)
            bounds.keep(m)
            m.next = "STATUS"
        with m.State("STATUS"):
            m.d.comb += self.status.valid.eq(1)
            with m.If(self.status.ready):
                m.d.comb += requests.o.ready.eq(1)
                if work.fork:
                    m.d.comb += self.forget.eq(1)
                    m.d.sync += work.fork.is_undone.eq(0)
                m.next = "START"


def _least(a, b):
    return Mux(b < a, b, a)


@dataclasses.dataclass(frozen=True)
class _Work:
    """The request at work, and its command to the page table."""

    request: data.View
    status: Signal
    op: Signal
    row: Signal  # vector of the sequence
    slot: Signal
    is_alone: Signal  # the TRIM is SET_START alone
    fork: "_Fork | None"  # where there are forks


@dataclasses.dataclass(frozen=True)
class _Fork:
    """The FORK at work, and the page that it copies."""

    child: Signal
    is_undone: Signal
    is_last: Signal  # no stream is left
    source: Signal
    target: Signal
    bytes: Signal


def _fork() -> _Fork:
    copy = COPY_LAYOUT.members
    return _Fork(
        child=Signal(8, name="child", reset_less=True),
        is_undone=Signal(name="is_undone"),
        is_last=Signal(name="is_last", reset_less=True),
        source=Signal(copy["source"], name="copy_source", reset_less=True),
        target=Signal(copy["target"], name="copy_target", reset_less=True),
        bytes=Signal(copy["bytes"], name="copy_bytes", reset_less=True),
    )


def _work(request, fork: _Fork | None) -> _Work:
    status = Signal(4, reset_less=True)
    op = Signal(4, reset_less=True)
    row = Signal(9)
    slot = Signal(9)
    is_alone = Signal(reset_less=True)
    return _Work(request, status, op, row, slot, is_alone, fork)


@dataclasses.dataclass(frozen=True)
class _Bounds:
    """The bounds of the request's sequence, and how they are read and written."""

    ram: Memory1R1W
    base: Signal  # row of the sequence's first vector
    given: Value  # the row that was read
    is_above: Signal  # the TRIM's token is below it
    kept: Signal  # one bit for each sequence: its rows are written
    kept_one: Value  # that of the request's sequence
    lowest: Signal  # of the answers of a vector
    least: Signal  # of all vectors
    most: int  # above every token

    def get(self, m: Module, row) -> None:
        m.d.comb += [self.ram.read_en.eq(1), self.ram.read_addr.eq(self.base + row)]

    def put(self, m: Module, row, bound) -> None:
        m.d.comb += [
            self.ram.write_en.eq(1),
            self.ram.write_addr.eq(self.base + row),
            self.ram.write_data.eq(bound),
        ]

    def keep(self, m: Module) -> None:
        m.d.sync += self.kept_one.eq(1)

    def forget(self, m: Module) -> None:
        m.d.sync += self.kept_one.eq(0)


def _bounds(m: Module, config: PagingMmuControlConfig, request) -> _Bounds:
    shape = config.bounds
    ram = add(m, "bounds", Memory1R1W(shape))
    base = Signal(range(shape.depth))
    kept = Signal(config.sequences)
    index = request.sequence[: (config.sequences - 1).bit_length()]
    kept_one = kept.bit_select(index, 1) if config.sequences > 1 else kept
    is_above = Signal()
    lowest = Signal(shape.width, reset_less=True)
    least = Signal(shape.width, reset_less=True)
    m.d.comb += [
        base.eq(index * (config.vectors + 1) if config.sequences > 1 else 0),
        is_above.eq(kept_one & (request.token < ram.read_data)),
    ]
    most = (1 << shape.width) - 1
    return _Bounds(ram, base, ram.read_data, is_above, kept, kept_one, lowest, least, most)
