"""Soft cap of a score: part of attention_stream."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux
from amaranth.lib import stream

from golden.attention.timing import CAP_STAGES
from golden.config import Config, bounded
from golden.fp16.format import FP16, FP32
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.divide import FpDivide, FpDivideConfig
from hdl.fp16.exp import FpExp, FpExpConfig
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.fp16.mul import FpMul, FpMulConfig
from hdl.kinds import BITS
from hdl.ports import In, Out, Payload

CAP_BITS = 2 * FP16.bits
CAP_TEXT = "c in bits 0..15, rne16(2 / c) in 16..31, FP16; c = 0: no cap"

_ONE = FP32.bias << FP32.frac_bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionCapConfig(Config):
    """Width of the sideband."""

    tag_bits: int = bounded(0, 0, 8, "bits that pass with a score; 0: no such field")


class AttentionCap(Block):
    """``y`` = c * tanh(s / c) of each score, c and f = rne16(2 / c) of ``cap``; c = 0: y = s.

        z = rne16(|s| * f);  e = exp32(-z)
        y = sign(s) * rne16(rne32(c - c * e) / rne32(1 + e))

    ``cap`` stays as it is while scores are within. Any words are legal. The error is that of
    golden.attention.caps.cap_scores: within 2**-10.5 * c. Rounding points: z, both sums, the
    quotient; e is exp before its rounding to FP16. Throughput one score per cycle; without a stall
    of ``o`` the latency is fixed. ``i.ready`` depends combinationally on ``o.ready``.
    Golden: golden.attention.caps.cap_scores.
    """

    tier = Tier.PART
    golden = "golden.attention.caps:cap_scores"
    default = AttentionCapConfig()
    configs: ClassVar = {"default": AttentionCapConfig(), "tagged": AttentionCapConfig(tag_bits=1)}
    timing = Timing(latency=sum(CAP_STAGES))

    def __init__(self, config: AttentionCapConfig):
        tag = {"tag": (config.tag_bits, "passes with the score", BITS)} if config.tag_bits else {}
        super().__init__(
            config,
            {
                "cap": In(CAP_BITS, CAP_TEXT, BITS),
                "i": In(stream.Signature(Payload(s=(16, "score, FP16", FP16), **tag)), "Scores."),
                "o": Out(
                    stream.Signature(Payload(y=(16, "capped score, FP16", FP16), **tag)),
                    "Capped scores, in order.",
                ),
            },
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        tag_bits = FP16.bits + self.config.tag_bits
        c, factor = self.cap[: FP16.bits], self.cap[FP16.bits :]
        product, power, total, quotient = CAP_STAGES
        z = add(m, "z", FpMul(FpMulConfig(stages=product, tag_bits=tag_bits)))
        e = add(m, "e", FpExp(FpExpConfig(o=FP32, stages=power, tag_bits=tag_bits)))
        above = FpFmaConfig(a=FP32, o=FP32, stages=total, tag_bits=tag_bits)
        above = add(m, "above", FpFma(above))
        below = add(m, "below", FpAdd(FpAddConfig(format=FP32, stages=total)))
        y = FpDivideConfig(a=FP32, b=FP32, stages=quotient, tag_bits=tag_bits)
        y = add(m, "y", FpDivide(y))
        chain = ((z, e), (e, above), (above, y))
        m.d.comb += [
            z.i.valid.eq(self.i.valid),
            self.i.ready.eq(z.i.ready),
            z.i.p.a.eq(self.i.p.s[: FP16.bits - 1]),
            z.i.p.b.eq(factor),
            z.i.p.tag.eq(self.i.p.as_value()),
            e.i.p.a.eq(z.o.p.y ^ FP16.sign_bit),
            above.i.p.a.eq(e.o.p.y),
            above.i.p.b.eq(c ^ FP16.sign_bit),
            above.i.p.c.eq(c),
            # It moves with ``above``, which has as many stages.
            below.i.valid.eq(e.o.valid),
            below.i.p.a.eq(e.o.p.y),
            below.i.p.b.eq(_ONE),
            below.o.ready.eq(y.i.ready),
            y.i.p.a.eq(above.o.p.y),
            y.i.p.b.eq(below.o.p.y),
            self.o.valid.eq(y.o.valid),
            y.o.ready.eq(self.o.ready),
        ]
        for source, sink in chain:
            m.d.comb += [
                sink.i.valid.eq(source.o.valid),
                source.o.ready.eq(sink.i.ready),
                sink.i.p.tag.eq(source.o.p.tag),
            ]
        score, rest = y.o.p.tag[: FP16.bits], y.o.p.tag[FP16.bits :]
        capped = Cat(y.o.p.y[:-1], y.o.p.y[-1] ^ score[-1])
        m.d.comb += self.o.p.y.eq(Mux(c == 0, score, capped))
        if self.config.tag_bits:
            m.d.comb += self.o.p.tag.eq(rest)
        return m
