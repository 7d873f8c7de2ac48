"""A token's descriptor, a command's status."""

from fractions import Fraction

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.fp16.format import FP32
from golden.kllm.format import TokenKind
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.kllm.engine import SLOT_LENGTH_BITS, status_stream
from hdl.kllm.function.norm_finish import norm_result_layout
from hdl.kllm.quantize.payloads import (
    STATUS_BITS,
    KllmQuantizePhaseConfig,
    finish_layout,
    outlier_layout,
)
from hdl.kllm.slots.memory import descriptor_write_layout, slot_ends
from hdl.ports import In
from hdl.stream.queue import queue

_ONE = FP32.bias << FP32.frac_bits
TOKENS_IN_FLIGHT = 4  # tokens in the second pass, or waiting for their descriptor
_outcome_layout = data.StructLayout({"outliers": SLOT_LENGTH_BITS, "status": STATUS_BITS})


class KllmDescriptorWriter(Block):
    """Outliers to their slot. When all of a token is written, its descriptor, then the status.

    A word of ``finish`` with ``rows`` waits for the mark of its outliers. It waits for one
    ``token_done``, unless it is a codebook, and with ``norm`` for its word of ``norms``. One
    without ``rows`` waits for nothing.

        ==========  =====================================================================
        field       value
        ==========  =====================================================================
        valid       no bit of the token's status: that of ``finish``, and of its mark
        integer     kind is INTEGER
        outliers    position of the mark
        statistics  of ``norms`` with ``norm``, else 1.0 and +0
        ==========  =====================================================================

    A token that touches no slot has no descriptor. ``status`` follows the token with ``end``: the
    statuses of all tokens since the last one, together.

    Latency: finish to descriptor 1 cycle. Throughput 1 token per 2 cycles, and 1 cycle more for a
    status. At most TOKENS_IN_FLIGHT marks wait. ``finish`` is taken before its descriptor.
    ``outlier`` is combinational from ``i``. Nothing rounds.
    Golden: golden.kllm.quantizer_phases.descriptors.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:descriptors"
    default = KllmQuantizePhaseConfig()

    def __init__(self, config: KllmQuantizePhaseConfig):
        super().__init__(
            config,
            {
                "finish": In(
                    stream.Signature(finish_layout),
                    "What is known of each token before its second pass.",
                ),
                "i": In(
                    stream.Signature(outlier_layout),
                    "Outliers with their numbers; a mark after each token.",
                ),
                "token_done": In(1, "The entries of a token are written."),
                "norms": In(
                    stream.Signature(norm_result_layout), "Statistics of tokens with a norm."
                ),
                **slot_ends(),
                "status": status_stream(),
            },
        )

    timing = Timing(latency=1, interval=Fraction(2), start="finish", end="descriptor", unit="token")

    def elaborate(self, platform) -> Module:
        m = Module()
        outcomes = queue(m, "outcomes", _outcome_layout, TOKENS_IN_FLIGHT)
        is_mark = self.i.p.mark
        m.d.comb += [
            self.outlier.valid.eq(self.i.valid & ~is_mark),
            self.outlier.p.slot.eq(self.i.p.slot),
            self.outlier.p.position.eq(self.i.p.position),
            self.outlier.p.word.eq(self.i.p.word),
            outcomes.i.valid.eq(self.i.valid & is_mark),
            outcomes.i.p.outliers.eq(self.i.p.position),
            outcomes.i.p.status.eq(self.i.p.word),
            self.i.ready.eq(Mux(is_mark, outcomes.i.ready, self.outlier.ready)),
        ]
        f, outcome = self.finish.p, outcomes.o
        is_codebook = f.kind == TokenKind.CODEBOOK
        written = Signal(range(2 * TOKENS_IN_FLIGHT + 2))  # tokens whose entries are all taken
        entries_done = let(m, "entries_done", is_codebook | (written != 0))
        complete = let(
            m,
            "complete",
            ~f.rows | (outcome.valid & entries_done & (self.norms.valid | ~f.norm)),
        )
        status = let(m, "token_status", f.status | Mux(f.rows, outcome.p.status, 0))
        total = Signal(STATUS_BITS)
        end = Signal(reset_less=True)
        slot_word = Signal(descriptor_write_layout, reset_less=True)
        take = Signal()
        m.d.comb += [
            self.finish.ready.eq(take),
            outcome.ready.eq(take & f.rows),
            self.norms.ready.eq(take & f.norm),
            self.descriptor.payload.eq(slot_word),
            self.status.p.status.eq(total),
        ]
        m.d.sync += written.eq(written + self.token_done - (take & f.rows & ~is_codebook))
        with m.FSM():
            with m.State("WAIT"):
                descriptor = slot_word.descriptor
                m.d.sync += [
                    slot_word.slot.eq(f.slot),
                    descriptor.valid.eq(status == 0),
                    descriptor.integer.eq(f.kind == TokenKind.INTEGER),
                    descriptor.length.eq(f.length),
                    descriptor.outliers.eq(outcome.p.outliers),
                    descriptor.scale.eq(f.s),
                    descriptor.rms_reciprocal.eq(
                        Mux(f.norm, self.norms.p.rms_reciprocal, Const(_ONE, FP32.bits))
                    ),
                    descriptor.mean.eq(Mux(f.norm, self.norms.p.mean, 0)),
                    end.eq(f.end),
                ]
                with m.If(self.finish.valid & complete):
                    m.d.comb += take.eq(1)
                    m.d.sync += total.eq(total | status)
                    with m.If(f.touches):
                        m.next = "DESCRIPTOR"
                    with m.Elif(f.end):
                        m.next = "STATUS"
            with m.State("DESCRIPTOR"):
                m.d.comb += self.descriptor.valid.eq(1)
                with m.If(self.descriptor.ready):
                    m.next = "WAIT"
                    with m.If(end):
                        m.next = "STATUS"
            with m.State("STATUS"):
                m.d.comb += self.status.valid.eq(1)
                with m.If(self.status.ready):
                    m.d.sync += total.eq(0)
                    m.next = "WAIT"
        return m
