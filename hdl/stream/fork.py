"""One stream to several, each word to all (docs/blocks/stream_fork.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.block import Block
from hdl.children import PORTS_BITS, add
from hdl.ports import In, Out
from hdl.stream.link import StreamView
from hdl.stream.payload import MAX_BITS, payload_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamForkConfig(Config):
    """Payload and number of outputs of StreamFork."""

    width: int = 32  # bits of data, 1..65535, and outputs * (width + 2) below 2**20 - 8
    outputs: int = bounded(2, 1, 64, "streams that leave")

    def __post_init__(self) -> None:
        self._check_range("width", 1, min(MAX_BITS, (PORTS_BITS - 1) // self.outputs - 2))

    @property
    def layout(self):
        return payload_layout(self.width)


class StreamFork(Block):
    """Every output takes every word of ``i`` exactly once, each when it is ready.

    Throughput 1 word per cycle, latency 0. ``o_k.valid`` and ``o_k.payload`` depend
    combinationally on ``i`` and on no ``ready``. ``i.ready`` depends combinationally on every
    ``o_k.ready``. An output never waits for another within a word, so outputs that are joined
    again cannot deadlock. It may be one word ahead. Holds no word, only which outputs are done.
    """

    golden = "golden.stream.reference:fork"
    default = StreamForkConfig()
    configs: ClassVar = {
        "smallest": StreamForkConfig(width=1, outputs=1),
        "odd": StreamForkConfig(width=7, outputs=5),
    }

    def __init__(self, config: StreamForkConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.layout), "Words in."),
                "o": Out(stream.Signature(config.layout), "Every word of i, once.").array(
                    config.outputs
                ),
            },
        )
        # State that the proofs in tb/formal speak of.
        self.done = Signal(config.outputs)  # outputs that have taken the word now on i

    timing = Timing(latency=0, end="o_k")

    def elaborate(self, platform) -> Module:
        m = Module()
        outputs = self.o
        done = self.done
        served = Signal(len(outputs))  # done, counting this cycle
        m.d.comb += self.i.ready.eq(served.all())
        for k, o in enumerate(outputs):
            m.d.comb += [
                o.payload.eq(self.i.payload),
                o.valid.eq(self.i.valid & ~done[k]),
                served[k].eq(done[k] | o.ready),
            ]
        with m.If(self.i.valid):
            # done is served of a word that stays; the next word starts with none.
            for k in range(len(outputs)):
                m.d.sync += done[k].eq(served[k] & ~self.i.ready)
        return m


def fork(m: Module, name: str, source, outputs: int) -> list[StreamView]:
    """Add a StreamFork to ``m`` as ``name``: ``outputs`` streams with every word of ``source``.

    Each output has the payload of ``source`` itself. The block has the handshakes alone, so
    ``source`` may be of any width. ConfigError if ``outputs`` is not in 1..64.
    """
    block = add(m, name, StreamFork(StreamForkConfig(width=1, outputs=outputs)))
    m.d.comb += [block.i.valid.eq(source.valid), source.ready.eq(block.i.ready)]
    return [StreamView(source.payload, o.valid, o.ready) for o in block.o]
