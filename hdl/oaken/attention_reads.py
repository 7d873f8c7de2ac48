"""READs of attends, and the jobs that follow from them: part of oaken_attention."""

from typing import NamedTuple

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.paging.format import Op, Status
from hdl.attention.cap import CAP_BITS
from hdl.attention.stream_config import ROWS_BITS
from hdl.bits import after, let
from hdl.block import Block
from hdl.oaken.attention_config import (
    JOBS,
    STATUS_BITS,
    OakenAttentionConfig,
    is_refusal,
)
from hdl.paging.layouts import REQUEST_LAYOUT, TOKEN_BITS
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

# A READ whose outcome is not known. is_own: V follows its own K; last: the job ends a run.
_ASKED = Payload(is_value=1, is_own=1, last=1)
_RULES = {"window": TOKEN_BITS, "cap": CAP_BITS}  # of K, where the attend has them
_JOB = Payload(sequence=8, layer=8, head=8, token=TOKEN_BITS)
_NUMBER_BITS = 8  # of a READ, its tag


class OakenAttentionReads(Block):
    """READs in the order K0 K1 V0 K2 V1 ... V of a run, and what they come to.

    A READ is known when ``begun`` has its tokens, or when ``end`` refuses it. V is requested once
    its K is known, and not if that was refused. A K that is known gives a ``job``. Each READ of a
    job with rows gives a ``stretch``. Where an attend has a window, the job has its rows alone,
    and the stretch skips those before. Its cap goes to its jobs. At most ``ahead`` READs have no
    status, and ``JOBS`` jobs no output.
    """

    def __init__(self, config: OakenAttentionConfig):
        status = stream.Signature(STATUS_BITS)
        super().__init__(
            config,
            {
                "attend": In(stream.Signature(config.attend_layout), "Attends, in runs."),
                "request": Out(stream.Signature(REQUEST_LAYOUT), "READs of one group each."),
                "begun": In(stream.Signature(config.cache_engine.begun_layout), "Their tokens."),
                "end": In(status, "Their statuses, in order.", Status),
                "job": Out(stream.Signature(config.stream.job_layout), "Jobs, in runs."),
                "stretch": Out(stream.Signature(config.stretch_layout), "Rows, by READ."),
                "task": Out(stream.Signature(config.task_layout), "Jobs whose output is due."),
                "key_end": Out(status, "Statuses of K, one per job.", Status),
                "value_end": Out(status, "Statuses of V, one per job whose K went ahead.", Status),
                "done": In(1, "The output of a job has ended."),
                "idle": Out(1, "No job is under way."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        rules = {name: _RULES[name] for name in self._rules}
        layout = Payload(**_ASKED.parts, **rules) if rules else _ASKED
        asked = queue(m, "asked", layout, config.ahead)  # READs whose outcome is not known
        unended = queue(m, "unended", 1, config.ahead)  # READs without a status: whether it is V
        keys = queue(m, "keys", 1, JOBS)  # K of jobs whose V is not requested: whether it has rows
        tasks = queue(m, "tasks", config.task_layout, JOBS)
        link(m, tasks.o, self.task)
        self._ask(m, asked.i, unended.i, keys.o, tasks.i)
        self._resolve(m, asked.o, unended.o, keys.i)
        return m

    @property
    def _rules(self) -> list[str]:
        """Fields of an attend that go with its K to the job."""
        return [name for name in _RULES if name in self.config.attend_layout.members]

    def _ask(self, m: Module, asked, unended, key, task) -> None:
        """Requests K of a job, then V of the one before, or of the same job at the end of a run."""
        config, attend, request = self.config, self.attend.p, self.request
        group = Signal(range(max(2, config.groups)))
        is_final = let(m, "is_final", group == config.groups - 1)
        now = Signal(_JOB)
        waiting = Signal(_JOB, reset_less=True)  # the job whose V is not requested
        has_waiting = Signal()
        number = Signal(_NUMBER_BITS)
        jobs = Signal(range(JOBS + 1))
        asks = let(m, "asks", request.valid & request.ready)
        of_value = Signal()
        asks_key = let(m, "asks_key", asks & ~of_value)
        m.d.comb += [
            *(now[name].eq(attend[name]) for name in ("sequence", "layer", "token")),
            now.head.eq(group * config.cache.kv.part_heads),
            request.p.op.eq(Op.READ),
            request.p.tag.eq(number),
            *(request.p[name].eq(Mux(of_value, waiting[name], now[name])) for name in _JOB.members),
            request.p.kv.eq(of_value),
            request.p.heads.eq(config.cache.kv.part_heads),
            asked.valid.eq(asks),
            asked.p.is_value.eq(of_value),
            asked.p.last.eq(attend.last & is_final),
            *(asked.p[name].eq(attend[name]) for name in self._rules),
            unended.valid.eq(asks),
            unended.p.eq(of_value),
            task.valid.eq(asks_key),
            task.p.tag.eq(attend.tag),
            task.p.last.eq(is_final),
            self.idle.eq(jobs == 0),
        ]
        m.d.sync += [number.eq(number + asks), jobs.eq(jobs + asks_key - self.done)]

        value_ends = Signal()  # V of the job that waits is requested, or left out with its K
        with m.If(of_value):
            m.d.comb += [
                request.valid.eq(key.valid & key.p & unended.ready),
                value_ends.eq(asks | (key.valid & ~key.p)),
                key.ready.eq(value_ends),
            ]
        with m.FSM():
            with m.State("KEY"):
                may_ask = unended.ready & (jobs != JOBS)
                m.d.comb += request.valid.eq(self.attend.valid & may_ask)
                with m.If(asks):
                    m.next = "NEXT"
                    with m.If(has_waiting):
                        m.next = "VALUE"
            with m.State("VALUE"):
                m.d.comb += of_value.eq(1)
                with m.If(value_ends):
                    m.next = "NEXT"
            with m.State("NEXT"):
                m.d.comb += self.attend.ready.eq(is_final)
                m.d.sync += [
                    group.eq(after(group, config.groups)),
                    waiting.eq(now),
                    has_waiting.eq(1),
                ]
                m.next = "KEY"
                with m.If(is_final & attend.last):
                    m.next = "OWN_VALUE"
            with m.State("OWN_VALUE"):
                m.d.comb += [of_value.eq(1), asked.p.is_own.eq(1)]
                with m.If(value_ends):
                    m.d.sync += has_waiting.eq(0)
                    m.next = "KEY"

    def _resolve(self, m: Module, asked, unended, key) -> None:
        """Outcomes in order of the READs, to those who need them; statuses by K and V."""
        begun, end, job, stretch = self.begun, self.end, self.job, self.stretch
        resolved = Signal(_NUMBER_BITS)  # READs whose outcome is known
        ended = Signal(_NUMBER_BITS)  # READs that have ended
        # A status may be there before its READ is resolved: it waits, unless it is the outcome.
        is_outcome = let(m, "is_outcome", ended == resolved)
        is_begun = let(m, "is_begun", begun.valid & (begun.p.tag == resolved))
        is_refused = let(m, "is_refused", is_outcome & end.valid & is_refusal(end.p))
        rows = let(m, "rows", Mux(is_begun, begun.p.tokens[:ROWS_BITS], 0))
        rows_now = Signal(ROWS_BITS, reset_less=True)  # of the latest K
        rows_before = Signal(ROWS_BITS, reset_less=True)
        due = Mux(asked.p.is_own, rows_now, rows_before)  # rows of V
        skip = self._skip(m, asked, rows)
        has_room = stretch.ready & Mux(asked.p.is_value, 1, job.ready)
        is_known = let(m, "is_known", asked.valid & (is_begun | is_refused) & has_room)
        is_key = let(m, "is_key", is_known & ~asked.p.is_value)
        takes_end = let(m, "takes_end", end.valid & Mux(is_outcome, is_refused & is_known, 1))
        m.d.comb += [
            asked.ready.eq(is_known),
            begun.ready.eq(is_known & is_begun),
            key.valid.eq(is_key),
            key.p.eq(is_begun),
            job.valid.eq(is_key),
            job.p.rows.eq(rows - skip.of_key),
            job.p.last.eq(asked.p.last),
            *([job.p.cap.eq(asked.p.cap)] if self.config.cache.caps else []),
            stretch.valid.eq(is_known & (is_begun | asked.p.is_value)),
            stretch.p.rows.eq(Mux(asked.p.is_value, due - skip.of_value, rows - skip.of_key)),
            stretch.p.has_words.eq(is_begun),
            stretch.p.differs.eq(asked.p.is_value & (rows != due)),
            unended.ready.eq(takes_end),
            end.ready.eq(takes_end),
            self.key_end.p.eq(end.p),
            self.value_end.p.eq(end.p),
            self.key_end.valid.eq(takes_end & ~unended.p),
            self.value_end.valid.eq(takes_end & unended.p),
        ]
        m.d.sync += [resolved.eq(resolved + is_known), ended.eq(ended + takes_end)]
        if self.config.cache.windows:
            skipped = Mux(asked.p.is_value, skip.of_value, skip.of_key)
            m.d.comb += stretch.p.skip.eq(skipped)
        with m.If(is_key):
            m.d.sync += [rows_now.eq(rows), rows_before.eq(rows_now), *skip.moves]

    def _skip(self, m: Module, asked, rows) -> "_Skip":
        """Rows before the window: of the K that is resolved, and of the K of the V that is."""
        if not self.config.cache.windows:
            return _Skip(Const(0, 1), Const(0, 1), [])
        window = asked.p.window
        is_short = let(m, "is_short", (window != 0) & (window < rows))
        found = let(m, "skip", Mux(is_short, rows - window[:ROWS_BITS], 0)[:ROWS_BITS])
        now = Signal(ROWS_BITS, name="skip_now", reset_less=True)
        before = Signal(ROWS_BITS, name="skip_before", reset_less=True)
        moves = [now.eq(found), before.eq(now)]
        return _Skip(found, Mux(asked.p.is_own, now, before), moves)


class _Skip(NamedTuple):
    """Rows that are skipped, and what is done when a K is resolved."""

    of_key: Value
    of_value: Value
    moves: list
