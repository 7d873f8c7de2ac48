"""One register in the forward path of a stream (docs/blocks/stream_register.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.block import Block
from hdl.ports import In, Out
from hdl.stream.payload import MAX_BITS, payload_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamRegisterConfig(Config):
    """Payload of StreamRegister."""

    width: int = bounded(32, 1, MAX_BITS, "bits of data")

    @property
    def layout(self):
        return payload_layout(self.width)


class StreamRegister(Block):
    """``o`` carries the words of ``i``, one cycle later; holds one word.

    Throughput 1 word per cycle. ``o.valid`` and ``o.payload`` come from registers;
    ``i.ready`` depends combinationally on ``o.ready``.
    """

    golden = "golden.stream.reference:identity"
    default = StreamRegisterConfig()
    configs: ClassVar = {"smallest": StreamRegisterConfig(width=1)}

    def __init__(self, config: StreamRegisterConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.layout), "Words in."),
                "o": Out(stream.Signature(config.layout), "The same words, one cycle later."),
            },
        )

    # A word leaves in the cycle after it came.
    timing = Timing(latency=1)

    def elaborate(self, platform) -> Module:
        m = Module()
        valid = Signal()
        word = Signal(self.config.layout, reset_less=True)  # valid qualifies it
        m.d.comb += [
            self.i.ready.eq(~valid | self.o.ready),
            self.o.valid.eq(valid),
            self.o.payload.eq(word),
        ]
        with m.If(self.i.ready):
            m.d.sync += valid.eq(self.i.valid)
        with m.If(self.i.ready & self.i.valid):
            m.d.sync += word.eq(self.i.payload)
        return m
