"""Descriptors of consecutive slots."""

from amaranth import Module
from amaranth.lib import stream

from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import NUMBER, index_of
from hdl.kllm.engine import descriptor_layout
from hdl.kllm.matmul.config import FIRST_REQUEST, KllmMatmulPhaseConfig
from hdl.ports import In, Out, Payload
from hdl.walk import Walk


class KllmDescriptorWalk(Block):
    """``o`` = the descriptors of slots ``first .. first + tokens - 1``.

    The walk begins in the cycle after ``start``. ``first`` and ``tokens`` must not change until
    ``done``, and ``tokens`` is 1 or more. Requests run ahead of the answers.

    Latency: ``start`` to the first request 1 cycle, an answer to ``o`` 0 cycles, the last answer to
    ``done`` 1 cycle. Throughput 1 descriptor per cycle.
    Golden: golden.kllm.walks.walk_slots.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:walk_slots"
    default = KllmMatmulPhaseConfig()

    def __init__(self, config: KllmMatmulPhaseConfig):
        super().__init__(
            config,
            {
                "start": In(1, "A walk begins."),
                "first": In(8, "First slot.", index_of("slots")),
                "tokens": In(8, "Slots of the walk.", NUMBER),
                "done": Out(1, "Every descriptor was taken."),
                "slot": Out(
                    stream.Signature(Payload(slot=(8, "number of the slot", index_of("slots")))),
                    "Descriptors wanted.",
                ),
                "descriptor": In(
                    stream.Signature(descriptor_layout), "Those descriptors, in order."
                ),
                "o": Out(stream.Signature(descriptor_layout), "The same descriptors."),
            },
        )

    # The memory's latency is not included.
    timing = Timing(
        latency=0,
        start="descriptor",
        unit="descriptor",
        delays=(FIRST_REQUEST, ("from the last descriptor to done", 1)),
    )

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
