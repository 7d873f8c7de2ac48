"""One read port of the data memory for several readers."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.slots.load_at import data_layout, read_layout
from hdl.ports import In, Out
from hdl.stream.arbiter import arbiter
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmReadShareConfig(Config):
    """Width of an address, and who reads."""

    address_bits: int = bounded(40, 32, 64, "bits of a byte address of the data memory")
    readers: int = bounded(2, 2, 8, "readers")
    ahead: int = bounded(4, 2, 64, "reads requested and not complete")


class KllmReadShare(Block):
    """``read`` has the reads of all readers in turn; the words of each go to ``o_k``, in order.

    A word that its reader does not take holds up the words of the others. So a reader asks only
    for words that it takes without waiting for another reader. One word per cycle; no cycle is
    lost from one read to the next. ``i_k.ready`` depends combinationally on ``read.ready`` and on
    every ``i_k.valid``; ``o_k`` on ``data``. Golden: golden.axi.reference.read_words.
    """

    tier = Tier.PART
    golden = "golden.axi.reference:read_words"
    default = KllmReadShareConfig()
    configs: ClassVar = {
        "default": KllmReadShareConfig(),
        "odd": KllmReadShareConfig(address_bits=33, readers=3, ahead=2),
    }

    def __init__(self, config: KllmReadShareConfig):
        reads, words = (
            stream.Signature(layout) for layout in (read_layout(config.address_bits), data_layout)
        )
        super().__init__(
            config,
            {
                "i": In(reads, "Rows that reader {0} wants.").array(config.readers),
                "o": Out(words, "Those rows, in order; reader {0}.").array(config.readers),
                "read": Out(reads, "Rows wanted of the data memory: byte address and number."),
                "data": In(words, "Those rows, in order."),
            },
        )

    timing = Timing(latency=0, start="i_k", end="read", unit="row of data", words=(("data", 1),))

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        reads = arbiter(m, "reads", read_layout(config.address_bits), config.readers)
        # The reader of each read in flight.
        owners = queue(m, "owners", reads.source.shape(), config.ahead)
        moves = Signal()
        m.d.comb += [
            self.read.valid.eq(reads.o.valid & owners.i.ready),
            self.read.p.eq(reads.o.p),
            moves.eq(self.read.valid & self.read.ready),
            reads.o.ready.eq(self.read.ready & owners.i.ready),
            owners.i.valid.eq(moves),
            owners.i.p.eq(reads.source),
            owners.o.ready.eq(self.data.valid & self.data.ready & self.data.p.last),
        ]
        for k, (wanted, given) in enumerate(zip(self.i, self.o, strict=True)):
            is_owner = Signal(name=f"is_owner_{k}")
            m.d.comb += [
                reads.i[k].valid.eq(wanted.valid),
                reads.i[k].p.eq(wanted.p),
                wanted.ready.eq(reads.i[k].ready),
                is_owner.eq(owners.o.valid & (owners.o.p == k)),
                given.p.eq(self.data.p),
                given.valid.eq(self.data.valid & is_owner),
            ]
            with m.If(is_owner):
                m.d.comb += self.data.ready.eq(given.ready)
        return m
