"""The host's requests to the cache as words of 32 bits."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Cat, Module, Signal
from amaranth.lib import stream

from golden.config import Config
from golden.kllm.format import NO_OP
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import BITS
from hdl.oaken.layouts import KV_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT, TOKEN_BITS
from hdl.ports import In, Out, Payload

_WORDS = 4
_OP_BITS = KV_REQUEST_LAYOUT["op"].width


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmCacheHostConfig(Config):
    """The words of a request are the same for each cache."""


class KllmCacheHost(Block):
    """Four words of ``word`` are a request, and a status is a word of ``answer``.

        word    bits
        0       op in 0..7, tag in 8..15, sequence in 16..23, layer in 24..31
        1       token in 0..20, 1 for V in 31
        2, 3    thresholds, two FP16 words each, the first in the low half
        answer  tag in 0..7, golden.paging.format.Status in 8..11, sequence in 16..23

    An op above 15, and bits 21 to 30 of word 1 that are not 0, become op 15: the cache refuses it.
    The host has no READ, so ``head`` and ``heads`` are 0. A request takes a cycle after its last
    word. ``answer`` depends combinationally on ``status``. Golden: golden.kllm.engines.request_of.
    """

    tier = Tier.PART
    golden = "golden.kllm.engines:request_of"
    default = KllmCacheHostConfig()
    configs: ClassVar = {"default": KllmCacheHostConfig()}

    def __init__(self, config: KllmCacheHostConfig):
        word = Payload(data=(32, "register word", BITS))
        super().__init__(
            config,
            {
                "word": In(stream.Signature(word), "Words of requests."),
                "request": Out(stream.Signature(KV_REQUEST_LAYOUT), "The requests."),
                "status": In(stream.Signature(STATUS_LAYOUT), "How they ended."),
                "answer": Out(stream.Signature(word), "The same for the host."),
            },
        )

    timing = Timing(
        latency=1, interval=Fraction(_WORDS + 1), start="word", end="request", unit="request"
    )

    def elaborate(self, platform) -> Module:
        m = Module()
        count = Signal(range(_WORDS))
        full = Signal()
        words = [Signal(32, name=f"word_{n}", reset_less=True) for n in range(_WORDS)]
        first, second, third, fourth = words
        request, status = self.request.p, self.status.p
        is_wide = Signal()
        m.d.comb += [
            self.word.ready.eq(~full),
            self.request.valid.eq(full),
            is_wide.eq(first[_OP_BITS:8].any() | second[TOKEN_BITS:31].any()),
            request.op.eq(first[:_OP_BITS]),
            request.tag.eq(first[8:16]),
            request.sequence.eq(first[16:24]),
            request.layer.eq(first[24:]),
            request.token.eq(second[:TOKEN_BITS]),
            request.kv.eq(second[31]),
            request.thresholds.eq(Cat(third, fourth)),
            self.answer.valid.eq(self.status.valid),
            self.answer.p.data[:8].eq(status.tag),
            self.answer.p.data[8:12].eq(status.status),
            self.answer.p.data[16:24].eq(status.sequence),
            self.status.ready.eq(self.answer.ready),
        ]
        with m.If(is_wide):
            m.d.comb += request.op.eq(NO_OP)
        with m.If(self.word.valid & self.word.ready):
            m.d.sync += [count.eq(count + 1), full.eq(count == _WORDS - 1)]
            for n, word in enumerate(words):
                with m.If(count == n):
                    m.d.sync += word.eq(self.word.p.data)
        with m.If(self.request.valid & self.request.ready):
            m.d.sync += full.eq(0)
        return m
