"""The largest element of each integer token."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.fp16.format import FP16
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.kllm.quantize.payloads import (
    STATUS_BITS,
    KllmQuantizePhaseConfig,
    integer_row_layout,
    token_status_layout,
    word_layout,
)
from hdl.ports import In, Out

_MAGNITUDE_BITS = FP16.bits - 1


class KllmTokenMaximum(Block):
    """``largest`` = the largest magnitude of a token's live elements, as an FP16 word.

    Magnitudes are compared as integers. Nothing rounds.

        =================================================  =========
        an element that is live                            status
        =================================================  =========
        a NaN or an infinity                               NONFINITE
        a sign bit on anything but a zero                  NEGATIVE
        =================================================  =========

    ``status`` has the bits of all live elements. It follows the token's ``largest`` in order, and
    the next ``largest`` waits until it is taken.

    Latency: the last row to ``largest`` 2 cycles, ``largest`` to ``status`` 1 cycle. Throughput
    1 row per cycle. The next token's first row is taken after ``largest`` was. ``largest.valid``
    depends combinationally on ``status.ready``.
    Golden: golden.kllm.quantizer_phases.token_maximum.

    So the result has a meaning only if the status is 0.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:token_maximum"
    default = KllmQuantizePhaseConfig()

    def __init__(self, config: KllmQuantizePhaseConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(integer_row_layout), "Rows of tokens."),
                "largest": Out(stream.Signature(word_layout), "Largest magnitude of each token."),
                "status": Out(stream.Signature(token_status_layout), "Faults of each token."),
            },
        )

    timing = Timing(
        latency=2, start="i", end="largest", unit="row",
        delays=(("from largest to status", 1), ("from largest to the next row", 1)),
    )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        words = [
            let(m, f"word_{e}", Mux(self.i.p.live[e], self.i.p.word[e], 0))
            for e in range(ROW_ELEMENTS)
        ]
        magnitudes = [word[:_MAGNITUDE_BITS] for word in words]
        nonfinite = Cat(magnitude >= FP16.infinity for magnitude in magnitudes).any()
        negative = Cat(word[-1] & word[:_MAGNITUDE_BITS].any() for word in words).any()
        level = magnitudes
        while len(level) > 1:
            level = [
                let(m, f"larger_{len(level)}_{k}", Mux(a > b, a, b))
                for k, (a, b) in enumerate(zip(level[::2], level[1::2], strict=True))
            ]

        # A row, then the token so far.
        held = Signal()
        held_last = Signal(reset_less=True)
        complete = Signal()
        row_largest = Signal(_MAGNITUDE_BITS, reset_less=True)
        row_fault = Signal(STATUS_BITS, reset_less=True)
        largest = Signal(_MAGNITUDE_BITS)
        fault = Signal(STATUS_BITS)
        m.d.comb += self.i.ready.eq(~complete & ~(held & held_last))
        m.d.sync += [
            held.eq(self.i.valid & self.i.ready),
            held_last.eq(self.i.p.last),
            row_largest.eq(level[0]),
            row_fault.eq(
                Mux(nonfinite, int(CommandStatus.NONFINITE), 0)
                | Mux(negative, int(CommandStatus.NEGATIVE), 0)
            ),
        ]
        with m.If(held):
            m.d.sync += [
                largest.eq(Mux(row_largest > largest, row_largest, largest)),
                fault.eq(fault | row_fault),
                complete.eq(held_last),
            ]

        status = Signal(STATUS_BITS, reset_less=True)
        waits = Signal()  # a status is offered
        m.d.comb += [
            self.largest.valid.eq(complete & (~waits | self.status.ready)),
            self.largest.p.word.eq(largest),
            self.status.valid.eq(waits),
            self.status.p.status.eq(status),
        ]
        with m.If(self.largest.valid & self.largest.ready):
            m.d.sync += [status.eq(fault), waits.eq(1)]
            m.d.sync += [complete.eq(0), largest.eq(0), fault.eq(0)]
        with m.Elif(self.status.ready):
            m.d.sync += waits.eq(0)
        return m
