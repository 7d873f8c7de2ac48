"""Descriptors of consecutive slots (docs/blocks/kllm_descriptor_walk.md)."""

from typing import ClassVar

from amaranth import Module
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.kllm.timing import descriptor_walk
from golden.timing import Timing
from hdl.block import Block
from hdl.kllm.engine import descriptor_layout
from hdl.kllm.matmul.config import KllmMatmulPhaseConfig
from hdl.walk import Walk

__all__ = ["KllmDescriptorWalk"]


class KllmDescriptorWalk(Block):
    """``o`` = the descriptors of slots ``first .. first + tokens - 1``.

    The walk begins in the cycle after ``start``. ``first`` and ``tokens`` must not change until
    ``done``, and ``tokens`` is 1 or more. Requests run ahead of the answers.

    Latency: ``start`` to the first request 1 cycle, an answer to ``o`` 0 cycles, the last answer to
    ``done`` 1 cycle. Throughput 1 descriptor per cycle.
    Golden: golden.kllm.walks.walk_slots.

    Members
    -------
    start, first, tokens : In   one walk
    done : Out                  every descriptor was taken; 1 after reset
    slot, descriptor            read client of the slots
    o : Out(stream)             the descriptors
    """

    meaning: ClassVar[dict[str, str]] = {
        "start": "A walk begins.",
        "first": "First slot.",
        "tokens": "Slots of the walk.",
        "done": "Every descriptor was taken.",
        "slot": "Descriptors wanted.",
        "descriptor": "Those descriptors, in order.",
        "o": "The same descriptors.",
    }

    def __init__(self, config: KllmMatmulPhaseConfig):
        super().__init__(
            config,
            {
                "start": In(1),
                "first": In(8),
                "tokens": In(8),
                "done": Out(1),
                "slot": Out(stream.Signature(data.StructLayout({"slot": 8}))),
                "descriptor": In(stream.Signature(descriptor_layout)),
                "o": Out(stream.Signature(descriptor_layout)),
            },
        )

    @property
    def timing(self) -> Timing:
        return descriptor_walk()

    def elaborate(self, platform) -> Module:
        m = Module()
        asks = Walk(m, "asks", tokens=self.tokens)
        answers = Walk(m, "answers", tokens=self.tokens)
        m.d.comb += [
            asks.start.eq(self.start),
            answers.start.eq(self.start),
            self.slot.valid.eq(~asks.done),
            self.slot.p.slot.eq(self.first + asks.at.tokens),
            asks.step.eq(self.slot.valid & self.slot.ready),
            self.o.valid.eq(self.descriptor.valid & ~answers.done),
            self.o.p.eq(self.descriptor.p),
            self.descriptor.ready.eq(self.o.ready & ~answers.done),
            answers.step.eq(self.o.valid & self.o.ready),
            self.done.eq(answers.done),
        ]
        return m
