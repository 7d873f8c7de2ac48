"""Scales of a finished output: fuse, scale, round."""

import dataclasses

from amaranth import Module, signed
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice
from golden.fp16.format import FP16, FP32
from golden.kllm.format import GRID_SPARSE
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.kinds import BITS
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmScalerConfig(Config):
    """Widths of the scaler."""

    sum_bits: int = bounded(72, 2, 96, "bits of the exact sparse sum")
    tag_bits: int = bounded(1, 1, 32, "sideband")
    stages: int = choice(
        3, (3, 6, 9, 12), "cycles of latency, as many for each of its three roundings"
    )

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            d=(FP32.bits, "dense sum, FP32", FP32),
            s=(signed(self.sum_bits), "exact sparse sum in units of 2**-48"),
            s_a=(FP16.bits, "scale of the token, FP16", FP16),
            s_b=(FP16.bits, "scale of the output channel, FP16", FP16),
            tag=(self.tag_bits, "passes unchanged with its word", BITS),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            y=(FP16.bits, "output, FP16", FP16),
            overflow=(1, "y is infinite though t and s_b are finite"),
            tag=(self.tag_bits, "passes unchanged with its word", BITS),
        )


class KllmScaler(Block):
    """``t = fma32(s_a, d, rne32(s * 2**-48));  y = rne16(t * s_b)``, rounded once each.

    d: FP32 word, the dense sum; s: exact sparse sum; s_a, s_b: FP16 words, the scales of token
    and output channel. ``overflow``: y is infinite though t and s_b are finite. Infinite and NaN
    operands follow IEEE 754-2019; NaN is 0x7E00. Throughput 1 word per cycle, latency ``stages``
    cycles; ``i.ready`` depends on ``o.ready`` combinationally.
    Source: KLLM, section III-D. Golden: golden.kllm.blocks.scale_outputs.

    One rounding of the exact value would give another y at ties of y. Golden rounds at the same
    places. An exact t of 0 from +0 sums is +0. Subnormal results are exact.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:scale_outputs"
    default = KllmScalerConfig()
    configs = FieldOf("kllm_pe_lane", "scaler_config", ("table1", "small"))

    def __init__(self, config: KllmScalerConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.i_layout),
                    "dense and sparse sums of one output with its scales",
                ),
                "o": Out(
                    stream.Signature(config.o_layout), "the output, and whether it overflowed"
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """``stages`` registers from the sums to the output."""
        return Timing(latency=self.config.stages)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        stages = config.stages // 3
        with_d = data.StructLayout(
            {"d": FP32.bits, "s_a": FP16.bits, "s_b": FP16.bits, "tag": config.tag_bits}
        )
        with_s_b = data.StructLayout({"s_b": FP16.bits, "tag": config.tag_bits})
        with_finite = data.StructLayout({"finite": 1, "tag": config.tag_bits})
        convert = add(
            m,
            "convert",
            FixedToFloat(
                FixedToFloatConfig(
                    width=config.sum_bits,
                    grid_exponents=(GRID_SPARSE,),
                    o=FP32,
                    stages=stages,
                    tag_bits=with_d.size,
                )
            ),
        )
        fuse = add(
            m,
            "fuse",
            FpFma(
                FpFmaConfig(a=FP16, b=FP32, c=FP32, o=FP32, stages=stages, tag_bits=with_s_b.size)
            ),
        )
        scale = add(
            m,
            "scale",
            FpMul(FpMulConfig(a=FP32, b=FP16, o=FP16, stages=stages, tag_bits=with_finite.size)),
        )

        carried = data.View(with_d, convert.i.p.tag)
        m.d.comb += [
            convert.i.valid.eq(self.i.valid),
            self.i.ready.eq(convert.i.ready),
            convert.i.p.value.eq(self.i.p.s),
            carried.d.eq(self.i.p.d),
            carried.s_a.eq(self.i.p.s_a),
            carried.s_b.eq(self.i.p.s_b),
            carried.tag.eq(self.i.p.tag),
        ]
        converted = data.View(with_d, convert.o.p.tag)
        carried = data.View(with_s_b, fuse.i.p.tag)
        m.d.comb += [
            fuse.i.valid.eq(convert.o.valid),
            convert.o.ready.eq(fuse.i.ready),
            fuse.i.p.a.eq(converted.s_a),
            fuse.i.p.b.eq(converted.d),
            fuse.i.p.c.eq(convert.o.p.y),
            carried.s_b.eq(converted.s_b),
            carried.tag.eq(converted.tag),
        ]
        fused = data.View(with_s_b, fuse.o.p.tag)
        carried = data.View(with_finite, scale.i.p.tag)
        m.d.comb += [
            scale.i.valid.eq(fuse.o.valid),
            fuse.o.ready.eq(scale.i.ready),
            scale.i.p.a.eq(fuse.o.p.y),
            scale.i.p.b.eq(fused.s_b),
            carried.finite.eq(~is_special(fuse.o.p.y, FP32) & ~is_special(fused.s_b, FP16)),
            carried.tag.eq(fused.tag),
        ]
        scaled = data.View(with_finite, scale.o.p.tag)
        m.d.comb += [
            self.o.valid.eq(scale.o.valid),
            scale.o.ready.eq(self.o.ready),
            self.o.p.y.eq(scale.o.p.y),
            self.o.p.overflow.eq(scaled.finite & is_special(scale.o.p.y, FP16)),
            self.o.p.tag.eq(scaled.tag),
        ]
        return m
