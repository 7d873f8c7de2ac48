"""Several words to one wide beat (docs/blocks/stream_widen.md)."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.block import Block
from hdl.kinds import Kind
from hdl.ports import In, Out, Payload
from hdl.stream.payload import LAST, MAX_BITS, payload_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamWidenConfig(Config):
    """Payload and ratio of StreamWiden; ``ratio`` need not be a power of two."""

    width: int = 8  # bits of one word, 1..65526 / ratio
    ratio: int = bounded(4, 1, 256, "words of one beat")

    def __post_init__(self) -> None:
        self._check_range("width", 1, (MAX_BITS - 9) // self.ratio)  # room for count

    @property
    def i_layout(self):
        return payload_layout(self.width)

    @property
    def o_layout(self):
        return Payload(
            data=(
                self.width * self.ratio,
                "words, the first in the low bits",
                Kind(name="bits", element_bits=self.width),
            ),
            count=(range(self.ratio + 1), "words in this beat, 1..ratio"),
            last=LAST,
        )


class StreamWiden(Block):
    """One beat of ``o`` for every ``ratio`` words of ``i``, first word in the low bits.

    A word with ``last`` ends its beat early: ``count`` words (1..ratio) are in it, the other bits
    of ``data`` are 0. Throughput 1 word per cycle; ``o.valid`` one cycle after the beat's final
    word. ``o`` comes from registers; ``i.ready`` depends combinationally on ``o.ready``. Holds
    one beat. Golden: ``golden.stream.reference.widen``.
    """

    golden = "golden.stream.reference:widen"
    reference = "tests/stream/test_stream.py: test_words_join_and_split_as_numpy_packs_them"
    default = StreamWidenConfig()
    configs: ClassVar = {
        "smallest": StreamWidenConfig(width=1, ratio=1),
        "odd": StreamWidenConfig(width=5, ratio=3),
    }

    def __init__(self, config: StreamWidenConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "Words in."),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Beats of ratio words; only a packet's last beat has a smaller count.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        """The cycles from a beat's last word to the beat; words come one per cycle."""
        return Timing(
            latency=1,
            interval=Fraction(self.config.ratio),
            unit="beat",
            start="a beat's last word on i",
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        width, ratio = self.config.width, self.config.ratio
        valid = Signal()
        last = Signal(reset_less=True)
        count = Signal(range(ratio + 1))  # words gathered
        words = [Signal(width, name=f"word_{k}", reset_less=True) for k in range(ratio)]
        place = Signal(range(ratio + 1))
        m.d.comb += [
            self.i.ready.eq(~valid | self.o.ready),
            self.o.valid.eq(valid),
            self.o.payload.count.eq(count),
            self.o.payload.last.eq(last),
            # A beat that is shown is complete: the next word begins another.
            place.eq(Mux(valid, 0, count)),
        ]
        for k, word in enumerate(words):
            m.d.comb += self.o.payload.data[k * width : (k + 1) * width].eq(word)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                valid.eq((place == ratio - 1) | self.i.payload.last),
                last.eq(self.i.payload.last),
                count.eq(place + 1),
            ]
            for k, word in enumerate(words):
                with m.If(place == k):
                    m.d.sync += word.eq(self.i.payload.data)
                with m.Elif(place == 0):
                    m.d.sync += word.eq(0)
        with m.Elif(valid & self.o.ready):
            m.d.sync += [valid.eq(0), count.eq(0)]
        return m
