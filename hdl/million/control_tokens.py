"""States of MillionControl for PREFILL, APPEND and RESTORE: what brings a token."""

from typing import NamedTuple

from amaranth import Module, Mux, Signal

from golden.million.format import Op, Status
from hdl.million.layouts import RING_BITS


class State(NamedTuple):
    """Registers that the states of MillionControl share."""

    request: Signal  # being carried out
    tokens: Signal  # of its (sequence, layer)
    status: Signal  # how it ends
    open: Signal  # one bit per sequence
    present: Signal  # codebooks in use
    waiting: Signal  # codebooks in the other buffer
    vector: Signal  # number of (sequence, layer)
    slot: Signal  # window of KV head 0
    is_sink: Signal  # the next token is one
    sinks: Signal  # exact first tokens
    recent: Signal  # recent tokens


def judge(m: Module, control, state: State) -> None:
    """Decides what the tokens of the (sequence, layer) allow."""
    cache, request, tokens = control.config.cache, state.request, state.tokens
    window = cache.window
    has_codes = (request.op == Op.PREFILL) | (request.op == Op.RESTORE)
    is_early = (request.op == Op.RESTORE) & state.is_sink
    with m.State("JUDGE"):
        m.next = "REST"
        with m.If(request.op == Op.ATTEND):
            m.next = "BEGIN"
            with m.If(tokens.tokens == 0):
                m.d.sync += state.status.eq(Status.EMPTY)
        with m.Elif(is_early | (has_codes & (state.recent != 0))):
            m.d.sync += state.status.eq(Status.TOKEN_ORDER)
            m.next = "WRITE"
        with m.Elif(tokens.tokens == cache.max_tokens):
            m.d.sync += state.status.eq(Status.LENGTH_LIMIT)
            m.next = "WRITE"
        if window.recent:
            with m.Elif((request.op == Op.APPEND) & (state.recent == window.recent)):
                m.next = "FLUSH"
        with m.If(request.op == Op.RESTORE):
            m.next = "DIRECT"
    with m.State("FLUSH"):
        m.d.comb += control.encode.valid.eq(control.encode_idle)
        with m.If(control.encode.valid & control.encode.ready):
            m.next = "FLUSHED"
    with m.State("FLUSHED"):
        with m.If(control.encoded.valid):
            m.d.sync += state.status.eq(control.encoded.p.status)
            m.next = "WRITE"
            with m.If(control.encoded.p.status == Status.OK):
                m.d.sync += [
                    tokens.past.eq(tokens.past + window.block),
                    tokens.start.eq(_place(control, tokens.start + window.block)),
                ]
                m.next = "REST"


def _place(control, place):
    """``place`` in the ring, below twice its places."""
    places = control.config.cache.window.places
    return Mux(place >= places, place - places, place)


def write(m: Module, control, state: State, no_attends) -> None:
    """K and V to the window, and codes for the tokens that leave it or pass through it."""
    cache, request, tokens = control.config.cache, state.request, state.tokens
    window, encode = cache.window, control.encode.p
    is_sink = state.is_sink
    is_direct = Signal()
    place = Signal(RING_BITS + 1)
    m.d.comb += [
        is_direct.eq((request.op == Op.PREFILL) | (window.recent == 0)),
        place.eq(_place(control, tokens.start + state.recent)),
        control.write.p.discard.eq(state.status != Status.OK),
        control.write.p.slot.eq(state.slot),
        control.write.p.row.eq(Mux(is_sink, tokens.tokens, window.sinks + place)),
        encode.vector.eq(state.vector),
        encode.sequence.eq(request.sequence),
        encode.layer.eq(request.layer),
        encode.slot.eq(state.slot),
        encode.restored.eq(request.op == Op.RESTORE),
        encode.discard.eq((request.op == Op.RESTORE) & (state.status != Status.OK)),
        *(encode[name].eq(state.present[name]) for name in ("entries", "exponent_k", "exponent_v")),
    ]
    with m.State("REST"):  # the window's rows change only where no ATTEND reads them
        with m.If(no_attends & (~is_direct | control.encode_idle)):
            m.next = "WRITE"
    with m.State("WRITE"):
        m.d.comb += control.write.valid.eq(1)
        with m.If(control.write.ready):
            m.next = "WRITTEN"
    with m.State("WRITTEN"):
        m.d.comb += control.written.ready.eq(1)
        with m.If(control.written.valid):
            m.next = "STATUS"
            with m.If(state.status != Status.OK):
                pass
            with m.Elif(control.written.p.nonfinite):
                m.d.sync += state.status.eq(Status.NONFINITE)
                m.next = "KEEP"  # a FLUSH counts: the row took the place of an encoded one
            with m.Elif(is_direct & ~is_sink):
                m.next = "DIRECT"
            with m.Else():
                m.d.sync += tokens.tokens.eq(tokens.tokens + 1)
                m.next = "KEEP"
                with m.If(~is_sink):
                    m.next = "BACKGROUND"
    m.d.comb += encode.until.eq(tokens.past + window.block)  # FLUSH
    with m.State("DIRECT"):
        m.d.comb += [encode.until.eq(tokens.past + 1), control.encode.valid.eq(control.encode_idle)]
        with m.If(control.encode.valid & control.encode.ready):
            m.next = "CODED"
    with m.State("CODED"):
        with m.If(control.encoded.valid):
            m.next = "STATUS"
            with m.If(state.status != Status.OK):
                pass
            with m.Elif(control.encoded.p.status != Status.OK):
                m.d.sync += state.status.eq(control.encoded.p.status)
            with m.Else():
                m.d.sync += [
                    tokens.tokens.eq(tokens.tokens + 1),
                    tokens.past.eq(tokens.past + 1),
                    tokens.start.eq(_place(control, tokens.start + 1)),
                ]
                m.next = "KEEP"
    with m.State("BACKGROUND"):
        m.d.comb += [
            encode.until.eq(tokens.tokens - window.sinks),
            control.encode.valid.eq(1),
        ]
        with m.If(control.encode.ready):
            m.next = "KEEP"
