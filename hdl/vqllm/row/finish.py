"""Exact sums of rows to FP16 (docs/blocks/vq_row_finish.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Const, Module, Mux
from amaranth.lib import data, stream

from golden.config import Config, flag
from golden.fp16.format import FP16, FP32
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN
from golden.timing import Timing
from golden.vqllm import timing
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.ports import In, Out, Payload
from hdl.stream.payload import LAST
from hdl.stream.queue import queue
from hdl.vqllm.row.config import SMALL_SUMS, SumsConfig, VqRowSumsConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqRowFinishConfig(Config):
    """Size of the sums, and whether rows have scales."""

    sums: SumsConfig = dataclasses.field(default_factory=VqRowSumsConfig)
    scaled: bool = flag(False, "each row has an FP16 scale")

    def __post_init__(self) -> None:
        if not isinstance(self.sums, SumsConfig):
            self._refuse("sums", "a VqRowSumsConfig")
        if self.sums.sum_bits > 96:
            self._refuse("sums", "of at most 96 bits")

    @property
    def has_exponent(self) -> bool:
        """Whether the sums lack the scale of the codebooks."""
        return len(self.sums.grids) > 1

    @property
    def scale_layout(self) -> data.StructLayout:
        return Payload(word=(FP16.bits, "scale of the row", FP16))

    @property
    def y_layout(self) -> data.StructLayout:
        words = data.ArrayLayout(FP16.bits, self.sums.batch)
        return Payload(word=(words, "result of each vector", FP16), last=LAST)


class VqRowFinish(Block):
    """``y = rne16(2**exponent * S)``, or ``rne16(scale * rne32(2**exponent * S))`` if scaled.

    Results of vectors with ``bad`` are NaN (0x7E00). ``scale`` gives a word per row. With groups it
    holds for all sums up to ``row_end``. ``exponent`` stays as it is while sums are under way. Sums
    of tables include it.

    A group of a row per cycle. Latency golden.vqllm.timing.row_finish. ``sum.ready`` depends
    combinationally on ``y.ready`` and, if scaled, on ``scale.valid``.
    Source: VQ-LLM, section II; decision 0200. Golden: golden.vqllm.product.rounded.
    """

    golden = "golden.vqllm.product:rounded"
    reference = "tests/vqllm/test_product.py: test_by_dequantizing"
    default = VqRowFinishConfig()
    configs: ClassVar = {
        "scaled": VqRowFinishConfig(scaled=True),
        "small": VqRowFinishConfig(sums=SMALL_SUMS, scaled=True),
    }

    def __init__(self, config: VqRowFinishConfig):
        exponents = range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1)
        exponent = {"exponent": In(exponents, "scale of the codebooks")}
        scale = {"scale": In(stream.Signature(config.scale_layout), "Scales, row by row.")}
        super().__init__(
            config,
            {
                "sum": In(stream.Signature(config.sums.sum_layout), "Sums, row by row."),
                **(scale if config.scaled else {}),
                **(exponent if config.has_exponent else {}),
                "y": Out(stream.Signature(config.y_layout), "Results, row by row."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.row_finish(self.config.scaled)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        shape = FixedToFloatConfig(
            width=config.sums.sum_bits,
            grid_exponents=config.sums.grids,
            o=FP32 if config.scaled else FP16,
            stages=timing.ROW_ROUNDING,
        )
        product = FpMulConfig(a=FP32, b=FP16, o=FP16, stages=timing.ROW_SCALING)
        flags = data.StructLayout({"bad": config.sums.batch, "last": 1})
        kept = queue(m, "kept", flags, self.timing.latency + 1)
        # All vectors move together, so the first one speaks for them.
        takes = self.sum.valid & self.sum.ready
        rounders, ends = [], []
        for b in range(config.sums.batch):
            rounder = add(m, f"rounder_{b}", FixedToFloat(shape))
            m.d.comb += [
                rounder.i.valid.eq(self.sum.valid & kept.i.ready),
                rounder.i.p.value.eq(self.sum.p.value[b]),
            ]
            if config.has_exponent:
                m.d.comb += rounder.i.p.grid.eq(self.exponent - SCALE_EXPONENT_MIN)
            rounders.append(rounder)
            end = rounder
            if config.scaled:
                end = add(m, f"scaler_{b}", FpMul(product))
                m.d.comb += [
                    end.i.valid.eq(rounder.o.valid & self.scale.valid),
                    end.i.p.a.eq(rounder.o.p.y),
                    end.i.p.b.eq(self.scale.p.word),
                    rounder.o.ready.eq(end.i.ready & self.scale.valid),
                ]
            ends.append(end)
            word = Mux(kept.o.p.bad[b], FP16.canonical_nan, end.o.p.y)
            m.d.comb += [end.o.ready.eq(self.y.ready), self.y.p.word[b].eq(word)]
        if config.scaled:
            moves = rounders[0].o.valid & ends[0].i.ready
            row_end = Const(1)
            if config.sums.has_groups:
                row_ends = queue(m, "row_ends", 1, timing.ROW_ROUNDING + 1)
                row_end = row_ends.o.p
                m.d.comb += [
                    row_ends.i.valid.eq(takes),
                    row_ends.i.p.eq(self.sum.p.row_end),
                    row_ends.o.ready.eq(moves & self.scale.valid),
                ]
            m.d.comb += self.scale.ready.eq(moves & row_end)
        m.d.comb += [
            self.sum.ready.eq(rounders[0].i.ready & kept.i.ready),
            kept.i.valid.eq(takes),
            kept.i.p.bad.eq(self.sum.p.bad),
            kept.i.p.last.eq(self.sum.p.last),
            self.y.valid.eq(ends[0].o.valid),
            self.y.p.last.eq(kept.o.p.last),
            kept.o.ready.eq(self.y.valid & self.y.ready),
        ]
        return m
