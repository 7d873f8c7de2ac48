"""Requests of the product-quantized attention, in order."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.million.format import Op, Status
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.attend_control import MillionAttendControlConfig
from hdl.million.control_look import look
from hdl.million.control_tokens import State, judge, write
from hdl.million.encode_control import (
    MillionEncodeControlConfig,
    million_status,
)
from hdl.million.kv_writer import MillionKvWriterConfig
from hdl.million.layouts import (
    ENTRIES_BITS,
    EXPONENT_SHAPE,
    KEYS_BITS,
    REQUEST_LAYOUT,
    RING_BITS,
    STATUS_LAYOUT,
    slot_bits,
)
from hdl.million.loader import LOAD_LAYOUT
from hdl.million.shapes import SMALL_CACHE, SMALL_RATE, SMOLLM2_CACHE, SMOLLM2_RATE, LayerConfig
from hdl.million.verdict import BEGUN_LAYOUT
from hdl.paging.layouts import REQUEST_LAYOUT as PAGING_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT as PAGING_STATUS_LAYOUT
from hdl.ports import In, Out, Payload

_TOKENS_LAYOUT = data.StructLayout({"tokens": KEYS_BITS, "past": KEYS_BITS, "start": RING_BITS})
_CODEBOOK_LAYOUT = data.StructLayout(
    {
        "valid": 1,
        "layer": 8,
        "entries": ENTRIES_BITS,
        "exponent_k": EXPONENT_SHAPE,
        "exponent_v": EXPONENT_SHAPE,
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionControlConfig(LayerConfig):
    """The cache that the control keeps, and the rates at which it is attended."""

    @property
    def attend(self) -> MillionAttendControlConfig:
        return MillionAttendControlConfig(cache=self.cache, rate=self.rate)

    @property
    def encode(self) -> MillionEncodeControlConfig:
        return MillionEncodeControlConfig(cache=self.cache)

    @property
    def writer(self) -> MillionKvWriterConfig:
        return MillionKvWriterConfig(cache=self.cache, rate=self.rate)


class MillionControl(Block):
    """Carries out requests one after another; ATTENDs go on while later requests are looked at.

        op       waits for                       then
        OPEN     -                               the paged memory opens a sequence
        PREFILL  ATTENDs, encoding               the token is in the sinks, or has codes
        APPEND   ATTENDs; a full window: also    the token is in the sinks or recent;
                 encoding                        it gets codes later
        RESTORE  encoding                        the token has the codes of the host
        ATTEND   -                               groups of queries are under way
        FREE     ATTENDs, encoding               the sequence is free
        LOAD     the LOAD before                 the other buffer is filled

    A request for a layer whose codebooks are in the other buffer swaps the buffers. It waits
    until all work with the present ones is done. If the LOAD has failed, the present ones stay.
    Without ``scope_layers`` the codebooks of one LOAD serve all layers.

    One status per request. Those of ATTEND and LOAD come from the parts that end them, all others
    from here. A request that is refused still has its queries, its K and V, or its codes discarded.

    ``encode.valid`` and ``swap`` depend on the plain inputs. No other combinational path leads
    from an input to an output.
    Golden: golden.million.requests.Requests.

    A request is refused for the first of these reasons that applies:

        ================  ==========================================================================
        status            condition
        ================  ==========================================================================
        BAD_REQUEST       unknown op; sequence or layer beyond the configuration; LOAD: entries or
                          exponents out of range
        SEQUENCE_UNKNOWN  the sequence is not open
        NO_CODEBOOK       neither buffer has codebooks for the layer
        TOKEN_ORDER       PREFILL, RESTORE: the layer has recent tokens; RESTORE: its sinks are not
                          full
        LENGTH_LIMIT      PREFILL, APPEND, RESTORE: the layer has ``max_tokens`` tokens
        EMPTY             ATTEND: the layer has no token
        ================  ==========================================================================

    APPEND to a full window moves its oldest ``block`` tokens to the codes first. If their encoding
    fails, the token is refused with that status. If K or V is not finite, the oldest tokens stay
    moved. A token that is neither a sink nor recent has its codes before its status. A LOAD
    overwrites the codebooks that wait. OPEN clears all layers of its sequence, one by one. An
    ATTEND takes 8 cycles where no port stalls.
    """

    tier = Tier.PART
    golden = "golden.million.requests:Requests"
    default = MillionControlConfig()
    configs: ClassVar = {
        "smollm2": MillionControlConfig(cache=SMOLLM2_CACHE, rate=SMOLLM2_RATE),
        "small": MillionControlConfig(cache=SMALL_CACHE, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionControlConfig):
        done = Payload(status=(4, "golden.million.format.Status", Status))
        super().__init__(
            config,
            {
                "request": In(stream.Signature(REQUEST_LAYOUT), "What to do."),
                "status": Out(stream.Signature(STATUS_LAYOUT), "How requests ended."),
                "page": Out(stream.Signature(PAGING_REQUEST_LAYOUT), "OPEN and FREE of pages."),
                "paged": In(stream.Signature(PAGING_STATUS_LAYOUT), "Their statuses."),
                "write": Out(stream.Signature(config.writer.job_layout), "Tokens to write."),
                "written": In(
                    stream.Signature(Payload(nonfinite=(1, "an element is NaN or infinite"))),
                    "Ends of tokens.",
                ),
                "encode": Out(stream.Signature(config.encode.job_layout), "Tokens to encode."),
                "encoded": In(stream.Signature(done), "Ends of encoding."),
                "encode_idle": In(
                    1, "No token is being encoded; 0 from the cycle after encode on."
                ),
                "begun": Out(stream.Signature(BEGUN_LAYOUT), "ATTENDs, for their end."),
                "attend": Out(stream.Signature(config.attend.job_layout), "ATTENDs."),
                "attended": In(1, "An ATTEND has ended, once for each word of begun."),
                "load": Out(stream.Signature(LOAD_LAYOUT), "LOADs."),
                "loaded": In(1, "Complete and sound codebooks are in the other buffer."),
                "load_idle": In(1, "No LOAD is under way; 0 from the cycle after load on."),
                "swap": Out(1, "The other buffer is in use from the next cycle on."),
            },
        )

    # An ATTEND whose codebooks are in use.
    timing = Timing(latency=6, interval=Fraction(8), start="request", end="begun", unit="ATTEND")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        cache = config.cache
        state = State(
            request=Signal(REQUEST_LAYOUT, name="request", reset_less=True),
            tokens=Signal(_TOKENS_LAYOUT, name="tokens", reset_less=True),
            status=Signal(4, name="status", reset_less=True),
            open=Signal(cache.sequences, name="open"),
            present=Signal(_CODEBOOK_LAYOUT, name="present"),
            waiting=Signal(_CODEBOOK_LAYOUT, name="waiting"),
            vector=Signal(config.encode.vector_bits, name="vector"),
            slot=Signal(slot_bits(cache), name="slot"),
            is_sink=Signal(name="is_sink"),
            sinks=Signal(range(max(2, cache.window.sinks + 1)), name="sinks"),
            recent=Signal(KEYS_BITS, name="recent"),
        )
        shape = MemoryConfig(depth=config.encode.vectors, width=_TOKENS_LAYOUT.size)
        memory = add(m, "tokens", Memory1R1W(shape))
        request, tokens, sinks = state.request, state.tokens, cache.window.sinks
        m.d.comb += [
            state.vector.eq(request.sequence * cache.layers + request.layer),
            state.slot.eq(state.vector * cache.head.heads),
            state.is_sink.eq(tokens.tokens < sinks if sinks else 0),
            state.sinks.eq(Mux(state.is_sink, tokens.tokens, sinks)),
            state.recent.eq(tokens.tokens - state.sinks - tokens.past),
            memory.read_addr.eq(state.vector),
            memory.write_addr.eq(state.vector),
            memory.write_data.eq(tokens),
            self.encoded.ready.eq(1),
        ]
        attends = Signal(8)
        rests = Signal()  # neither an ATTEND nor encoding is under way
        m.d.comb += rests.eq((attends == 0) & self.encode_idle)
        m.d.sync += attends.eq(attends + (self.begun.valid & self.begun.ready) - self.attended)
        found = million_status(m, "found", self.paged.p.status)
        with m.FSM():
            look(m, self, state, rests)
            with m.State("TOKENS"):
                m.d.comb += memory.read_en.eq(1)
                m.next = "READ"
            with m.State("READ"):
                m.d.sync += tokens.eq(memory.read_data)
                m.next = "JUDGE"
            judge(m, self, state)
            write(m, self, state, attends == 0)
            with m.State("KEEP"):
                m.d.comb += memory.write_en.eq(1)
                m.next = "STATUS"
            self._elaborate_clear(m, state, memory, found)
            self._elaborate_attend(m, state)
            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.next = "IDLE"
        m.d.comb += [self.status.p[name].eq(request[name]) for name in ("tag", "op")]
        m.d.comb += [
            self.status.p.status.eq(state.status),
            self.status.p.sequence.eq(request.sequence),
        ]
        return m

    def _elaborate_clear(self, m: Module, state: State, memory: Memory1R1W, found) -> None:
        """OPEN and FREE of pages; a new sequence has no token in any layer."""
        cache, request = self.config.cache, state.request
        with m.State("PAGE"):
            m.d.comb += self.page.valid.eq(1)
            with m.If(self.page.ready):
                m.next = "PAGED"
        with m.State("PAGED"):
            m.d.comb += self.paged.ready.eq(1)
            with m.If(self.paged.valid):
                m.d.sync += state.status.eq(found)
                m.next = "STATUS"
                with m.If(found == Status.OK):
                    with m.If(request.op == Op.OPEN):
                        m.d.sync += [
                            request.sequence.eq(self.paged.p.sequence),
                            request.layer.eq(0),
                            state.tokens.eq(0),
                        ]
                        m.next = "CLEAR"
                    for k in range(cache.sequences):
                        with m.If(self.paged.p.sequence == k):
                            m.d.sync += state.open[k].eq(request.op == Op.OPEN)
        with m.State("CLEAR"):
            m.d.comb += [
                self.encode.p.clear.eq(1),
                self.encode.valid.eq(self.encode_idle),
                memory.write_en.eq(1),
            ]
            with m.If(self.encode.valid & self.encode.ready):
                m.d.sync += request.layer.eq(request.layer + 1)
                with m.If(request.layer == cache.layers - 1):
                    m.next = "STATUS"

    def _elaborate_attend(self, m: Module, state: State) -> None:
        """ATTENDs to the parts that carry them out and end them."""
        request, tokens, attend = state.request, state.tokens, self.attend.p
        m.d.comb += [
            self.begun.p.tag.eq(request.tag),
            self.begun.p.sequence.eq(request.sequence),
            self.begun.p.refused.eq(state.status),
            attend.discard.eq(state.status != Status.OK),
            attend.sequence.eq(request.sequence),
            attend.layer.eq(request.layer),
            attend.slot.eq(state.slot),
            attend.keys.eq(tokens.past),
            attend.sinks.eq(state.sinks),
            attend.start.eq(tokens.start),
            attend.recent.eq(state.recent),
            attend.distance.eq(tokens.tokens - 1),
            *(
                attend[name].eq(state.present[name])
                for name in ("entries", "exponent_k", "exponent_v")
            ),
        ]
        with m.State("BEGIN"):
            m.d.comb += self.begun.valid.eq(1)
            with m.If(self.begun.ready):
                m.next = "ATTEND"
        with m.State("ATTEND"):
            m.d.comb += self.attend.valid.eq(1)
            with m.If(self.attend.ready):
                m.next = "IDLE"
