"""Several streams to one, word by word (docs/blocks/stream_join.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Signal
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.block import Block
from hdl.ports import In, Out
from hdl.stream.payload import MAX_BITS, payload_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamJoinConfig(Config):
    """Payload and number of inputs of StreamJoin."""

    width: int = 32  # bits of data of one input, 1..65535 / inputs
    inputs: int = bounded(2, 1, 64, "streams that come in")

    def __post_init__(self) -> None:
        self._check_range("width", 1, MAX_BITS // self.inputs)

    @property
    def i_layout(self):
        return payload_layout(self.width)

    @property
    def o_layout(self):
        return payload_layout(self.width * self.inputs)


class StreamJoin(Block):
    """``o.data`` is the concatenation of one word of every input, ``i_0`` in the low bits.

    Throughput 1 word per cycle, latency 0. ``o.valid`` is the AND of all ``i_k.valid`` and does
    not depend on ``o.ready``. Every ``i_k.ready`` depends combinationally on ``o.ready`` and on
    all ``i_k.valid``. Holds no word.

    ``o.last`` is high when any input's ``last`` is. Packets that do not end together are a
    fault of the sources: ``mismatch`` is high while such a word is offered, and the word passes.
    """

    golden = "golden.stream.reference:join"
    reference = "tests/stream/test_stream.py: test_words_join_and_split_as_numpy_packs_them"
    default = StreamJoinConfig()
    configs: ClassVar = {
        "smallest": StreamJoinConfig(width=1, inputs=1),
        "odd": StreamJoinConfig(width=7, inputs=3),
    }

    def __init__(self, config: StreamJoinConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.i_layout),
                    tuple(
                        f"Words of slice {k}, {config.width} bits from bit {k * config.width}."
                        for k in range(config.inputs)
                    ),
                ).array(config.inputs),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "One word of every input, i_0 in the low bits.",
                ),
                "mismatch": Out(1, "The word on o joins a last with a word that is not."),
            },
        )

    timing = Timing(latency=0, start="the last i_k")

    def elaborate(self, platform) -> Module:
        m = Module()
        inputs = self.i
        last = Signal(len(inputs))
        m.d.comb += [
            last.eq(Cat(i.payload.last for i in inputs)),
            self.o.payload.data.eq(Cat(i.payload.data for i in inputs)),
            self.o.payload.last.eq(last.any()),
            self.o.valid.eq(Cat(i.valid for i in inputs).all()),
            self.mismatch.eq(self.o.valid & last.any() & ~last.all()),
        ]
        for i in inputs:
            m.d.comb += i.ready.eq(self.o.valid & self.o.ready)
        return m
