"""Tokens of a command, and what their first pass reads."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.outliers.orizuru import KllmOrizuruConfig
from hdl.kllm.quantize.payloads import (
    KllmQuantizePhaseConfig,
    first_pass_layout,
    quantize_job_layout,
    row_request_layout,
    token_layout,
)
from hdl.ports import In, Out
from hdl.walk import Walk


class KllmTokenWalk(Block):
    """Every token of ``job`` in order; of a token with a first pass also the rows that it reads.

        token t         row = src + t * stride, slot = slot + t, the other fields as the job's
        first, tree     one word each per token with a first pass; tree if it is ONLINE
        request         rows src + t * stride + r, r < rows, when all of these were taken

    ONLINE and INTEGER tokens have a first pass unless they are ``dead``.

    Latency: job to token 0 cycles, token to its first request 1 cycle. Throughput 1 token per
    cycle; a first pass adds 1 cycle per row. A job is taken with its last token or request. No job
    is taken in the first cycle after reset. ``job.ready`` depends combinationally on the ready of
    every output. Golden: golden.kllm.quantizer_phases.walk_tokens.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:walk_tokens"
    default = KllmQuantizePhaseConfig()

    def __init__(self, config: KllmQuantizePhaseConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(quantize_job_layout), "Commands, decoded."),
                "token": Out(stream.Signature(token_layout), "Their tokens."),
                "first": Out(
                    stream.Signature(first_pass_layout),
                    "Tokens with a first pass: what their rows are.",
                ),
                "tree": Out(
                    stream.Signature(KllmOrizuruConfig().job_layout),
                    "Tokens whose outliers the trees find.",
                ),
                "request": Out(
                    stream.Signature(row_request_layout),
                    "Rows of the vector memory wanted by the first pass.",
                ),
            },
        )

    # Tokens without a first pass; a first pass adds a cycle per row.
    timing = Timing(
        latency=0, start="job, as offered,", end="token", unit="token",
        delays=(("from token to its first request", 1),),
    )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m, job = Module(), self.job.p
        is_online, is_integer = job.kind == TokenKind.ONLINE, job.kind == TokenKind.INTEGER
        reads = Signal()
        walk = Walk(m, "walk", tokens=job.tokens, rows=Mux(reads, job.rows, 1))
        offset = Signal(16)  # of the token's first row
        row = Signal(16)
        begins = Signal()  # the token is offered
        m.d.comb += [
            reads.eq((is_online | is_integer) & ~job.dead),
            # Without a job the counts may have any value: no step follows.
            walk.start.eq(walk.done | self.job.ready),
            row.eq(job.src + offset),
            self.job.ready.eq(walk.step & walk.is_last),
            *(
                self.token.p[name].eq(job[name])
                for name in token_layout.members
                if name in job.shape().members
            ),
            self.token.p.row.eq(row),
            self.token.p.slot.eq(job.slot + walk.at.tokens),
            self.token.p.end.eq(walk.last.tokens),
            self.first.p.integer.eq(is_integer),
            self.first.p.rows.eq(job.rows),
            self.first.p.tail.eq((job.length - 1)[: (ROW_ELEMENTS - 1).bit_length()]),
            self.tree.p.length.eq(job.length),
            self.tree.p.k_max.eq(job.k_max),
            self.tree.p.k_min.eq(job.k_min),
            self.request.p.row.eq(row + walk.at.rows),
        ]
        # Each of the three takes a token once, in any order.
        wanted = (1, reads, reads & is_online)
        outputs = (self.token, self.first, self.tree)
        given = Signal(len(outputs))
        served = Signal(len(outputs))
        for k, (output, is_wanted) in enumerate(zip(outputs, wanted, strict=True)):
            m.d.comb += [
                output.valid.eq(begins & is_wanted & ~given[k]),
                served[k].eq(~Cat(is_wanted) | given[k] | output.ready),
            ]
        with m.FSM():
            with m.State("TOKEN"):
                m.d.comb += begins.eq(self.job.valid & ~walk.done)
                with m.If(begins):
                    m.d.sync += given.eq(served)
                    with m.If(served.all()):
                        m.d.sync += given.eq(0)
                        m.d.comb += walk.step.eq(~reads)
                        with m.If(reads):
                            m.next = "ROWS"
            with m.State("ROWS"):
                m.d.comb += [self.request.valid.eq(1), walk.step.eq(self.request.ready)]
                with m.If(walk.step & walk.last.rows):
                    m.next = "TOKEN"
        with m.If(walk.start):
            m.d.sync += offset.eq(0)
        with m.Elif(walk.step & walk.wraps.rows):
            m.d.sync += offset.eq(offset + job.stride)
        return m
