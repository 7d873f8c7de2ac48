"""Scale words of a request's tokens to parameters."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.oaken.format import ScaleWord, Threshold
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import NUMBER
from hdl.oaken.dequant_scales import OakenDequantScales, OakenDequantScalesConfig
from hdl.oaken.layouts import SCALE, THRESHOLD_LAYOUT, THRESHOLDS
from hdl.paging.layouts import TOKEN_BITS
from hdl.ports import In, Out, Payload

PASSED = (  # words that go through as they are
    ("outer_low", Threshold.OUTER_LOW),
    ("outer_high", Threshold.OUTER_HIGH),
    ("middle_step", ScaleWord.MIDDLE_STEP),
    ("outer_low_step", ScaleWord.OUTER_LOW_STEP),
    ("outer_high_step", ScaleWord.OUTER_HIGH_STEP),
    ("inner_min", ScaleWord.INNER_MIN),
    ("inner_step", ScaleWord.INNER_STEP),
)
_PASSED_LAYOUT = Payload(
    **{
        name: (FP16.bits, f"{name.replace('_', ' ')} of the token, FP16", FP16)
        for name, _ in PASSED
    },
    error=(1, "the scale word was read with an error"),
    bad=(1, "the scale word has no error, and no encoder writes it"),
    last=(1, "last token of the request"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenTokenParametersConfig(Config):
    """Depth."""

    stages: int = bounded(4, 1, 16, "cycles from a token's scales to its parameters")

    @property
    def request_layout(self) -> data.StructLayout:
        return Payload(tokens=(TOKEN_BITS, "tokens of the request", NUMBER), thresholds=THRESHOLDS)

    @property
    def scale_layout(self) -> data.StructLayout:
        return Payload(scale=SCALE, error=(1, "the word was read with an error"))

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(**OakenDequantScalesConfig().results, **_PASSED_LAYOUT.parts)


class OakenTokenParameters(Block):
    """Gives per token of a request what dequantizers need: bases, zero code, steps, thresholds.

    A request takes ``tokens`` (1..) words of ``scale``. The middle group's ``base_low``,
    ``base_high`` and ``zero_code`` are those of ``OakenDequantScales``: bases are rounded to FP32,
    the zero code is exact. The other words pass as they are. ``error`` is the scale word's own.
    ``bad``: a word without an error that no encoder writes (NaN, infinity, a negative step, a
    positive minimum, -0). ``last``: the request's last token.

    1 token per cycle, also across requests; latency ``stages`` cycles from ``scale``. The request
    comes at least a cycle before its first scale word. ``scale.ready`` depends combinationally on
    ``o.ready``, and on no valid. ``request.ready`` also depends on ``scale.valid``.
    Source: Oaken, section 5. Golden: golden.oaken.dequantize.token_parameters.

        base_low, base_high  rne32(INNER_LOW + MIDDLE_MIN), rne32(INNER_HIGH + MIDDLE_MIN)
        zero_code            min(floor(-MIDDLE_MIN / MIDDLE_STEP) + 1, 15); 1 for a step of 0
    """

    tier = Tier.PART
    golden = "golden.oaken.dequantize:token_parameters"
    default = OakenTokenParametersConfig()
    configs: ClassVar = {"small": OakenTokenParametersConfig(stages=1)}

    def __init__(self, config: OakenTokenParametersConfig):
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout),
                    "Tokens of the request and the thresholds of all of them.",
                ),
                "scale": In(stream.Signature(config.scale_layout), "Scale words, one per token."),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Parameters, one word per token; last: of the request.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return Timing(latency=self.config.stages, start="scale", unit="token")

    def elaborate(self, platform) -> Module:
        m = Module()
        config = OakenDequantScalesConfig(stages=self.config.stages, tag_bits=_PASSED_LAYOUT.size)
        prepare = add(m, "prepare", OakenDequantScales(config))
        active = Signal()
        tokens_left = Signal(TOKEN_BITS, reset_less=True)
        thresholds = Signal(THRESHOLD_LAYOUT, reset_less=True)
        is_last_token = let(m, "is_last_token", tokens_left == 1)
        taken = let(m, "taken", self.scale.valid & self.scale.ready)
        free = let(m, "free", ~active | (taken & is_last_token))
        scale = self.scale.p.scale
        passed = data.View(_PASSED_LAYOUT, prepare.i.p.tag)
        m.d.comb += [
            self.request.ready.eq(free),
            prepare.i.valid.eq(active & self.scale.valid),
            self.scale.ready.eq(active & prepare.i.ready),
            prepare.i.p.scale.eq(scale),
            prepare.i.p.thresholds.eq(thresholds),
            passed.error.eq(self.scale.p.error),
            passed.bad.eq(~self.scale.p.error & _is_unsound(scale)),
            passed.last.eq(is_last_token),
        ]
        for name, which in PASSED:
            source = thresholds if isinstance(which, Threshold) else scale
            m.d.comb += passed[name].eq(source[which])
        with m.If(taken):
            m.d.sync += tokens_left.eq(tokens_left - 1)
        with m.If(free):
            m.d.sync += active.eq(self.request.valid)
            with m.If(self.request.valid):
                m.d.sync += [
                    tokens_left.eq(self.request.p.tokens),
                    thresholds.eq(self.request.p.thresholds),
                ]

        token = data.View(_PASSED_LAYOUT, prepare.o.p.tag)
        m.d.comb += [
            self.o.valid.eq(prepare.o.valid),
            prepare.o.ready.eq(self.o.ready),
            *(self.o.p[name].eq(prepare.o.p[name]) for name in config.results),
            *(self.o.p[name].eq(token[name]) for name in _PASSED_LAYOUT.members),
        ]
        return m


def _is_unsound(scale):
    """No encoder writes these six words (golden.oaken.quantize.scales_valid)."""
    found = []
    for which in ScaleWord:
        word = scale[which]
        is_minimum = which in (ScaleWord.MIDDLE_MIN, ScaleWord.INNER_MIN)
        found.append(word[FP16.frac_bits : -1].all())
        found.append((word[-1] != word[:-1].any()) if is_minimum else word[-1])
    return Cat(found).any()
