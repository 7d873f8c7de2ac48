"""States of MillionControl that look at a request: refusals and codebooks."""

from amaranth import Array, Module, Mux, Signal

from golden.million.format import EXPONENT_MIN, Op, Status
from golden.paging.format import Op as PagingOp
from hdl.million.control_tokens import State


def look(m: Module, control, state: State, rests) -> None:
    """Requests, their ranges, and codebooks for those that need some."""
    cache, request = control.config.cache, state.request
    present, waiting = state.present, state.waiting
    out_of_range = Signal()
    unknown = Signal()
    is_load_sound = Signal()
    m.d.comb += [
        out_of_range.eq((request.sequence >= cache.sequences) | (request.layer >= cache.layers)),
        unknown.eq(~Array(state.open)[request.sequence]),
        is_load_sound.eq(
            (request.layer < cache.layers)
            & (request.entries != 0)
            & (request.entries <= cache.pq.entries)
            & (request.exponent_k >= EXPONENT_MIN)
            & (request.exponent_v >= EXPONENT_MIN)
        ),
        control.page.p.op.eq(Mux(request.op == Op.FREE, PagingOp.FREE, PagingOp.OPEN)),
        control.page.p.sequence.eq(request.sequence),
        control.load.p.tag.eq(request.tag),
        control.load.p.sequence.eq(request.sequence),
        *(
            control.load.p[name].eq(request[name])
            for name in ("entries", "exponent_k", "exponent_v")
        ),
    ]

    def refuse(status: Status) -> None:
        """Queries, K and V, or codes of a request that is refused are discarded."""
        m.d.sync += state.status.eq(status)
        m.next = "WRITE"
        with m.If(request.op == Op.RESTORE):
            m.next = "DIRECT"
        with m.If(request.op == Op.ATTEND):
            m.next = "BEGIN"

    with m.State("IDLE"):
        m.d.comb += control.request.ready.eq(1)
        m.d.sync += [request.eq(control.request.p), state.status.eq(Status.OK)]
        with m.If(control.request.valid):
            m.next = "LOOK"
    with m.State("LOOK"):
        with m.Switch(request.op):
            with m.Case(Op.OPEN):
                m.next = "PAGE"
            with m.Case(Op.FREE):
                with m.If((request.sequence >= cache.sequences) | unknown):
                    m.d.sync += state.status.eq(
                        Mux(
                            request.sequence >= cache.sequences,
                            Status.BAD_REQUEST,
                            Status.SEQUENCE_UNKNOWN,
                        )
                    )
                    m.next = "STATUS"
                with m.Elif(rests):
                    m.next = "PAGE"
            with m.Case(Op.LOAD):
                with m.If(control.load_idle):  # statuses of LOADs come in order
                    m.next = "LOAD"
                    with m.If(~is_load_sound):
                        m.d.sync += state.status.eq(Status.BAD_REQUEST)
                        m.next = "STATUS"
            with m.Case(Op.PREFILL, Op.APPEND, Op.RESTORE, Op.ATTEND):
                m.next = "CODEBOOK"
                with m.If(out_of_range):
                    refuse(Status.BAD_REQUEST)
                with m.Elif(unknown):
                    refuse(Status.SEQUENCE_UNKNOWN)
            with m.Default():
                m.d.sync += state.status.eq(Status.BAD_REQUEST)
                m.next = "STATUS"
    with m.State("LOAD"):
        m.d.comb += control.load.valid.eq(1)
        with m.If(control.load.ready):
            m.d.sync += [
                waiting[name].eq(request[name])
                for name in ("layer", "entries", "exponent_k", "exponent_v")
            ]
            m.d.sync += waiting.valid.eq(1)
            m.next = "IDLE"
    with m.State("CODEBOOK"):
        serves = (
            (lambda book: book.valid)
            if not cache.scope_layers
            else (lambda book: book.valid & (book.layer == request.layer))
        )
        with m.If(serves(waiting)):
            with m.If(control.load_idle & ~control.loaded):
                m.d.sync += waiting.valid.eq(0)
            with m.Elif(control.load_idle & rests):
                m.d.comb += control.swap.eq(1)
                m.d.sync += [present.eq(waiting), waiting.valid.eq(0)]
        with m.Elif(serves(present)):
            m.next = "TOKENS"
        with m.Else():
            refuse(Status.NO_CODEBOOK)
