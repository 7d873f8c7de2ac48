"""Entries of all stages to the words of a row."""

from amaranth import Module, Mux, Signal, signed
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.index.format import GRID_PRODUCT_ROUNDED
from golden.qet.config import LIMIT
from golden.qet.format import RowFault
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.index.sums import grid_parts
from hdl.ports import In, Out
from hdl.qet.tile import VALUE_BITS, QetTileConfig


def beat_layout(config: QetTileConfig) -> data.StructLayout:
    """Entries as stored, by stage and column of the tile, and the ranges of the stages."""
    columns = data.ArrayLayout(config.shape.element_bits, config.shape.columns)
    stages = len(config.stages)
    ranges = {}
    if config.has_ranges:
        ranges = {
            "low": data.ArrayLayout(signed(VALUE_BITS), stages),
            "step": data.ArrayLayout(config.shape.step_bits, stages),
        }
    return data.StructLayout(
        {"entry": data.ArrayLayout(columns, stages), **ranges, "fault": len(RowFault), "last": 1}
    )


class QetDequantizer(Block):
    """``word[c] = rne16(2**-24 * sum over stages of E)``, ``E = low + step * entry``, or its word.

    A beat per cycle: products, sum, rounding.
    """

    def __init__(self, config: QetTileConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(beat_layout(config)), "Entries."),
                "o": Out(stream.Signature(config.decoded_layout), "Words."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        stages = len(config.stages)
        bits = VALUE_BITS + (stages - 1).bit_length()
        flags = data.StructLayout({"fault": len(RowFault), "last": 1})
        held = [Signal(flags, name=f"held_{k}", reset_less=True) for k in range(3)]
        full = [Signal(name=f"full_{k}") for k in range(2)]
        moves = [Signal(name=f"moves_{k}") for k in range(3)]

        low = Signal(signed(bits), reset_less=True)
        if config.has_ranges:
            with m.If(moves[0]):
                m.d.sync += low.eq(sum(self.i.p.low[1:], self.i.p.low[0]))
        shape = FixedToFloatConfig(
            width=bits, grid_exponents=(GRID_PRODUCT_ROUNDED,), o=FP16, stages=1
        )
        rounders = []
        for c in range(config.shape.columns):
            products = [self._product(m, moves[0], z, c) for z in range(stages)]
            total = Signal(signed(bits), name=f"total_{c}", reset_less=True)
            with m.If(moves[1]):
                m.d.sync += total.eq(sum(products, low))
            rounder = add(m, f"rounder_{c}", FixedToFloat(shape))
            m.d.comb += [
                rounder.i.valid.eq(full[1]),
                rounder.i.p.value.eq(total),
                rounder.o.ready.eq(self.o.ready),
                self.o.p.word[c].eq(Mux(held[2].fault.any(), FP16.canonical_nan, rounder.o.p.y)),
            ]
            rounders.append(rounder)
        first = rounders[0]  # all of them move together
        m.d.comb += [
            moves[2].eq(first.i.ready),
            moves[1].eq(~full[1] | moves[2]),
            moves[0].eq(~full[0] | moves[1]),
            self.i.ready.eq(moves[0]),
            self.o.valid.eq(first.o.valid),
            self.o.p.fault.eq(held[2].fault),
            self.o.p.last.eq(held[2].last),
        ]
        given = [self.i.valid, *full]
        for k, now in enumerate((self.i.p, *held[:2])):
            with m.If(moves[k]):
                if k < 2:
                    m.d.sync += full[k].eq(given[k])
            with m.If(moves[k] & given[k]):
                m.d.sync += [held[k].fault.eq(now.fault), held[k].last.eq(now.last)]
        return m

    def _product(self, m: Module, moves, z: int, c: int) -> Signal:
        """``step * entry`` of stage z and column c, or a word on the grid, a cycle later."""
        product = Signal(signed(VALUE_BITS + 1), name=f"product_{z}_{c}", reset_less=True)
        word = self.i.p.entry[z][c]
        value = self.i.p.step[z] * word if self.config.has_ranges else on_grid(m, f"{z}_{c}", word)
        with m.If(moves):
            m.d.sync += product.eq(value)
        return product


def on_grid(m: Module, name: str, word) -> Value:
    """An FP16 word of at most 2 as an integer of VALUE_BITS bits on the grid 2**-24."""
    sign, significand, shift = grid_parts(Value.cast(word))
    size = let(m, f"size_{name}", (significand << shift[:4])[: VALUE_BITS - 1])
    largest = let(m, f"largest_{name}", Mux(shift[4], LIMIT, size))
    return Mux(sign, -largest, largest)
