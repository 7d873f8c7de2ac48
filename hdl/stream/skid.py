"""Registers in both directions of a stream (docs/blocks/stream_skid.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Mux, Shape, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, flag
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.ports import In, Out
from hdl.stream.link import StreamView
from hdl.stream.payload import MAX_BITS, payload_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamSkidBufferConfig(Config):
    """Payload of StreamSkidBuffer."""

    width: int = bounded(32, 1, MAX_BITS, "bits of data")
    last: bool = flag(True, "whether a word has last, which ends a packet")

    @property
    def layout(self):
        return payload_layout(self.width, self.last)


class StreamSkidBuffer(Block):
    """``o`` carries the words of ``i``, one cycle later; holds two words.

    Throughput 1 word per cycle. No combinational path in either direction: ``i.ready``,
    ``o.valid`` and ``o.payload`` come from registers.
    """

    name = "stream_skid"
    golden = "golden.stream.reference:identity"
    default = StreamSkidBufferConfig()
    configs: ClassVar = {"smallest": StreamSkidBufferConfig(width=1)}

    def __init__(self, config: StreamSkidBufferConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.layout), "Words in."),
                "o": Out(stream.Signature(config.layout), "The same words, one cycle later."),
            },
        )
        # State that the proofs in tb/formal speak of.
        self.skid_word = Signal(config.layout.size, reset_less=True)

    # A word leaves in the cycle after it came.
    timing = Timing(latency=1)

    def elaborate(self, platform) -> Module:
        m = Module()
        width = self.config.layout.size
        valid = Signal()
        skid_valid = Signal()
        word = Signal(width, reset_less=True)
        skid_word = self.skid_word
        m.d.comb += [
            self.i.ready.eq(~skid_valid),
            self.o.valid.eq(valid),
            self.o.payload.eq(word),
        ]
        with m.If(~valid | self.o.ready):
            # The output register is free: the skid word is older than the one on i.
            m.d.sync += [
                valid.eq(self.i.valid | skid_valid),
                word.eq(Mux(skid_valid, skid_word, self.i.payload.as_value())),
                skid_valid.eq(0),
            ]
        with m.Elif(self.i.valid & ~skid_valid):
            # i.ready promised a place before the stall was known.
            m.d.sync += [skid_valid.eq(1), skid_word.eq(self.i.payload)]
        return m


@dataclasses.dataclass(frozen=True)
class Skid:
    """The result of ``skid``: typed streams ``i`` and ``o``."""

    i: StreamView
    o: StreamView


def skid(m: Module, name: str, shape) -> Skid:
    """Add a StreamSkidBuffer for words of ``shape`` to ``m`` as ``name``.

    ``shape`` is a layout or a width in bits; the buffer has ``last`` only if ``shape`` has it.
    ConfigError if ``shape`` has no bits, or more than StreamSkidBuffer takes.
    """
    config = StreamSkidBufferConfig(width=Shape.cast(shape).width, last=False)
    block = add(m, name, StreamSkidBuffer(config))
    return Skid(
        StreamView.of(block.i.p.data, shape, block.i),
        StreamView.of(block.o.p.data, shape, block.o),
    )
