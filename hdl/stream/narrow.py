"""One wide beat to several words (docs/blocks/stream_narrow.md)."""

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
class StreamNarrowConfig(Config):
    """Payload and ratio of StreamNarrow; ``ratio`` need not be a power of two."""

    width: int = 8  # bits of one word, 1..65526 / ratio
    ratio: int = bounded(4, 1, 256, "words of one beat")

    def __post_init__(self) -> None:
        self._check_range("width", 1, (MAX_BITS - 9) // self.ratio)  # room for count

    @property
    def i_layout(self):
        return Payload(
            data=(
                self.width * self.ratio,
                "words, the first in the low bits",
                Kind(name="bits", element_bits=self.width),
            ),
            count=(range(self.ratio + 1), "words in this beat, 1..ratio"),
            last=LAST,
        )

    @property
    def o_layout(self):
        return payload_layout(self.width)


class StreamNarrow(Block):
    """The ``count`` words of every beat of ``i``, low bits first; ``last`` on the final one.

    Throughput 1 word per cycle, latency 0: ``o`` depends combinationally on ``i``, and
    ``i.ready`` on ``o.ready`` and ``i.payload``. Holds no word, only the position within the
    beat. Golden: ``golden.stream.reference.narrow``.

    A ``count`` of 0 or above ``ratio`` is a fault of the source. ``bad_count`` is high while
    such a beat is offered, and it passes as ``ratio`` words.
    """

    golden = "golden.stream.reference:narrow"
    reference = "tests/stream/test_stream.py: test_words_join_and_split_as_numpy_packs_them"
    default = StreamNarrowConfig()
    configs: ClassVar = {
        "smallest": StreamNarrowConfig(width=1, ratio=1),
        "odd": StreamNarrowConfig(width=5, ratio=3),
    }

    def __init__(self, config: StreamNarrowConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "Beats of count words, 1..ratio."),
                "o": Out(stream.Signature(config.o_layout), "The words, low bits of a beat first."),
                "bad_count": Out(
                    1, "The beat on i has a count outside 1..ratio; it passes as ratio words."
                ),
            },
        )
        # State that the proofs in tb/formal speak of.
        # place: words of the beat on i already taken; at least 1 bit, Verilog has no zero width.
        self.place = Signal(range(max(2, config.ratio)))

    @property
    def timing(self) -> Timing:
        """The first word of a beat leaves in the cycle of i.valid; words leave one per cycle."""
        return Timing(latency=0, interval=Fraction(self.config.ratio), unit="beat", start="i.valid")

    def elaborate(self, platform) -> Module:
        m = Module()
        width, ratio = self.config.width, self.config.ratio
        place = self.place
        bad = Signal()
        final = Signal()
        count = Signal(range(ratio + 1))
        m.d.comb += bad.eq(self.i.payload.count == 0)
        if ratio + 1 < 1 << len(count):  # count can be above ratio at all
            with m.If(self.i.payload.count > ratio):
                m.d.comb += bad.eq(1)
        m.d.comb += [
            self.bad_count.eq(self.i.valid & bad),
            count.eq(Mux(bad, ratio, self.i.payload.count)),
            final.eq(place == count - 1),
            self.o.valid.eq(self.i.valid),
            self.o.payload.data.eq(self.i.payload.data.word_select(place, width)),
            self.o.payload.last.eq(self.i.payload.last & final),
            self.i.ready.eq(self.o.ready & final),
        ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += place.eq(Mux(final, 0, place + 1))
        return m
