"""Concatenate activation and weight indices."""

import dataclasses

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kinds import BITS, NUMBER, index_of, mask_of
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmConcatConfig(Config):
    """Shape of one beat."""

    value_bits: int = bounded(4, 2, 32, "bits of an activation index, or of the value in its place")
    bits_b: int = bounded(4, 2, 4, "bits of a weight index")
    elements: int = bounded(16, 1, 16, "elements of the reduction axis per beat")
    columns: int = bounded(32, 1, 64, "output columns per beat")
    tag_bits: int = bounded(0, 0, 64, "sideband carried with the activations")

    @property
    def pair_bits(self) -> int:
        return self.value_bits + self.bits_b

    def _with_common(self, **parts) -> Payload:
        parts |= {
            "inlier": (self.elements, "mask of the elements that count", mask_of("elements")),
            "last": (1, "final beat of the packet"),
        }
        if self.tag_bits:
            parts["tag"] = (self.tag_bits, "passes unchanged with its beat", BITS)
        return Payload(**parts)

    @property
    def a_layout(self) -> data.StructLayout:
        return self._with_common(
            value=(
                data.ArrayLayout(self.value_bits, self.elements),
                "index or value of each element",
                NUMBER,
            )
        )

    @property
    def w_layout(self) -> data.StructLayout:
        column = data.ArrayLayout(self.bits_b, self.elements)
        return Payload(
            index=(
                data.ArrayLayout(column, self.columns),
                "weight index of each column and element",
                index_of("weight centroids"),
            )
        )

    @property
    def o_layout(self) -> data.StructLayout:
        column = data.ArrayLayout(self.pair_bits, self.elements)
        return self._with_common(
            pair=(
                data.ArrayLayout(column, self.columns),
                "value above weight index, for each column and element",
                index_of("bins"),
            )
        )


class KllmConcat(Block):
    """``o.pair[c][e] = i_a.value[e] << bits_b | i_w.index[c][e]`` for every column and element.

    One beat of each input makes one beat out: columns x elements pairs. Latency 1 cycle,
    throughput 1 beat per cycle. ``ready`` of both inputs depends on ``o.ready`` and on the
    ``valid`` of the other input. ``inlier``, ``last`` and ``tag`` of i_a go along unchanged.

    The activations are the same for every column, so the registers hold them once. They have
    elements x (value_bits + columns x bits_b) bits and not columns x elements x pair_bits.
    Concatenation itself is wiring. Source: KLLM, section IV-A. Golden:
    golden.kllm.blocks.concatenate.

    The paper's Concat unit of 8 flip-flops is one column and one element. ``value`` is an
    activation index or an integer (score x V). The block checks nothing and has no faults.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:concatenate"
    default = KllmConcatConfig()
    configs = FieldOf("kllm_pe_lane", "concat_config", ("table1", "small"))

    def __init__(self, config: KllmConcatConfig):
        super().__init__(
            config,
            {
                "i_a": In(
                    stream.Signature(config.a_layout),
                    "activation indices of one beat, the same for every column",
                ),
                "i_w": In(
                    stream.Signature(config.w_layout),
                    "weight indices of one beat, column by column",
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "concatenated indices: activation above weight",
                ),
            },
        )

    # A beat of pairs leaves in the cycle after both of its inputs came.
    timing = Timing(latency=1, start="i_a", unit="beat")

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        held_a = Signal(config.a_layout, reset_less=True)
        held_w = Signal(config.w_layout, reset_less=True)

        free = ~self.o.valid | self.o.ready
        m.d.comb += [
            self.i_a.ready.eq(free & self.i_w.valid),
            self.i_w.ready.eq(free & self.i_a.valid),
        ]
        with m.If(free):
            m.d.sync += self.o.valid.eq(self.i_a.valid & self.i_w.valid)
            m.d.sync += [held_a.eq(self.i_a.p), held_w.eq(self.i_w.p)]

        pairs = Cat(
            Cat(held_w.index[c][e], held_a.value[e])
            for c in range(config.columns)
            for e in range(config.elements)
        )
        m.d.comb += self.o.p.pair.as_value().eq(pairs)
        m.d.comb += [self.o.p.inlier.eq(held_a.inlier), self.o.p.last.eq(held_a.last)]
        if config.tag_bits:
            m.d.comb += self.o.p.tag.eq(held_a.tag)
        return m
