"""The batch: which token each place of a command has."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.kllm.format import FURTHEST
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import BITS, NUMBER, index_of, mask_of
from hdl.paging.layouts import TOKEN_BITS
from hdl.ports import In, Out, Payload

WORD_BITS = 32
_PLACE_BITS = 8
_VALID = 8  # bits of the first word
_SEQUENCE = slice(16, 24)

entry_layout = Payload(
    valid=(1, "the place has a token"),
    sequence=(8, "number of its sequence", index_of("sequences")),
    position=(TOKEN_BITS, "its position in the sequence", NUMBER),
    token=(WORD_BITS, "its id", NUMBER),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmBatchConfig(Config):
    """Size of the batch, and who looks at it."""

    places: int = bounded(8, 1, 64, "places of the batch")
    readers: int = bounded(1, 1, 8, "entries that are looked up at the same time")


class KllmBatch(Block):
    """The table of the batch: ``entry_k`` is that of place ``index_k``.

    ``i`` has three words for a place:

        word  bits
        0     the place in 0..7, whether it has a token in 8, the sequence in 16..23
        1     the position
        2     the id of the token

    A place changes with its third word. A place beyond ``places`` is ignored, and reads as one
    without a token. A position of 2**21 - 2 or more reads as 2**21 - 2, which no token has. No
    place has a token after reset. Words are taken one per cycle. ``entry_k`` depends
    combinationally on ``index_k``. Golden: golden.kllm.engines.batch_table.
    """

    tier = Tier.PART
    golden = "golden.kllm.engines:batch_table"
    default = KllmBatchConfig()
    configs: ClassVar = {
        "default": KllmBatchConfig(),
        "smallest": KllmBatchConfig(places=1),
        "odd": KllmBatchConfig(places=13, readers=3),
    }

    def __init__(self, config: KllmBatchConfig):
        word = Payload(data=(WORD_BITS, "word of the batch", BITS))
        super().__init__(
            config,
            {
                "i": In(stream.Signature(word), "Words of the host, three for a place."),
                "index": In(
                    _PLACE_BITS, "Place that reader {0} looks at.", index_of("places")
                ).array(config.readers),
                "entry": Out(entry_layout, "That place, for reader {0}.").array(config.readers),
                "present": Out(config.places, "Places that have a token.", mask_of("places")),
            },
        )

    # From the third word to the entry.
    timing = Timing(latency=1, interval=Fraction(3), start="i", end="entry_k", unit="place")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        table = [
            Signal(entry_layout, name=f"entry_of_{place}", reset_less=True)
            for place in range(config.places)
        ]
        count = Signal(range(3))
        first = Signal(_SEQUENCE.stop, reset_less=True)
        position = Signal(TOKEN_BITS, reset_less=True)
        word = self.i.p.data
        m.d.comb += self.i.ready.eq(1)
        with m.If(self.i.valid):
            m.d.sync += count.eq(Mux(count == 2, 0, count + 1))
            with m.If(count == 0):
                m.d.sync += first.eq(word)
            with m.If(count == 1):
                m.d.sync += position.eq(Mux(word < FURTHEST, word, FURTHEST))
            for place, entry in enumerate(table):
                with m.If((count == 2) & (first[:_PLACE_BITS] == place)):
                    m.d.sync += [
                        self.present[place].eq(first[_VALID]),
                        entry.sequence.eq(first[_SEQUENCE]),
                        entry.position.eq(position),
                        entry.token.eq(word),
                    ]
        for index, found in zip(self.index, self.entry, strict=True):
            for place, entry in enumerate(table):
                with m.If(index == place):
                    m.d.comb += [
                        found.valid.eq(self.present[place]),
                        found.sequence.eq(entry.sequence),
                        found.position.eq(entry.position),
                        found.token.eq(entry.token),
                    ]
        return m
