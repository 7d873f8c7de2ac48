"""Entries of several stages to the elements of vectors (docs/blocks/vq_dequantizer.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Const, Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, nested
from golden.fp16.format import FP16
from golden.index.format import GRID_PRODUCT_ROUNDED
from golden.timing import Timing
from golden.vqllm import timing
from golden.vqllm.config import (
    LATTICE_SHIFT_BIT,
    LATTICE_SIGN_BITS,
    NAMED,
    VqShape,
    lattice_step,
)
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.reducer import centroid_parts
from hdl.kinds import BITS
from hdl.ports import In, Out, Payload
from hdl.stream.payload import LAST
from hdl.vqllm.layouts import vectors_layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqDequantizerConfig(Config):
    """Shape of the codes, and how many vectors come at a time."""

    vq: VqShape = nested(VqShape)
    vectors: int = bounded(2, 1, 64, "side by side")

    def __post_init__(self) -> None:
        if not self.vq.summed:
            self._refuse("vq", "of 2..4 stages: an entry of one stage is the vector")

    @property
    def sum_bits(self) -> int:
        """A sum of entries on the grid 2**-24, each at most 2**24 in magnitude.

        A lattice's shifts, at most 2**20 and 2**18, leave it below 2**26.
        """
        return 26 + (self.vq.stages - 1).bit_length()

    @property
    def i_layout(self) -> data.StructLayout:
        vector = data.ArrayLayout(data.ArrayLayout(FP16.bits, self.vq.size), self.vq.stages)
        entries = data.ArrayLayout(vector, self.vectors)
        point = {}
        if self.vq.lattice:
            bits = data.ArrayLayout(self.vq.point_bits, self.vq.stages)
            text = "of each entry: signs of elements 0 to 6, shift"
            point["point"] = (data.ArrayLayout(bits, self.vectors), text, BITS)
        return Payload(entry=(entries, "entries of the codebooks", FP16), **point, last=LAST)

    @property
    def o_layout(self) -> data.StructLayout:
        return vectors_layout(self.vectors, self.vq.size)


class VqDequantizer(Block):
    """``word[v][i] = rne16(sum over stages z of entry[v][z][i])``, the sum exact.

    A lattice's entry is ``+-entry[v][z][i] +- 2**-(4 + 2 z)``. Bit i of ``point[v][z]`` changes the
    sign of element i, and an odd number of these bits that of element 7. Bit 7 adds what is
    subtracted otherwise.

    Entries are at most 1 in magnitude, others are illegal and not checked. A sum of 0 is +0. With
    one stage the entry is the vector, so an engine has no such block, unless it is a lattice's.

    A beat per cycle. Latency golden.vqllm.timing.dequantizer: sum, rounding. ``i.ready`` depends
    combinationally on ``o.ready``.
    Source: VQ-LLM, section II; the order of additions is decision 0200, the lattice 0201.
    Golden: golden.vqllm.matrix.summed, golden.vqllm.lattice.summed.
    """

    golden = "golden.vqllm.matrix:summed"
    reference = "tests/vqllm/test_matrix.py: test_dequantized_is_one_rounding_of_the_sum"
    default = VqDequantizerConfig()
    configs: ClassVar = {
        "aqlm3": VqDequantizerConfig(vq=NAMED["aqlm3"]),
        "quip4": VqDequantizerConfig(vq=NAMED["quip4"], vectors=4),
        "small": VqDequantizerConfig(vq=VqShape(size=2, stages=3)),
    }

    def __init__(self, config: VqDequantizerConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "Entries, stage by stage."),
                "o": Out(stream.Signature(config.o_layout), "Elements of the vectors."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.dequantizer()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        stages = config.vq.stages
        last = Signal()
        is_sum = Signal()
        sum_last = Signal(reset_less=True)
        move = Signal()
        with m.If(move):
            m.d.sync += [is_sum.eq(self.i.valid), sum_last.eq(self.i.p.last)]
        shape = FixedToFloatConfig(
            width=config.sum_bits, grid_exponents=(GRID_PRODUCT_ROUNDED,), o=FP16, stages=1
        )
        rounders = []
        for v in range(config.vectors):
            negative, shift = self._point(m, v)
            for k in range(config.vq.size):
                rounder = add(m, f"rounder_{v}_{k}", FixedToFloat(shape))
                total = Signal(signed(config.sum_bits), name=f"total_{v}_{k}", reset_less=True)
                entry = self.i.p.entry[v]
                terms = [_on_grid(entry[z][k], negative[z][k]) for z in range(stages)] + shift
                with m.If(move):
                    m.d.sync += total.eq(sum(terms[1:], terms[0]))
                m.d.comb += [
                    rounder.i.valid.eq(is_sum),
                    rounder.i.p.value.eq(total),
                    rounder.o.ready.eq(self.o.ready),
                    self.o.p.word[v][k].eq(rounder.o.p.y),
                ]
                rounders.append(rounder)
        first = rounders[0]  # all of them move together
        m.d.comb += [
            move.eq(~is_sum | first.i.ready),
            self.i.ready.eq(move),
            self.o.valid.eq(first.o.valid),
            self.o.p.last.eq(last),
        ]
        with m.If(is_sum & first.i.ready):
            m.d.sync += last.eq(sum_last)
        return m

    def _point(self, m: Module, v: int) -> tuple[list[list], list]:
        """[stage][element] whether a sign changes; what the shifts of all stages come to."""
        vq = self.config.vq
        if not vq.lattice:
            return [[Const(0, 1)] * vq.size] * vq.stages, []
        negative, shift = [], []
        for z in range(vq.stages):
            point = self.i.p.point[v][z]
            signs = point[:LATTICE_SIGN_BITS]
            negative.append([*signs, signs.xor()])
            step = 1 << lattice_step(z) - GRID_PRODUCT_ROUNDED
            shift.append(Mux(point[LATTICE_SHIFT_BIT], Const(step, signed(26)), -step))
        return negative, [let(m, f"shift_{v}", sum(shift[1:], shift[0]))]


def _on_grid(word, negative) -> Value:
    """The word as an integer of 26 bits on the grid 2**-24."""
    sign, significand, shift = centroid_parts(word)
    magnitude = (significand << shift)[:25]
    return Mux(sign ^ negative, -magnitude, magnitude)
