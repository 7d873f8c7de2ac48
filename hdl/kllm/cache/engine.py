"""The engine that appends to the cache and attends to it."""

from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.attention.format import NO_SINK
from golden.fp16.format import FP16
from golden.kllm.config import VectorShape
from golden.kllm.format import NO_OP
from golden.kllm.isa import CACHE_STATUS, ROW_ELEMENTS, CommandStatus, Opcode
from golden.oaken.config import CacheConfig, KvShape
from golden.paging.format import Op, Status
from golden.timing import Timing
from hdl.bits import after, outside
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import index_of, mask_of
from hdl.kllm.batch import entry_layout
from hdl.kllm.cache.config import KllmCacheConfig
from hdl.kllm.engine import (
    ROW,
    command_stream,
    operand,
    row_read,
    row_write_layout,
    status_stream,
)
from hdl.oaken.attention_config import attend_layout_of, attended_layout
from hdl.oaken.layouts import KV_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT
from hdl.ports import In, Out
from hdl.stream.arbiter import arbiter
from hdl.stream.link import link
from hdl.stream.widen import StreamWiden, StreamWidenConfig
from hdl.walk import Walk

_STATUS_BITS = len(CommandStatus)
_ROW_BITS = 16
AHEAD = 15  # rows that the memory has not answered, at most: all ones

_SMALL = CacheConfig(
    kv=KvShape(heads=2, head_dim=32, block=32, order="token"), sequences=3, layers=2, pages=64,
    page_bytes=256, max_tokens=40,
)  # fmt: skip


class KllmCache(Block):
    """APPEND and ATTEND of golden.kllm.isa, with the pages and the attention of another block.

    Token t of a command belongs to place ``place + t`` of the batch. A place without a token takes
    nothing, and ATTEND writes zeros for it.

    APPEND gives a request and a vector for each token, and waits for their statuses. ATTEND gives
    an ``attend`` and its queries, and writes ``o``. All attends of a command are one run. Beats of
    ``q`` and ``o`` are rows. Their order is: KV head, beat of a head, query, row of the beat. That
    is the order of memory where a head has one beat. With ``sinks`` of the cache the beats of each
    of its ``jobs`` begin with ``job_sinks`` rows of sinks. Those of an ATTEND without sinks are
    -infinity, in the place of rows that are read and dropped.

    The status of a command has the bits of all its tokens. RANGE: no token, a place of ``places``
    and above, no such layer, rows beyond the memory, or an ATTEND of other than ``heads`` query
    heads. So are sinks beyond the memory, and a window, a cap or sinks where the cache has no such.
    Nothing is read then. Words of ``o`` that are ``void`` are not written.

    ``host_request`` passes requests of the host. APPEND and READ are not the host's: they become
    an op that the cache refuses. All statuses but those of APPENDs go to ``host_status``. A host
    that takes none stops the engine. Host and engine take turns.

    Rows are read and written at one per cycle, with at most ``AHEAD`` reads without an answer.
    Each place without a token takes a cycle, so a status may come later where the last have none.
    ``q``, ``kv`` and ``write`` depend combinationally on the streams that bring their words.
    Golden: golden.kllm.machine.Machine.
    """

    tier = Tier.PART
    golden = "golden.kllm.machine:Machine"
    default = KllmCacheConfig()
    configs: ClassVar = {
        "default": KllmCacheConfig(),
        "small": KllmCacheConfig(
            vectors=VectorShape(rows=256), places=3, cache=_SMALL, queries=2, lanes=16
        ),
        "smollm2": KllmCacheConfig(
            vectors=VectorShape(rows=2048),
            cache=CacheConfig(
                kv=KvShape(heads=3, head_dim=64, order="token"), layers=30, pages=65536,
                max_tokens=512,
            ),
            queries=3,
            lanes=64,
        ),
    }  # fmt: skip

    def __init__(self, config: KllmCacheConfig):
        super().__init__(
            config,
            {
                "command": command_stream("APPENDs and ATTENDs."),
                "status": status_stream(),
                **row_read("row", "rows of vectors and of queries"),
                "write": Out(stream.Signature(row_write_layout), "Rows of the destination."),
                "index": Out(8, "Place of the batch that is wanted.", index_of("places")),
                "entry": In(entry_layout, "That place."),
                "present": In(config.places, "Places that have a token.", mask_of("places")),
                "host_request": In(
                    stream.Signature(KV_REQUEST_LAYOUT), "OPEN, TRIM, FREE, THRESHOLDS, FORK."
                ),
                "host_status": Out(stream.Signature(STATUS_LAYOUT), "How they ended."),
                "request": Out(
                    stream.Signature(KV_REQUEST_LAYOUT), "Requests to the cache: all of them."
                ),
                "kv": Out(stream.Signature(config.kv_layout), "A vector for each APPEND."),
                "ended": In(stream.Signature(STATUS_LAYOUT), "How requests ended."),
                "attend": Out(
                    stream.Signature(attend_layout_of(config.cache)), "Attentions wanted, in runs."
                ),
                "q": Out(stream.Signature(config.q_layout), "Queries of each attend."),
                "o": In(stream.Signature(config.o_layout), "Outputs of each attend."),
                "attended": In(stream.Signature(attended_layout), "How an attend ended."),
            },
        )

    # The memory's latency is not included.
    timing = Timing(
        latency=2,
        start="command",
        end="row_request",
        unit="row",
        delays=(
            ("from a command out of range to its status", 2),
            ("from the last word of ended or attended to status", 2),
        ),
    )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        job = _Job(m, self)
        requests = _Tokens(m, "requests", job)
        reads = _Tokens(m, "reads", job)
        writes = _Tokens(m, "writes", job, ~job.is_append)
        reads.follow(m, job.src, job.stride)
        writes.follow(m, job.dst, job.dst_stride)
        faults = Signal(_STATUS_BITS)
        due = Signal(range(config.places + 1))  # tokens whose status is to come
        begins = Signal()
        asked = self._ask(m, job, requests)
        unanswered = self._read(m, job, reads)
        self._write(m, job, writes)
        ends = self._statuses(m, faults)
        m.d.comb += self.status.p.status.eq(faults)
        for each in (requests, reads, writes):
            m.d.comb += each.start.eq(begins)
        m.d.sync += due.eq(due + asked - ends)
        is_done = Signal()
        m.d.comb += is_done.eq(
            requests.done & reads.done & (writes.done | job.is_append)
            & (due == 0) & ~unanswered
        )  # fmt: skip
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += faults.eq(0)
                with m.If(self.command.valid):
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.next = "STATUS"
                with m.If(job.unknown):
                    m.d.sync += faults.eq(int(CommandStatus.MALFORMED))
                with m.Elif(job.outside):
                    m.d.sync += faults.eq(int(CommandStatus.RANGE))
                with m.Else():
                    m.d.comb += begins.eq(1)
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += job.runs.eq(1)
                with m.If(is_done):
                    m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += [self.status.valid.eq(1), self.command.ready.eq(self.status.ready)]
                with m.If(self.status.ready):
                    m.next = "IDLE"
        return m

    def _ask(self, m: Module, job: "_Job", tokens: "_Tokens") -> Value:
        """A request, or an attend, for each token. 1 in the cycle in which one is taken."""
        config, entry = self.config, self.entry
        merged = arbiter(m, "merged", KV_REQUEST_LAYOUT, 2)
        own, host = merged.i
        is_host_op = Signal()
        later = Signal()  # a further token of the command
        following = range(1, config.places)
        m.d.comb += [
            self.index.eq(job.place + tokens.at),
            own.valid.eq(tokens.here & job.is_append),
            own.p.op.eq(Op.APPEND),
            own.p.tag.eq(tokens.at),
            own.p.sequence.eq(entry.sequence),
            own.p.layer.eq(job.layer),
            own.p.kv.eq(job.kv),
            own.p.token.eq(entry.position),
            later.eq(
                Cat(Const(0, 1), *(job.present[n] & (tokens.at < n) for n in following)).any()
            ),
            self.attend.valid.eq(tokens.here & ~job.is_append),
            self.attend.p.tag.eq(tokens.at),
            self.attend.p.sequence.eq(entry.sequence),
            self.attend.p.layer.eq(job.layer),
            self.attend.p.token.eq(entry.position + 1),
            self.attend.p.last.eq(~later),
            *(
                self.attend.p[name].eq(job.rules[name])
                for name in ("window", "cap")
                if name in self.attend.p.shape().members
            ),
            is_host_op.eq(
                (self.host_request.p.op != Op.APPEND) & (self.host_request.p.op != Op.READ)
            ),
        ]
        link(m, self.host_request, host)
        with m.If(~is_host_op):
            m.d.comb += host.p.op.eq(NO_OP)
        link(m, merged.o, self.request)
        asked = Signal()
        m.d.comb += [
            asked.eq((own.valid & own.ready) | (self.attend.valid & self.attend.ready)),
            tokens.step.eq(asked | ~tokens.here),
        ]
        return asked

    def _read(self, m: Module, job: "_Job", tokens: "_Tokens") -> Value:
        """Rows of each token to ``kv`` or ``q``. 1 while some are to come."""
        config = self.config
        rows = _Rows(m, "read_rows", config, tokens, job.is_append)
        due = Signal(range(AHEAD + 1))
        asked = Signal()
        answered = Signal()
        row, moves, word = tokens.base + rows.offset, asked, self.row_row.p.word
        if config.job_sinks:
            sinks = _Sinks(m, config, tokens, job, asked, answered)
            row, moves = Mux(sinks.is_asked, sinks.row, row), asked & ~sinks.is_due
            word = sinks.word(word)
        m.d.comb += [
            self.row_request.valid.eq(tokens.here & ~due.all()),
            self.row_request.p.row.eq(row),
            asked.eq(self.row_request.valid & self.row_request.ready),
            answered.eq(self.row_row.valid & self.row_row.ready),
            rows.step.eq(moves),
            tokens.step.eq((moves & rows.is_last) | ~tokens.here),
        ]
        m.d.sync += due.eq(due + asked - answered)
        shape = StreamWidenConfig(width=ROW.size, ratio=config.beat_rows)
        beats = add(m, "beats", StreamWiden(shape))
        filled = Signal(range(max(2, config.cached_rows)))  # rows of the vector
        m.d.comb += [
            beats.i.valid.eq(self.row_row.valid & job.is_append),
            beats.i.p.data.eq(self.row_row.p.word),
            beats.i.p.last.eq(filled == config.cached_rows - 1),
            self.q.valid.eq(self.row_row.valid & ~job.is_append),
            self.q.p.word.eq(word),
            self.row_row.ready.eq(Mux(job.is_append, beats.i.ready, self.q.ready)),
            self.kv.valid.eq(beats.o.valid),
            self.kv.p.x.eq(beats.o.p.data),
            self.kv.p.last.eq(beats.o.p.last),
            beats.o.ready.eq(self.kv.ready),
        ]
        with m.If(answered & job.is_append):
            m.d.sync += filled.eq(Mux(beats.i.p.last, 0, filled + 1))
        return (due != 0) | beats.o.valid

    def _write(self, m: Module, job: "_Job", tokens: "_Tokens") -> None:
        """Rows of ``o``, or of zeros, to the destination."""
        rows = _Rows(m, "write_rows", self.config, tokens, Const(0, 1))
        void = Signal()
        moves = Signal()
        m.d.comb += [
            void.eq(tokens.here & self.o.p.void),
            self.write.valid.eq(tokens.valid & ~void & (self.o.valid | ~tokens.here)),
            self.write.p.row.eq(tokens.base + rows.offset),
            self.write.p.word.eq(Mux(tokens.here, self.o.p.word.as_value(), 0)),
            self.o.ready.eq(tokens.here & (self.write.ready | void)),
            moves.eq((self.o.valid & self.o.ready) | (self.write.valid & self.write.ready)),
            rows.step.eq(moves),
            tokens.step.eq(moves & rows.is_last),
        ]

    def _statuses(self, m: Module, faults) -> Value:
        """Statuses of tokens to ``faults``, others to the host. 1: a token's status is taken."""
        own = Signal()
        taken = Signal()
        found = Signal(_STATUS_BITS)
        m.d.comb += [
            own.eq(self.ended.p.op == Op.APPEND),
            self.host_status.valid.eq(self.ended.valid & ~own),
            self.host_status.p.eq(self.ended.p),
            self.ended.ready.eq(own | self.host_status.ready),
            self.attended.ready.eq(1),
            taken.eq(self.attended.valid | (self.ended.valid & own)),
        ]
        with m.If(self.attended.valid):
            m.d.comb += found.eq(_named(m, "attended_status", self.attended.p.status))
            with m.If((self.attended.p.status == Status.OK) & (self.attended.p.result != 0)):
                m.d.comb += found.eq(int(CommandStatus.NONFINITE))
        with m.Else():
            m.d.comb += found.eq(_named(m, "append_status", self.ended.p.status))
        with m.If(taken):
            m.d.sync += faults.eq(faults | found)
        return taken


class _Job:
    """The command at hand: its operands, and what is wrong with them."""

    def __init__(self, m: Module, block: KllmCache) -> None:
        command, config = block.command.p, block.config
        self.is_append = Signal(name="is_append")
        self.unknown = Signal(name="is_unknown")
        self.outside = Signal(name="is_outside")
        self.runs = Signal(name="runs")
        self.tokens = Signal(8, name="tokens")
        self.layer = Signal(8, name="layer")
        self.place = Signal(8, name="place")  # of the first token
        self.present = Signal(config.places, name="tokens_present")
        attend = {
            name: operand(command, Opcode.ATTEND, name)
            for name in ("src", "stride", "dst", "dst_stride", "heads")
        }
        self.src, self.stride = attend["src"], attend["stride"]
        self.dst, self.dst_stride = attend["dst"], attend["dst_stride"]
        self.rules = {
            name: operand(command, Opcode.ATTEND, name)
            for name in ("window", "cap", "has_sinks", "sinks")
        }
        has_none = self._lacks(config)
        self.kv = operand(command, Opcode.APPEND, "kv")
        last_token = Signal(8)
        # rows from the first token to the last one
        span = Signal(24, reset_less=True)
        dst_span = Signal(24, reset_less=True)
        rows = Mux(self.is_append, config.cached_rows, config.attended_rows)
        end_of_dst = self.dst + dst_span + config.attended_rows
        m.d.comb += [
            self.is_append.eq(command.opcode == Opcode.APPEND),
            self.unknown.eq(~self.is_append & (command.opcode != Opcode.ATTEND)),
            *(
                getattr(self, name).eq(
                    Mux(
                        self.is_append,
                        operand(command, Opcode.APPEND, name),
                        operand(command, Opcode.ATTEND, name),
                    )
                )
                for name in ("tokens", "layer", "place")
            ),
            last_token.eq(self.tokens - 1),
            self.present.eq(
                (block.present >> self.place) & Cat(self.tokens > n for n in range(config.places))
            ),
            self.outside.eq(
                (self.tokens == 0)
                | (self.place + self.tokens > config.places)
                | outside(self.layer, range(config.cache.layers))
                | (self.src + span + rows > config.vectors.rows)
                | (
                    ~self.is_append
                    & (
                        (end_of_dst > config.vectors.rows)
                        | (attend["heads"] != config.heads)
                        | has_none
                    )
                )
            ),
        ]
        m.d.sync += [
            span.eq(self.stride * last_token),
            dst_span.eq(self.dst_stride * last_token),
        ]

    def _lacks(self, config: KllmCacheConfig) -> Value:
        """An ATTEND wants what the cache does not have, or sinks beyond the memory."""
        cache, rules = config.cache, self.rules
        lacks = Const(0, 1)
        for name, is_there in (
            ("window", cache.windows), ("cap", cache.caps), ("has_sinks", cache.sinks),
        ):  # fmt: skip
            if not is_there:
                lacks = lacks | (rules[name] != 0)
        if cache.sinks:
            end = rules["sinks"] + config.jobs * config.job_sinks
            lacks = lacks | ((rules["has_sinks"] != 0) & (end > config.vectors.rows))
        return lacks


class _Tokens:
    """Visits the tokens of the command in order.

    Set by the parent: ``start`` begins, ``step`` goes on to the next token, while the command runs
    and ``is_used``.
    """

    def __init__(self, m: Module, name: str, job: _Job, is_used: Value | int = 1) -> None:
        self.start = Signal(name=f"{name}_start")
        self.step = Signal(name=f"{name}_step")
        self.moves = Signal(name=f"{name}_moves")
        self.at = Signal(range(len(job.present) + 1), name=f"{name}_at")
        self.done = Signal(name=f"{name}_done")
        self.valid = Signal(name=f"{name}_valid")
        self.here = Signal(name=f"{name}_here")  # the token's place has one
        self.base = Signal(_ROW_BITS, name=f"{name}_base", reset_less=True)
        m.d.comb += [
            self.done.eq(self.at == job.tokens),
            self.valid.eq(job.runs & is_used & ~self.done),
            self.here.eq(self.valid & job.present.bit_select(self.at, 1)),
            self.moves.eq(self.valid & self.step),
        ]
        with m.If(self.start):
            m.d.sync += self.at.eq(0)
        with m.Elif(self.moves):
            m.d.sync += self.at.eq(self.at + 1)

    def follow(self, m: Module, first: Value, stride: Value) -> None:
        """Keeps ``base``, the first row of the token."""
        with m.If(self.start):
            m.d.sync += self.base.eq(first)
        with m.Elif(self.moves):
            m.d.sync += self.base.eq(self.base + stride)


class _Rows:
    """Visits the rows of a token: by KV head, beat of a head, query, row of the beat.

    ``is_append``: the token has one vector of every KV head, in the order of memory.
    """

    def __init__(
        self, m: Module, name: str, config: KllmCacheConfig, tokens: _Tokens, is_append: Value
    ) -> None:
        queries, head_rows = config.queries, config.head_rows
        walk = Walk(
            m, name, heads=config.cache.kv.heads, steps=config.steps,
            queries=Mux(is_append, 1, queries), rows=config.beat_rows,
        )  # fmt: skip
        self.step, self.is_last = walk.step, walk.is_last
        self.offset = Signal(_ROW_BITS, name=f"{name}_offset", reset_less=True)
        further = Signal(_ROW_BITS, name=f"{name}_further")
        m.d.comb += [walk.start.eq(tokens.start | tokens.moves), further.eq(1)]
        with m.If(walk.last.rows & ~is_append):
            with m.If(~walk.last.queries):  # the same beat of the next query
                m.d.comb += further.eq(head_rows - config.beat_rows + 1)
            with m.Elif(~walk.last.steps):  # the next beat of the first query
                m.d.comb += further.eq(1 - (queries - 1) * head_rows)
        with m.If(walk.start):
            m.d.sync += self.offset.eq(0)
        with m.Elif(walk.step):
            m.d.sync += self.offset.eq(self.offset + further)


class _Sinks:
    """Visits the sinks of a token: ``job_sinks`` rows before the queries of each job.

    is_due : the next row that is requested is one of sinks; is_asked: and these count. ``word``
    gives what an answer is to ``q``.
    """

    def __init__(
        self, m: Module, config: KllmCacheConfig, tokens: _Tokens, job: _Job, asked, answered
    ) -> None:
        self.has_sinks = job.rules["has_sinks"]
        self.row = Signal(_ROW_BITS, name="sinks_row", reset_less=True)
        self.is_due = Signal(name="sinks_are_due")
        self.is_asked = Signal(name="sinks_are_asked")
        self.is_answered = Signal(name="sinks_are_answered")
        rows = config.job_sinks + config.attended_rows // config.jobs  # of a job
        due_at = Signal(range(rows), name="sinks_due_at")
        answer_at = Signal(range(rows), name="sinks_answer_at")
        m.d.comb += [
            self.is_due.eq(~job.is_append & (due_at < config.job_sinks)),
            self.is_asked.eq(self.is_due & self.has_sinks),
            self.is_answered.eq(answer_at < config.job_sinks),
        ]
        with m.If(asked & ~job.is_append):
            m.d.sync += due_at.eq(after(due_at, rows))
        with m.If(answered & ~job.is_append):
            m.d.sync += answer_at.eq(after(answer_at, rows))
        with m.If(tokens.start | tokens.moves):
            m.d.sync += self.row.eq(job.rules["sinks"])
        with m.Elif(asked & self.is_due):
            m.d.sync += self.row.eq(self.row + 1)

    def word(self, row: Value) -> Value:
        """The words of an answer; -infinity in the place of sinks that do not count."""
        none = Const(NO_SINK, FP16.bits).replicate(ROW_ELEMENTS)
        return Mux(self.is_answered & ~self.has_sinks, none, row)


def _named(m: Module, name: str, status: Value) -> Signal:
    """The bits of a command's status that a status of the cache means."""
    found = Signal(_STATUS_BITS, name=name)
    with m.Switch(status):
        for each, bits in CACHE_STATUS.items():
            with m.Case(int(each)):
                m.d.comb += found.eq(int(bits))
        with m.Default():  # of no such request
            m.d.comb += found.eq(int(CommandStatus.RANGE))
    return found
