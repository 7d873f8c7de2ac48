"""Sparse bytes of a block without the zeros between them."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, choice, power_of_two
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.fp16.pipeline import Operator, OperatorConfig
from hdl.fp16.shift import shift_left
from hdl.kinds import BITS, mask_of
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenZeroRemoveConfig(Config):
    """Shape of beats and blocks."""

    lanes: int = power_of_two(16, 8, 64, "elements per beat, at most block")
    block: int = choice(64, (16, 32, 64), "elements that share a count byte")

    def __post_init__(self) -> None:
        if self.lanes > self.block:
            self._refuse("lanes", f"at most block = {self.block}")

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            byte=(data.ArrayLayout(8, self.lanes), "sparse entry of each element", BITS),
            keep=(self.lanes, "mask of the entries that count", mask_of("elements")),
            last=(1, "final beat of the block"),
            vector_last=(1, "final beat of the vector"),
        )

    @property
    def o_layout(self) -> data.StructLayout:
        return sparse_layout(self.block)


def sparse_layout(block: int) -> data.StructLayout:
    """A block's sparse bytes: count byte and entries, ``bytes`` of them; the others are 0."""
    return Payload(
        data=(data.ArrayLayout(8, block + 1), "count byte and entries, then zeros", BITS),
        bytes=(range(block + 2), "bytes in use, the count byte among them"),
        last=(1, "final block of the vector"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CompactConfig(OperatorConfig):
    lanes: int = 16

    @property
    def operands(self) -> dict:
        return {"bytes": 8 * self.lanes, "keep": self.lanes}

    @property
    def results(self) -> dict:
        return {"bytes": 8 * self.lanes, "count": range(self.lanes + 1)}


class _Compact(Operator):
    """The bytes kept, moved down to the first places, then zeros.

    A byte moves by the number of gaps below it, first by 1, then by 2, 4, ..: in that order no
    two meet.
    """

    def phases(self) -> list:
        lanes = self.config.lanes

        def gaps(m: Module, f: dict) -> dict:
            # Prefix sums in log2(lanes) levels.
            counts = [~f["keep"][lane] for lane in range(lanes)]
            reach = 1
            while reach < lanes:
                counts = [
                    let(m, f"gaps_{reach}_{lane}", counts[lane] + counts[lane - reach])
                    if lane >= reach
                    else counts[lane]
                    for lane in range(lanes)
                ]
                reach *= 2
            kept = [
                Mux(f["keep"][lane], f["bytes"][8 * lane : 8 * lane + 8], 0)
                for lane in range(lanes)
            ]
            # A byte that stays away has nothing to move.
            distances = [Mux(f["keep"][lane], counts[lane], 0) for lane in range(lanes)]
            out = {f"byte_{lane}": let(m, f"kept_{lane}", kept[lane]) for lane in range(lanes)}
            for lane in range(lanes):
                distance = Signal(range(lanes), name=f"distance_{lane}")
                m.d.comb += distance.eq(distances[lane])
                out[f"distance_{lane}"] = distance
            count = Signal(range(lanes + 1), name="count")
            m.d.comb += count.eq(lanes - counts[-1])
            return out | {"count": count}

        def move(m: Module, f: dict) -> dict:
            level = [(f[f"byte_{lane}"], f[f"distance_{lane}"]) for lane in range(lanes)]
            for k in range((lanes - 1).bit_length()):
                moved = []
                for lane in range(lanes):
                    byte, distance = level[lane]
                    stays = ~distance[k]
                    value = Mux(stays, Cat(byte, distance), 0)
                    if lane + (1 << k) < lanes:
                        above = level[lane + (1 << k)]
                        value = value | Mux(above[1][k], Cat(*above), 0)
                    value = let(m, f"moved_{k}_{lane}", value)
                    moved.append((value[:8], value[8:]))
                level = moved
            return {"bytes": Cat(*(byte for byte, _ in level)), "count": f["count"]}

        return [gaps, move]


class OakenZeroRemove(Block):
    """One word per block: a count byte, then the bytes kept, in order; the others are 0.

    ``byte`` of the lanes set in ``keep``, lane 0 first; ``bytes`` = 1 + their number. ``last`` of
    ``i`` ends a block after block/lanes beats, and ``vector_last`` with it is ``last`` of ``o``. A
    block must not keep more than ``block`` bytes. Throughput 1 beat per cycle, latency 3 cycles
    from a block's last beat to its word.
    Source: Oaken, section 5.2 (zero-remove shifter). Golden: golden.oaken.quantize.sparse_records.

    A byte moves down by the number of gaps below it. Moves by 1 come first, then 2, 4, and so on.
    For every pattern, two kept bytes never collide. After more than ``block`` bytes the count and
    the entries beyond are unspecified.
    """

    tier = Tier.PART
    golden = "golden.oaken.quantize:sparse_records"
    default = OakenZeroRemoveConfig()
    configs: ClassVar = {"small": OakenZeroRemoveConfig(lanes=8, block=16)}

    def __init__(self, config: OakenZeroRemoveConfig):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.i_layout),
                    "an entry per element and whether it is wanted",
                ),
                "o": Out(stream.Signature(config.o_layout), "count byte and entries of one block"),
            },
        )

    # From the last beat of a block to the block.
    timing = Timing(latency=3, unit="beat")

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        ends = data.StructLayout({"last": 1, "vector_last": 1})
        compact = add(
            m,
            "compact",
            _Compact(_CompactConfig(lanes=config.lanes, stages=2, tag_bits=ends.size)),
        )
        tag_i = data.View(ends, compact.i.p.tag)
        m.d.comb += [
            compact.i.valid.eq(self.i.valid),
            self.i.ready.eq(compact.i.ready),
            compact.i.p.bytes.eq(self.i.p.byte),
            compact.i.p.keep.eq(self.i.p.keep),
            tag_i.last.eq(self.i.p.last),
            tag_i.vector_last.eq(self.i.p.vector_last),
        ]

        count = Signal(range(config.block + 1))
        entries = Signal(8 * config.block, reset_less=True)
        tag_o = data.View(ends, compact.o.p.tag)
        placed = Signal(8 * config.block)
        new_count = Signal(range(config.block + 1))
        valid = Signal()
        word = Signal(config.o_layout, reset_less=True)
        # A full block has no byte to come: the top bit of count matters to nothing.
        wide = Cat(compact.o.p.bytes, Const(0, 8 * (config.block - config.lanes)))
        shifted = shift_left(m, wide, Cat(Const(0, 3), count[:-1]), "placed")
        m.d.comb += [
            placed.eq(Mux(count == 0, 0, entries) | shifted),
            new_count.eq(count + compact.o.p.count),
            compact.o.ready.eq(~tag_o.last | ~valid | self.o.ready),
            self.o.valid.eq(valid),
            self.o.payload.eq(word),
        ]
        with m.If(self.o.ready):
            m.d.sync += valid.eq(0)
        with m.If(compact.o.valid & compact.o.ready):
            m.d.sync += [count.eq(new_count), entries.eq(placed)]
            with m.If(tag_o.last):
                m.d.sync += [
                    count.eq(0),
                    valid.eq(1),
                    word.data.as_value().eq(Cat(new_count, Const(0, 8 - len(new_count)), placed)),
                    word.bytes.eq(new_count + 1),
                    word.last.eq(tag_o.vector_last),
                ]
        return m
