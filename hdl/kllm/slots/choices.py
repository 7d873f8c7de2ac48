"""The choices that TOP_K has left of each place, for LOAD_AT."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.fp16.format import FP16
from golden.kllm.format import ID_BITS, KEY_ZERO
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.children import add
from hdl.kinds import NUMBER, index_of
from hdl.kllm.slots.draw import rank_layout
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload

_RANK_BITS = 8

# A choice that TOP_K leaves. Those of a place come one after the other, rank 0 last.
chosen_layout = Payload(
    place=(8, "place of the batch", index_of("places")),
    rank=(_RANK_BITS, "its rank, 0 the best", NUMBER),
    count=(_RANK_BITS, "choices of the place", NUMBER),
    element=(rank_layout, "the element: key and id"),
)

choice_layout = Payload(
    valid=(1, "there is a choice of this rank"),
    word=(FP16.bits, "its word, +0 of both zeros", FP16),
    id=(ID_BITS, "its id; all ones where no element was left", NUMBER),
)


def choices_out() -> dict:
    """The stream of what stays of each place."""
    return {
        "chosen": Out(stream.Signature(chosen_layout), "Choices of each place, the best one last.")
    }


def choice_reader() -> dict:
    """A reader of choices: ``choice`` is that of ``index`` and ``rank``, a cycle later."""
    return {
        "rank": Out(_RANK_BITS, "Rank of the choice that is looked at, of place index.", NUMBER),
        "choice": In(choice_layout, "That choice, a cycle later."),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmChoicesConfig(Config):
    """Places, and choices of each."""

    places: int = bounded(8, 1, 64, "places of the batch")
    experts: int = bounded(8, 1, 16, "most choices of a place")

    @property
    def rank_bits(self) -> int:
        """Bits of a rank."""
        return (self.experts - 1).bit_length()


class KllmChoices(Block):
    """Keeps the choices of each place: ``choice`` is that of place ``index`` and rank ``rank``.

    ``i`` has the elements of a place, the best one last. The place has ``count`` choices from the
    first of them on. No place has a choice after reset. A place beyond ``places`` has none, and
    elements of it are ignored, as are those of a rank beyond ``experts``. ``choice`` has no
    meaning where its element is being written.

    Latency: ``index`` and ``rank`` to ``choice`` 1 cycle, ``i`` to ``choice`` 2. Throughput: an
    element per cycle, a choice per cycle. Nothing rounds. Golden: golden.kllm.top_k.word_of.
    """

    tier = Tier.PART
    golden = "golden.kllm.top_k:word_of"
    default = KllmChoicesConfig()
    configs: ClassVar = {
        "default": KllmChoicesConfig(),
        "smallest": KllmChoicesConfig(places=1, experts=1),
        "odd": KllmChoicesConfig(places=5, experts=3),
    }

    def __init__(self, config: KllmChoicesConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(chosen_layout), "Elements that are choices from now on."),
                "index": In(8, "Place that is looked at.", index_of("places")),
                "rank": In(_RANK_BITS, "Rank that is looked at.", NUMBER),
                "choice": Out(choice_layout, "The choice, a cycle later."),
            },
        )

    timing = Timing(latency=1, start="index and rank", end="choice", unit="choice")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        depth = config.places << config.rank_bits
        ram = add(m, "elements", Memory1R1W(MemoryConfig(depth=depth, width=rank_layout.size)))
        counts = [
            Signal(range(config.experts + 1), name=f"count_{n}") for n in range(config.places)
        ]
        given = self.i.p
        is_here = Signal()
        m.d.comb += [
            self.i.ready.eq(1),
            is_here.eq((given.place < config.places) & (given.rank < config.experts)),
            ram.write_en.eq(self.i.valid & is_here),
            ram.write_addr.eq(Cat(given.rank[: config.rank_bits], given.place)),
            ram.write_data.eq(given.element.as_value()),
            ram.read_en.eq((self.index < config.places) & (self.rank < config.experts)),
            ram.read_addr.eq(Cat(self.rank[: config.rank_bits], self.index)),
        ]
        with m.If(self.i.valid & is_here):
            for place, count in enumerate(counts):
                with m.If(given.place == place):
                    m.d.sync += count.eq(given.count)
        found = Signal(rank_layout)
        above = found.key - KEY_ZERO
        m.d.comb += [
            found.as_value().eq(ram.read_data),
            self.choice.id.eq(~found.rest),
            self.choice.word.eq(Mux(found.key >= KEY_ZERO, above, FP16.sign_bit - above)),
        ]
        held = Array(counts)[self.index]
        m.d.sync += self.choice.valid.eq((self.index < config.places) & (self.rank < held))
        return m
