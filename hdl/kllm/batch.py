"""The batch: which token each place of a command has."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.kllm.format import FURTHEST
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import BITS, NUMBER, index_of, mask_of
from hdl.paging.layouts import TOKEN_BITS
from hdl.ports import In, Out, Payload

WORD_BITS = 32
_PLACE_BITS = 8
_VALID, _SAMPLES = 8, 9  # bits of the first word
_SEQUENCE = slice(16, 24)

entry_layout = Payload(
    valid=(1, "the place has a token"),
    sequence=(8, "number of its sequence", index_of("sequences")),
    position=(TOKEN_BITS, "its position in the sequence", NUMBER),
    token=(WORD_BITS, "its id", NUMBER),
)

_K_BITS = 7  # 1..64
_INVERSE = (FP16.bits, "inverse temperature: log2(e) / T", FP16)
_SEED = (WORD_BITS, "seed of its draws", BITS)

choice_layout = Payload(
    k=(_K_BITS, "largest logits of which one is drawn, 1: the largest", NUMBER),
    position=(TOKEN_BITS, "position in the sequence", NUMBER),
    inverse_temperature=_INVERSE,
    seed=_SEED,
)
_stored_choice = data.StructLayout({"k": _K_BITS, "inverse_temperature": FP16.bits, "seed": 32})


def chooser() -> dict:
    """A reader of the batch: ``choice`` is that of place ``chooses``, in the same cycle."""
    return {
        "chooses": Out(_PLACE_BITS, "Place of the batch that chooses.", index_of("places")),
        "choice": In(choice_layout, "How it does."),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmBatchConfig(Config):
    """Size of the batch, and who looks at it."""

    places: int = bounded(8, 1, 64, "places of the batch")
    readers: int = bounded(1, 1, 8, "entries that are looked up at the same time")
    top: int = bounded(1, 1, 64, "most logits of which a place draws; 1: no place draws")


def _chooser_members(top: int) -> dict:
    """The other side of ``chooser``."""
    if top == 1:
        return {}
    return {
        "chooses": In(_PLACE_BITS, "Place that chooses.", index_of("places")),
        "choice": Out(choice_layout, "How it does."),
    }


class KllmBatch(Block):
    """The table of the batch: ``entry_k`` is that of place ``index_k``.

    ``i`` has three words for a place, or five:

        word  bits
        0     the place in 0..7, whether it has a token in 8 and five words in 9, the sequence in
              16..23
        1     the position
        2     the id of the token
        3     k in 0..7, the inverse temperature in 16..31
        4     the seed

    A place changes with its last word. ``choice`` is that of place ``chooses``. Its k is
    1..``top``, and 1 where the place has three words or no token. With ``top`` of 1 there is no
    ``choice``, and words 3 and 4 change nothing.

    A place beyond ``places`` is ignored, and reads as one without a token. A position of 2**21 - 2
    or more reads as 2**21 - 2, which no token has. No
    place has a token after reset. Words are taken one per cycle. ``entry_k`` depends
    combinationally on ``index_k``. Golden: golden.kllm.engines.batch_table.
    """

    tier = Tier.PART
    golden = "golden.kllm.engines:batch_table"
    default = KllmBatchConfig()
    configs: ClassVar = {
        "default": KllmBatchConfig(),
        "smallest": KllmBatchConfig(places=1),
        "odd": KllmBatchConfig(places=13, readers=3, top=40),
    }

    def __init__(self, config: KllmBatchConfig):
        word = Payload(data=(WORD_BITS, "word of the batch", BITS))
        super().__init__(
            config,
            {
                "i": In(stream.Signature(word), "Words of the host, three or five for a place."),
                "index": In(
                    _PLACE_BITS, "Place that reader {0} looks at.", index_of("places")
                ).array(config.readers),
                "entry": Out(entry_layout, "That place, for reader {0}.").array(config.readers),
                **_chooser_members(config.top),
                "present": Out(config.places, "Places that have a token.", mask_of("places")),
            },
        )

    # From the last word to the entry.
    timing = Timing(latency=1, interval=Fraction(3), start="i", end="entry_k", unit="place")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        table = [
            Signal(entry_layout, name=f"entry_of_{place}", reset_less=True)
            for place in range(config.places)
        ]
        choices = [
            Signal(_stored_choice, name=f"choice_of_{place}", reset_less=True)
            for place in range(config.places if config.top > 1 else 0)
        ]
        given, is_last = _words(m, self.i, config.top)
        with m.If(is_last):
            for place, entry in enumerate(table):
                with m.If(given.first[:_PLACE_BITS] == place):
                    m.d.sync += [
                        self.present[place].eq(given.first[_VALID]),
                        entry.sequence.eq(given.first[_SEQUENCE]),
                        entry.position.eq(given.position),
                        entry.token.eq(given.token),
                    ]
                    if choices:
                        m.d.sync += choices[place].eq(given.choice)
        for index, found in zip(self.index, self.entry, strict=True):
            for place, entry in enumerate(table):
                with m.If(index == place):
                    m.d.comb += [
                        found.valid.eq(self.present[place]),
                        found.sequence.eq(entry.sequence),
                        found.position.eq(entry.position),
                        found.token.eq(entry.token),
                    ]
        if choices:
            m.d.comb += self.choice.k.eq(1)
        for place, held in enumerate(choices):
            with m.If(self.chooses == place):
                m.d.comb += [
                    self.choice.position.eq(table[place].position),
                    self.choice.inverse_temperature.eq(held.inverse_temperature),
                    self.choice.seed.eq(held.seed),
                ]
                with m.If(self.present[place]):
                    m.d.comb += self.choice.k.eq(held.k)
        return m


@dataclasses.dataclass(frozen=True)
class _Words:
    """The words of a place, when its last one is taken."""

    first: Signal
    position: Signal
    token: Value
    choice: Signal


def _words(m: Module, i, top: int) -> tuple[_Words, Signal]:
    """(words, whether the last one of a place is taken)."""
    count = Signal(range(5))
    first = Signal(_SEQUENCE.stop, reset_less=True)
    position = Signal(TOKEN_BITS, reset_less=True)
    token = Signal(WORD_BITS, reset_less=True)
    choice = Signal(_stored_choice, reset_less=True)
    is_last = Signal()
    word, has_choice = i.p.data, first[_SAMPLES]
    m.d.comb += [
        i.ready.eq(1),
        is_last.eq(i.valid & (count == Mux(has_choice, 4, 2))),
    ]
    with m.If(i.valid):
        m.d.sync += count.eq(Mux(is_last, 0, count + 1))
        with m.If(count == 0):
            m.d.sync += [first.eq(word), choice.k.eq(1)]
        with m.If(count == 1):
            m.d.sync += position.eq(Mux(word < FURTHEST, word, FURTHEST))
        with m.If(count == 2):
            m.d.sync += token.eq(word)
        with m.If(count == 3):
            wanted = word[:8]
            m.d.sync += [
                choice.k.eq(Mux(wanted > top, top, Mux(wanted == 0, 1, wanted))),
                choice.inverse_temperature.eq(word[16:]),
            ]
    complete = Signal(_stored_choice, name="complete_choice")
    m.d.comb += [
        complete.k.eq(choice.k),
        complete.inverse_temperature.eq(choice.inverse_temperature),
        complete.seed.eq(word),
    ]
    return _Words(first, position, Mux(has_choice, token, word), complete), is_last
