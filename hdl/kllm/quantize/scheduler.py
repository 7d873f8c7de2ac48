"""Tokens into the second pass, in order."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16, FP32
from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus, Norm
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.fp16.compare import total_order_key
from hdl.kllm.function.norm_stats import KllmNormStats, KllmNormStatsConfig
from hdl.kllm.quantize.payloads import (
    STATUS_BITS,
    KllmQuantizePhaseConfig,
    finish_layout,
    found_layout,
    row_request_layout,
    second_pass_layout,
    token_layout,
    token_status_layout,
    word_layout,
)
from hdl.ports import In, Out
from hdl.walk import Walk

_MAGNITUDE_BITS = FP16.bits - 1


class KllmTokenScheduler(Block):
    """Begins the second pass of each ``token`` when all that it needs is there.

        ===========  =============================================  ==========================
        kind         s                                              bounds of the outliers
        ===========  =============================================  ==========================
        ONLINE       of ``found``                                   of ``found``
        OFFLINE      the larger magnitude of ``upper``, ``lower``   beyond ``upper``, ``lower``
        INTEGER      ``scale``                                      none
        CODEBOOK     no meaning                                     none
        ===========  =============================================  ==========================

    Neither zero is beyond a threshold of zero. A token that is not dead takes what its kind needs:
    a word of ``found``, or one of ``scale`` and of ``fault``. The status of ``finish`` is the first
    of these that holds:

        ===========================================  ====================
        a K-Means token that touches a slot, and     CODEBOOK_MISSING;
        not ``codebook_ok``                          touches = 0
        the token is dead                            that of the token
        ONLINE and ``found.bad``                     NONFINITE
        INTEGER                                      that of ``fault``
        ===========================================  ====================

    A token with status 0 has a second pass: ``second`` and its rows. K-Means tokens give ``s`` to
    ``threshold``, and with a norm ``job``.

    Tokens share blocks in order. So a token waits until ``settled`` if it is a codebook, or if
    it changes between K-Means and INTEGER. So does the first token after a reset. A token that is
    dead and touches no slot does not wait, and does not count as the token before.

    Latency: token to finish 0 cycles, token to every other output 1 cycle. Throughput 1 request per
    cycle. The next token waits until all of these were taken. ``token.ready`` depends
    combinationally on ``finish.ready``. Nothing rounds.
    Golden: golden.kllm.quantizer_phases.schedule.

    Decision 0041 says why tokens stay in order.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:schedule"
    default = KllmQuantizePhaseConfig()

    def __init__(self, config: KllmQuantizePhaseConfig):
        super().__init__(
            config,
            {
                "token": In(stream.Signature(token_layout), "Tokens in order."),
                "found": In(
                    stream.Signature(found_layout), "What the trees found of each ONLINE token."
                ),
                "scale": In(stream.Signature(word_layout), "Scale of each INTEGER token."),
                "fault": In(stream.Signature(token_status_layout), "Faults of each INTEGER token."),
                "settled": In(1, "No token is in flight after the scheduler."),
                "codebook_ok": In(1, "A codebook is loaded."),
                "finish": Out(
                    stream.Signature(finish_layout),
                    "One word per token: what its descriptor and status begin with.",
                ),
                "second": Out(stream.Signature(second_pass_layout), "Tokens with a second pass."),
                "request": Out(
                    stream.Signature(row_request_layout),
                    "Rows of the vector memory wanted by the second pass.",
                ),
                "threshold": Out(stream.Signature(word_layout), "Scales of tokens to cluster."),
                "job": Out(
                    stream.Signature(KllmNormStatsConfig().job_layout),
                    "Tokens whose statistics are wanted.",
                ),
            },
        )

    timing = Timing(
        latency=0, start="token", end="finish", unit="request",
        delays=(("from token to its first request", 1),),
    )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        t, finish = self.token.p, self.finish.p
        is_online = let(m, "is_online", t.kind == TokenKind.ONLINE)
        is_integer = let(m, "is_integer", t.kind == TokenKind.INTEGER)
        is_kmeans = let(m, "is_kmeans", is_online | (t.kind == TokenKind.OFFLINE))

        # What the kind needs, and what comes of it.
        found = Signal()
        s = Signal(FP16.bits)
        status = Signal(STATUS_BITS)
        upper, lower = t.upper[:_MAGNITUDE_BITS], t.lower[:_MAGNITUDE_BITS]
        with m.If(is_online):
            m.d.comb += [
                found.eq(self.found.valid),
                s.eq(self.found.p.s),
                status.eq(Mux(self.found.p.bad, int(CommandStatus.NONFINITE), 0)),
            ]
        with m.Elif(is_integer):
            m.d.comb += [
                found.eq(self.scale.valid & self.fault.valid),
                s.eq(self.scale.p.word),
                status.eq(self.fault.p.status),
            ]
        with m.Else():
            m.d.comb += [found.eq(1), s.eq(Mux(upper > lower, upper, lower))]
        missing = let(m, "missing", is_kmeans & t.touches & ~self.codebook_ok)
        total = Signal(STATUS_BITS)
        with m.If(missing):
            m.d.comb += total.eq(int(CommandStatus.CODEBOOK_MISSING))
        with m.Elif(t.dead):
            m.d.comb += total.eq(t.status)
        with m.Else():
            m.d.comb += total.eq(status)

        # Another kind of token waits until all tokens before it have left.
        latest = Signal(TokenKind, init=TokenKind.CODEBOOK)  # which no token is like
        alike = (latest == TokenKind.INTEGER) == is_integer
        same = alike & (latest != TokenKind.CODEBOOK) & (t.kind != TokenKind.CODEBOOK)
        touched = let(m, "touched", t.touches | ~t.dead)
        pending = {each: Signal(name=f"{each}_pending") for each in ("second", "threshold", "job")}
        rows = Walk(m, "rows", rows=self.second.p.rows)
        busy = let(m, "busy", ~rows.done | Cat(*pending.values()).any())
        take = Signal()
        go = let(m, "go", ~t.dead & (total == 0))  # the token has a second pass
        norm = let(m, "norm", go & is_kmeans & (t.norm != Norm.NONE))
        m.d.comb += [
            self.finish.valid.eq(
                self.token.valid & (t.dead | found) & (same | self.settled | ~touched) & ~busy
            ),
            take.eq(self.finish.valid & self.finish.ready),
            self.token.ready.eq(take),
            self.found.ready.eq(take & is_online & ~t.dead),
            self.scale.ready.eq(take & is_integer & ~t.dead),
            self.fault.ready.eq(take & is_integer & ~t.dead),
            finish.status.eq(total),
            finish.kind.eq(t.kind),
            finish.rows.eq(go),
            finish.touches.eq(t.touches & ~missing),
            finish.end.eq(t.end),
            finish.norm.eq(norm),
            finish.slot.eq(t.slot),
            finish.length.eq(t.length),
            finish.s.eq(Mux(t.dead, 0, s)),
            rows.start.eq(take & go),
        ]
        wanted = {"second": go, "threshold": go & is_kmeans, "job": norm}
        for name, waits in pending.items():
            output = getattr(self, name)
            m.d.comb += output.valid.eq(waits)
            with m.If(take):
                m.d.sync += waits.eq(wanted[name])
            with m.Elif(output.ready):
                m.d.sync += waits.eq(0)
        with m.If(take & touched):
            m.d.sync += latest.eq(t.kind)
        self._outputs(m, take, s, norm, rows)
        return m

    def _outputs(self, m: Module, take: Signal, s: Signal, norm: Signal, rows: Walk) -> None:
        """Payloads of the token that was taken last."""
        t = self.token.p
        second = Signal(second_pass_layout, reset_less=True)
        row = Signal(16, reset_less=True)
        length = Signal.like(t.length, reset_less=True)
        epsilon = Signal(FP32.bits, reset_less=True)
        layer_norm = Signal(reset_less=True)
        with m.If(take):
            m.d.sync += [
                row.eq(t.row),
                length.eq(t.length),
                epsilon.eq(t.epsilon),
                layer_norm.eq(t.norm == Norm.LAYER),
                second.kind.eq(t.kind),
                second.rows.eq(t.rows),
                second.tail.eq((t.length - 1)[: (ROW_ELEMENTS - 1).bit_length()]),
                second.slot.eq(t.slot),
                second.norm.eq(norm),
                second.s.eq(s),
            ]
            # IEEE: neither zero is beyond a threshold of zero, whatever their signs.
            for side, word, zero in (("largest", t.upper, 0), ("smallest", t.lower, FP16.sign_bit)):
                bound = second[side]
                is_zero = ~word[:_MAGNITUDE_BITS].any()
                m.d.sync += bound.eq(self.found.p[side])
                with m.If(t.kind == TokenKind.OFFLINE):
                    m.d.sync += [
                        bound.on.eq(1),
                        bound.tie.eq(0),
                        bound.key.eq(total_order_key(Mux(is_zero, Const(zero, FP16.bits), word))),
                    ]
                with m.Elif(t.kind != TokenKind.ONLINE):
                    m.d.sync += bound.on.eq(0)
        m.d.comb += [
            self.second.payload.eq(second),
            self.request.valid.eq(~rows.done),
            rows.step.eq(self.request.ready),
            self.request.p.row.eq(row + rows.at.rows),
            self.threshold.p.word.eq(second.s),
            self.job.p.length.eq(length),
            self.job.p.s.eq(second.s),
            self.job.p.epsilon.eq(epsilon),
            self.job.p.layer_norm.eq(layer_norm),
            # OFFLINE the number is not known before the last row.
            self.job.p.outliers.eq(KllmNormStats.OUTLIERS_OF_MASK),
        ]
