"""Rows of the second pass and their token's bounds."""

import dataclasses

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.index.format import CODEBOOK_BITS_MAX, CODEBOOK_BITS_MIN
from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, FieldOf, Tier
from hdl.fp16.compare import total_order_key
from hdl.kllm.quantize.payloads import (
    ALL,
    live_elements,
    row_layout,
    second_pass_layout,
    split_row_layout,
    up_to,
)
from hdl.ports import In, Out, Payload
from hdl.walk import Walk

_MAGNITUDE_BITS = FP16.bits - 1
_PLACE_BITS = (ROW_ELEMENTS - 1).bit_length()  # of an element within its row


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmRowCompareConfig(Config):
    """Words of a codebook."""

    bits_a: int = bounded(4, CODEBOOK_BITS_MIN, CODEBOOK_BITS_MAX, "bits of an activation index")

    @property
    def token_layout(self) -> Payload:
        return second_pass_layout

    @property
    def o_layout(self) -> Payload:
        return split_row_layout


class KllmRowCompare(Block):
    """``o`` = each row of ``row`` with its place in ``token``, and the mask of its outliers.

        beyond_e  an element within the length is beyond either bound, and no NaN
        bound     key of element > (largest) or < (smallest) key of bound
        with tie  or both keys are equal, and the element's position is not after (largest), or not
                  before (smallest) that of the bound

    ``key`` is the sign-magnitude integer with -0 below +0. ``nonfinite``: an element within the
    length is NaN or infinite. Of a codebook ``beyond`` marks the 2**bits_a centroids in row 0, and
    the 2**bits_a - 1 midpoints in row 1.

    Latency: row to o 1 cycle, token to its first row 1 cycle. Throughput 1 row per cycle, between
    tokens too. ``row.ready`` depends combinationally on ``o.ready``, ``token.ready`` also on
    ``row.valid``. Nothing rounds. Golden: golden.kllm.quantizer_phases.compare_row.

    The trees pop in the strict order of (key, -position). Their last pop distinguishes outliers
    from inliers (decision 0040).
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer_phases:compare_row"
    configs = FieldOf("kllm_quantizer", "compare", ("table1", "small"))

    def __init__(self, config: KllmRowCompareConfig):
        super().__init__(
            config,
            {
                "token": In(stream.Signature(config.token_layout), "Tokens of the second pass."),
                "row": In(stream.Signature(row_layout), "Their rows."),
                "o": Out(
                    stream.Signature(split_row_layout), "Rows with the mask of their outliers."
                ),
            },
        )

    timing = Timing(latency=1, start="row", unit="row")

    def elaborate(self, platform) -> Module:
        m = Module()
        now = Signal(second_pass_layout, reset_less=True)
        walk = Walk(m, "walk", rows=now.rows)
        row = walk.at.rows
        valid = Signal()
        free = Signal()
        take = let(m, "take", self.row.valid & self.row.ready)
        o = Signal(split_row_layout, reset_less=True)
        m.d.comb += [
            free.eq(~valid | self.o.ready),
            self.row.ready.eq(~walk.done & free),
            self.token.ready.eq(walk.done | (take & walk.is_last)),
            walk.start.eq(self.token.valid & self.token.ready),
            walk.step.eq(take),
            self.o.valid.eq(valid),
            self.o.payload.eq(o),
        ]
        with m.If(walk.start):
            m.d.sync += now.eq(self.token.payload)
        with m.If(free):
            m.d.sync += valid.eq(take)
        live = let(m, "live", live_elements(walk.is_last, now.tail))
        words = self.row.p.word
        largest = self._beyond(m, now.largest, row, greater=True)
        smallest = self._beyond(m, now.smallest, row, greater=False)
        is_nan = Cat(word[:_MAGNITUDE_BITS] > FP16.infinity for word in words)
        is_infinite = Cat(word[:_MAGNITUDE_BITS] >= FP16.infinity for word in words)
        with m.If(take):
            m.d.sync += [
                o.kind.eq(now.kind),
                o.row.eq(row),
                o.last.eq(walk.is_last),
                o.slot.eq(now.slot),
                o.norm.eq(now.norm),
                o.s.eq(now.s),
                o.live.eq(live),
                Value.cast(o.word).eq(Value.cast(words)),
                o.beyond.eq((largest | smallest) & live & ~is_nan),
                o.nonfinite.eq((is_infinite & live).any()),
            ]
            with m.If(now.kind == TokenKind.CODEBOOK):
                centroids = (1 << (1 << self.config.bits_a)) - 1
                m.d.sync += o.beyond.eq(Mux(row == 0, centroids, centroids >> 1))
        return m

    def _beyond(self, m: Module, bound, row: Value, *, greater: bool) -> Value:
        """Mask of the elements of this row beyond ``bound``."""
        name = "largest" if greater else "smallest"
        place, element = bound.position[_PLACE_BITS:], bound.position[:_PLACE_BITS]
        row_before, row_here = row < place, row == place
        # With equal keys a lower position is the larger one.
        if greater:
            within, sure = up_to(element), row_before
        else:
            within = (Const(ALL, ROW_ELEMENTS) << element)[:ROW_ELEMENTS]
            sure = ~row_before & ~row_here
        tie = let(
            m,
            f"{name}_tie",
            bound.tie.replicate(ROW_ELEMENTS)
            & (sure.replicate(ROW_ELEMENTS) | Mux(row_here, within, 0)),
        )
        flags = []
        for e in range(ROW_ELEMENTS):
            key = total_order_key(self.row.p.word[e])
            over = (key > bound.key) if greater else (key < bound.key)
            flag = bound.on & (over | (tie[e] & (key == bound.key)))
            flags.append(let(m, f"{name}_{e}", flag))
        return Cat(flags)
