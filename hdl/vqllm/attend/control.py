"""Requests for attention: judged, and passed to the parts (docs/blocks/vq_attention.md)."""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream

from golden.million.format import EXPONENT_MIN, Status
from hdl.block import Block
from hdl.children import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload
from hdl.vqllm.attend.config import VqAttentionConfig


class VqAttendControl(Block):
    """A request that is refused has no ``fetch``, and its queries are discarded.

    The block knows ``books`` codebooks. A ``book`` with entries or an exponent out of range
    clears its place.
    """

    def __init__(self, config: VqAttentionConfig):
        super().__init__(
            config,
            {
                "book": In(stream.Signature(config.book_layout), "Codebooks of a KV head."),
                "request": In(stream.Signature(config.request_layout), "Requests."),
                "gate": Out(stream.Signature(config.gate_layout), "Queries to pass or discard."),
                "work": Out(stream.Signature(config.work_layout), "Requests, judged."),
                "fetch": Out(stream.Signature(config.fetch_layout), "What to read."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        parts = Payload(**config.book_parts)
        size = MemoryConfig(depth=max(2, config.books), width=parts.size)
        memory = add(m, "books", Memory1R1W(size))
        known = [Signal(name=f"known_{k}") for k in range(config.books)]
        request = Signal(config.request_layout, reset_less=True)
        book = self.book.p
        is_sound = Signal()
        is_inside = Signal()
        is_known = Signal()
        idle = Signal()
        m.d.comb += [
            is_sound.eq(
                (book.entries != 0)
                & (book.entries <= config.shape.pq.entries)
                & (book.exponent_k >= EXPONENT_MIN)
                & (book.exponent_v >= EXPONENT_MIN)
            ),
            is_inside.eq(book.place < config.books),
            self.book.ready.eq(idle),
            memory.write_en.eq(self.book.valid & idle & is_inside & is_sound),
            memory.write_addr.eq(book.place),
            memory.write_data.eq(Cat(book[name] for name in config.book_parts)),
            self.request.ready.eq(idle & ~self.book.valid),
            memory.read_en.eq(self.request.valid & self.request.ready),
            memory.read_addr.eq(self.request.p.place),
        ]
        for k in range(config.books):
            with m.If(self.book.valid & idle & (book.place == k)):
                m.d.sync += known[k].eq(is_sound)
        m.d.comb += is_known.eq(
            Cat(known[k] & (request.place == k) for k in range(config.books)).any()
        )

        status = Signal(4)
        shape = config.shape
        with m.If((request.queries == 0) | (request.queries > shape.queries)):
            m.d.comb += status.eq(Status.BAD_REQUEST)
        with m.Elif(~is_known):
            m.d.comb += status.eq(Status.NO_CODEBOOK)
        with m.Elif(request.tokens > shape.max_tokens):
            m.d.comb += status.eq(Status.LENGTH_LIMIT)
        with m.Elif(request.tokens == 0):
            m.d.comb += status.eq(Status.EMPTY)
        found = Signal(parts)
        m.d.comb += [
            found.as_value().eq(memory.read_data),
            self.gate.p.queries.eq(request.queries),
            self.gate.p.discard.eq(status != Status.OK),
            self.work.p.tag.eq(request.tag),
            self.work.p.status.eq(status),
            self.work.p.queries.eq(request.queries),
            self.work.p.tokens.eq(request.tokens),
            *(
                self.work.p[name].eq(found[name])
                for name in ("entries", "exponent_k", "exponent_v")
            ),
            self.fetch.p.tokens.eq(request.tokens),
            *(self.fetch.p[name].eq(found[name]) for name in ("entries", "books_k", "books_v")),
            *(self.fetch.p[name].eq(request[name]) for name in config.codes_parts),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += idle.eq(1)
                m.d.sync += request.eq(self.request.p)
                with m.If(self.request.valid & self.request.ready):
                    m.next = "GATE"
            with m.State("GATE"):
                m.d.comb += self.gate.valid.eq(1)
                with m.If(self.gate.ready):
                    m.next = "WORK"
            with m.State("WORK"):
                m.d.comb += self.work.valid.eq(1)
                with m.If(self.work.ready):
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.d.comb += self.fetch.valid.eq(status == Status.OK)
                with m.If(self.fetch.ready | (status != Status.OK)):
                    m.next = "IDLE"
        return m
