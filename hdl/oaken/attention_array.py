"""Several attention engines, each with some of the KV heads, as one (oaken_attention.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.oaken.config import CacheConfig, KvShape
from golden.paging.format import Op, Status
from golden.timing import Timing
from hdl.axi.signature import pass_channels
from hdl.bits import after, let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import index_of
from hdl.oaken.attention import OakenAttention
from hdl.oaken.attention_config import (
    ENDED,
    LONGER,
    OakenAttentionConfig,
    attended_layout,
)
from hdl.oaken.attention_undo import UndoneForks
from hdl.oaken.kv_engine import OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from hdl.ports import In, Out
from hdl.stream.fork import fork
from hdl.stream.link import StreamView, link
from hdl.stream.queue import queue
from hdl.stream.skid import skid

STATUSES = 4  # of an engine, which wait for those of the others
ENDS = 2  # ends of attends of an engine, which wait for those of the others
_COUNT_BITS = 12  # of requests and of attends under way
_WORDS_LEAST = 4  # of a queue, which has its full rate then
_LATE = 2  # cycles of the queues on the way of an attend


def _part() -> OakenAttentionConfig:
    kv = KvShape(heads=8, head_dim=128, order="token")
    cache = CacheConfig(kv=kv, layers=32, pages=65536)
    mmu = PagingMmuConfig(cache=cache, data_bits=512)
    return OakenAttentionConfig(engine=OakenKvEngineConfig(mmu=mmu, lanes=64))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenAttentionArrayConfig(Config):
    """Equal engines."""

    engines: int = bounded(2, 2, 16, "attention engines")
    part: OakenAttentionConfig = nested(_part, "each, with its KV heads", OakenAttentionConfig)

    @property
    def cache(self) -> CacheConfig:
        """The cache of one engine."""
        return self.part.cache

    @property
    def vector_beats(self) -> int:
        """Beats of ``kv`` that an engine takes of a vector."""
        return self.cache.kv.elements // self.part.engine.lanes

    @property
    def words(self) -> int:
        """Words of ``o`` that an engine has of an attend."""
        return self.part.words

    @property
    def query_words(self) -> int:
        """Words of ``q`` that an engine has of an attend."""
        return self.part.query_words


class OakenAttentionArray(Block):
    """``engines`` of oaken_attention with the ports of one: KV heads are split, in order.

    The first engine has the first heads of each vector. Each has pages and a memory port of its
    own, and quantizes its heads as a vector. A vector has ``engines`` times ``vector_beats`` beats:
    ``kv.last`` is not looked at. ``q`` and ``o`` have the words of the first engine, then those of
    the next.

    Every engine carries out every request and every attend. A status is that of the first engine
    whose status is not OK. ``result`` is the least of all that is not OK, and OK if ``status`` is
    not. ``void`` and NaN are those of the word's engine. ``free_pages`` is the least.

    Requests but APPENDs are carried out alone: one is given to the engines when all before it have
    ended, and the next when it has. So all engines see one order of requests, and open the same
    sequences. The vector of an APPEND must not wait for a later request. A FORK that fails in some
    engines is undone in the others before its status: each of them gets a FREE of the child.

    Engines may run ahead of each other: a queue for each holds its queries of one attend, and one
    its outputs of one attend. Nothing waits for ever. Take the oldest output that has not left.
    ``q`` has the order of ``o``, so all queries before its own have been taken, and its own can be.
    The earlier outputs of its engine have left. The attend that it may need is the next of a run.
    Each engine has a place for that, because all attends before these two have ended there. V
    follows K of that next attend, whose queries have their place once K is multiplied. ``o`` may
    wait for a READ's status, which comes after that of an APPEND. Take the oldest status that is
    missing. An APPEND ends whatever ``o`` does. ``kv`` has the order of the statuses, so its vector
    can be taken.

    Golden: golden.oaken.attention_array.AttentionArray.
    """

    tier = Tier.PART
    golden = "golden.oaken.attention_array:AttentionArray"
    default = OakenAttentionArrayConfig()
    configs: ClassVar = {
        "default": OakenAttentionArrayConfig(),
        "small": OakenAttentionArrayConfig(
            part=OakenAttentionConfig(
                engine=OakenKvEngineConfig(
                    mmu=PagingMmuConfig(
                        cache=CacheConfig(
                            kv=KvShape(heads=1, head_dim=32, block=16, order="token"),
                            sequences=3, layers=2, pages=40, page_bytes=512, max_tokens=40,
                        ),
                        data_bits=128, burst_beats=8, outstanding=4, reads=4, appends=2,
                        token_beats=16,
                    ),
                    lanes=16,
                ),
                queries=2, macs=16, width=8,
            )
        ),
    }  # fmt: skip

    def __init__(self, config: OakenAttentionArrayConfig):
        part, mmu = config.part, config.part.engine.mmu
        super().__init__(
            config,
            {
                "request": In(stream.Signature(part.request_layout), "As oaken_attention's."),
                "kv": In(stream.Signature(part.kv_layout), "One vector per APPEND, in order."),
                "attend": In(stream.Signature(part.attend_layout), "Attends, in runs."),
                "q": In(stream.Signature(part.q_layout), "Queries, engine by engine."),
                "o": Out(stream.Signature(part.o_layout), "Outputs, in the same order."),
                "status": Out(
                    stream.Signature(part.status_layout), "How a request ended, in order."
                ),
                "attended": Out(
                    stream.Signature(attended_layout),
                    "How an attend ended, after its last word of o.",
                ),
                "base": In(
                    mmu.address_bits,
                    "Byte address of page 0 in every memory; constant while running.",
                    index_of("bytes"),
                ),
                "free_pages": Out(range(mmu.cache.pages + 1), "The fewest of an engine."),
                "idle": Out(1, "No request and no attend is under way."),
                "axi": Out(mmu.axi_signature, "AXI4 manager: the pages of engine {0}.").array(
                    config.engines
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """The engines' own, and the queues around them."""
        of = self.config.part.timing
        more = _LATE + (self.config.engines - 1) * self.config.words
        return dataclasses.replace(
            of, latency=of.latency + more, unit="beat of K or V of each engine",
            delays=((LONGER, of.delay(LONGER) + more), (ENDED, 1)),
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        engines = [
            add(m, f"engine_{n}", OakenAttention(config.part)) for n in range(config.engines)
        ]
        for engine, axi in zip(engines, self.axi, strict=True):
            m.d.comb += engine.base.eq(self.base)
            pass_channels(m, engine.axi, axi)
        issued = self._requests(m, engines)
        self._split(m, "vector", self.kv, [engine.kv for engine in engines], config.vector_beats)
        depth = max(_WORDS_LEAST, config.query_words)
        queries = [queue(m, f"queries_{n}", config.part.q_layout, depth, storage="memory")
                   for n in range(config.engines)]  # fmt: skip
        self._split(m, "query", self.q, [each.i for each in queries], config.query_words)
        for each, engine in zip(queries, engines, strict=True):
            link(m, each.o, engine.q)
        ended = self._gather(m, engines)
        attends = self._attends(m, engines, ended)
        fewest = engines[0].free_pages
        for n, engine in enumerate(engines[1:]):
            found = engine.free_pages
            fewest = let(m, f"fewest_{n}", Mux(found < fewest, found, fewest))
        m.d.comb += [
            self.free_pages.eq(fewest),
            self.idle.eq(
                (issued == 0) & (attends == 0) & Cat(engine.idle for engine in engines).all()
            ),
        ]
        return m

    @property
    def _depth(self) -> int:
        return max(_WORDS_LEAST, self.config.words)

    def _requests(self, m: Module, engines) -> Signal:
        """Requests to all engines, and what their statuses come to; returns those under way."""
        entry = skid(m, "entry", self.config.part.request_layout)
        link(m, self.request, entry.i)
        taken = Signal(_COUNT_BITS)  # requests without a status
        given = Signal(_COUNT_BITS)  # of them, those that the engines have
        alone = Signal()  # one that is not an APPEND
        is_append = let(m, "is_append", entry.o.p.op == Op.APPEND)
        may_go = let(m, "may_go", Mux(is_append, ~alone, given == 0))
        goes = let(m, "goes", entry.o.valid & entry.o.ready)
        source = StreamView(entry.o.p, let(m, "is_due", entry.o.valid & may_go), Signal(name="all"))
        m.d.comb += entry.o.ready.eq(source.ready & may_go)
        sinks = fork(m, "requests", source, len(engines))
        undone = None
        if self.config.cache.forks:
            undone = UndoneForks.of(len(engines), self.config.part.status_layout)
            undone.give(m, sinks, engines)
        else:
            for engine, sink in zip(engines, sinks, strict=True):
                link(m, sink, engine.request)
        found = []
        for n, engine in enumerate(engines):
            statuses = queue(m, f"statuses_{n}", self.config.part.status_layout, STATUSES)
            link(m, engine.status, statuses.i)
            found.append(statuses.o)
        if undone:
            ends = undone.join(m, found, self.status)
        else:
            ends = self._join(m, "status", found, self.status)
            first = _first(m, "status_first", [each.p.status for each in found])
            m.d.comb += [self.status.p.eq(found[0].p), self.status.p.status.eq(first)]
        m.d.sync += [
            taken.eq(taken + (self.request.valid & self.request.ready) - ends),
            given.eq(given + goes - ends),
        ]
        with m.If(goes):
            m.d.sync += alone.eq(~is_append)
        with m.Elif(ends):
            m.d.sync += alone.eq(0)
        return taken

    def _split(self, m: Module, name: str, source, sinks, count: int) -> None:
        """``count`` words of ``source`` to each sink in turn, ``last`` with the final one."""
        owner = Signal(range(len(sinks)), name=f"{name}_owner")
        at = Signal(range(max(2, count)), name=f"{name}_at")
        is_last = let(m, f"{name}_is_last", at == count - 1)
        for n, sink in enumerate(sinks):
            m.d.comb += sink.valid.eq(source.valid & (owner == n))
            m.d.comb += [
                sink.p[field].eq(is_last if field == "last" else source.p[field])
                for field in source.p.shape().members
            ]
            with m.If(owner == n):
                m.d.comb += source.ready.eq(sink.ready)
        with m.If(source.valid & source.ready):
            m.d.sync += at.eq(after(at, count))
            with m.If(is_last):
                m.d.sync += owner.eq(after(owner, len(sinks)))

    def _gather(self, m: Module, engines) -> Value:
        """Outputs engine by engine; returns whether an attend's last word leaves."""
        outputs = []
        for n, engine in enumerate(engines):
            each = queue(
                m, f"outputs_{n}", self.config.part.o_layout, self._depth, storage="memory"
            )
            link(m, engine.o, each.i)
            outputs.append(each.o)
        owner = Signal(range(len(engines)))
        is_final = let(m, "is_final", owner == len(engines) - 1)
        moves = let(m, "o_moves", self.o.valid & self.o.ready)
        ends_part = Signal()
        for n, each in enumerate(outputs):
            m.d.comb += each.ready.eq(self.o.ready & (owner == n))
            with m.If(owner == n):
                m.d.comb += [
                    self.o.valid.eq(each.valid),
                    self.o.p.word.eq(each.p.word),
                    self.o.p.void.eq(each.p.void),
                    ends_part.eq(each.p.last),
                ]
        m.d.comb += self.o.p.last.eq(ends_part & is_final)
        with m.If(moves & ends_part):
            m.d.sync += owner.eq(after(owner, len(engines)))
        return let(m, "o_ends", moves & self.o.p.last)

    def _attends(self, m: Module, engines, ended: Value) -> Signal:
        """Attends to all engines, and what their ends come to; returns those under way."""
        entry = skid(m, "attends", self.config.part.attend_layout)
        link(m, self.attend, entry.i)
        for engine, sink in zip(engines, fork(m, "each", entry.o, len(engines)), strict=True):
            link(m, sink, engine.attend)
        found = []
        for n, engine in enumerate(engines):
            ends = queue(m, f"ends_{n}", attended_layout, ENDS)
            link(m, engine.attended, ends.i)
            found.append(ends.o)
        # Attends whose last word has left; an engine has at most one end more than its queue.
        owed = Signal(range(ENDS + 2))
        taken = self._join(m, "attended", found, self.attended, owed != 0)
        status = _first(m, "attended_first", [each.p.status for each in found])
        result = found[0].p.result
        for n, each in enumerate(found[1:]):
            is_less = (result == 0) | ((each.p.result != 0) & (each.p.result < result))
            result = let(m, f"result_{n}", Mux(is_less, each.p.result, result))
        m.d.comb += [
            self.attended.p.tag.eq(found[0].p.tag),
            self.attended.p.status.eq(status),
            self.attended.p.result.eq(Mux(status == Status.OK, result, 0)),
        ]
        count = Signal(_COUNT_BITS)
        m.d.sync += [
            owed.eq(owed + ended - taken),
            count.eq(count + (self.attend.valid & self.attend.ready) - taken),
        ]
        return count

    @staticmethod
    def _join(m: Module, name: str, sources, sink, may_go=1) -> Value:
        """A word of each source together; returns whether they leave."""
        are_there = let(m, f"{name}_all", Cat(each.valid for each in sources).all() & may_go)
        m.d.comb += sink.valid.eq(are_there)
        for each in sources:
            m.d.comb += each.ready.eq(are_there & sink.ready)
        return let(m, f"{name}_moves", are_there & sink.ready)


def _first(m: Module, name: str, statuses) -> Value:
    """The first that is not OK."""
    found = statuses[-1]
    for n, status in enumerate(reversed(statuses[:-1])):
        found = let(m, f"{name}_{n}", Mux(status != Status.OK, status, found))
    return found
