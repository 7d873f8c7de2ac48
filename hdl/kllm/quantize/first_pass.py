"""Rows of the first pass, to the trees or to the maximum."""

from amaranth import Module, Mux, Value
from amaranth.lib import stream

from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.outliers.orizuru import KllmOrizuruConfig
from hdl.kllm.quantize.payloads import (
    KllmQuantizePhaseConfig,
    first_pass_layout,
    integer_row_layout,
    live_elements,
    row_layout,
)
from hdl.ports import In, Out
from hdl.walk import Walk


class KllmFirstPass(Block):
    """Each row of ``row``, to ``integer`` or to ``x``, as the ``token`` that it belongs to says.

    ``last`` is set in the last row of a token. ``live`` are its elements within the length.

    Latency 0 cycles, throughput 1 row per cycle. ``row.ready`` depends combinationally on ``token``
    and on the ready of the output; each output on ``row`` and ``token``. No row
    is taken in the first cycle after reset. Nothing rounds.
    Golden: golden.kllm.quantizer_phases.first_pass.

    The block holds no row. It takes ``token`` with its last row, so the next token's first row
    follows in the next cycle.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:first_pass"
    default = KllmQuantizePhaseConfig()

    def __init__(self, config: KllmQuantizePhaseConfig):
        super().__init__(
            config,
            {
                "token": In(stream.Signature(first_pass_layout), "Tokens with a first pass."),
                "row": In(stream.Signature(row_layout), "Their rows."),
                "x": Out(stream.Signature(KllmOrizuruConfig().x_layout), "Rows for the trees."),
                "integer": Out(
                    stream.Signature(integer_row_layout), "Rows whose largest element is wanted."
                ),
            },
        )

    timing = Timing(latency=0, start="row", end="x or integer", unit="row")

    def elaborate(self, platform) -> Module:
        m, token = Module(), self.token.p
        walk = Walk(m, "walk", rows=token.rows)
        words = Value.cast(self.row.p.word)
        ready = Mux(token.integer, self.integer.ready, self.x.ready)
        m.d.comb += [
            self.row.ready.eq(self.token.valid & ~walk.done & ready),
            walk.step.eq(self.row.valid & self.row.ready),
            walk.start.eq(walk.done | self.token.ready),
            self.token.ready.eq(walk.step & walk.is_last),
            Value.cast(self.x.p.word).eq(words),
            self.x.p.last.eq(walk.is_last),
            Value.cast(self.integer.p.word).eq(words),
            self.integer.p.live.eq(live_elements(walk.is_last, token.tail)),
            self.integer.p.last.eq(walk.is_last),
        ]
        valid = self.row.valid & self.token.valid & ~walk.done
        m.d.comb += [
            self.x.valid.eq(valid & ~token.integer),
            self.integer.valid.eq(valid & token.integer),
        ]
        return m
