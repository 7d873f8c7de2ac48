"""The parts that columns of all lanes have in common: accumulator, held sum, chain."""

import dataclasses

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value

from golden.timing import Timing
from hdl.bits import carry_save, let
from hdl.block import Block
from hdl.lanes.config import LaneConfig
from hdl.ports import In, Out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beat:
    """The beat in the last stage, as the accumulator adds it: ``kept + sum of terms + constant``.

    kept : the accumulator, on the grid of this beat
    grid : the place of that grid; None where there is one
    """

    terms: list[Value]
    constant: int
    kept: Value
    grid: Value | None = None


class LaneColumn(Block):
    """One output column: a subclass makes the terms of a beat, and this class adds them.

    All columns of a lane take the same steps (hdl.lanes.steps). ``members`` are the operands.
    """

    def __init__(self, config: LaneConfig, members: dict):
        super().__init__(
            config,
            members
            | {
                "enter": In(config.stages, "Registers of each stage take a beat."),
                "add": In(1, "The accumulator adds the beat of the last stage."),
                "first": In(1, "With add: a packet begins."),
                "load": In(1, "held takes the accumulator."),
                "shift": In(1, "held takes chain."),
                "chain": In(config.held_layout, "held of the next column."),
                "held": Out(config.held_layout, "A finished sum."),
            },
        )

    @property
    def timing(self) -> Timing:
        """The cycles from a beat that enters stage 0 to its sum: stages, accumulator, ``held``."""
        return Timing(latency=self.config.stages + 2, start="a", end="held", unit="beat")

    def beat(self, m: Module, total: Value) -> "Beat":
        """The amount that the accumulator adds; ``total`` is its sum so far."""
        raise NotImplementedError

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        total = Signal(config.held_layout, reset_less=True)
        beat = self.beat(m, total.value)
        start = let(m, "start", Mux(self.first, 0, beat.kept).as_unsigned())
        constant = [Const(beat.constant, config.sum_bits)] if beat.constant else []
        rows = carry_save(m, "total", [start, *beat.terms, *constant], config.sum_bits)
        with m.If(self.add):
            m.d.sync += total.value.eq(sum(rows[1:], rows[0]))
            if beat.grid is not None:
                m.d.sync += total.grid.eq(beat.grid)

        held = Signal(config.held_layout, reset_less=True)
        m.d.comb += self.held.eq(held)
        with m.If(self.load):
            m.d.sync += held.eq(total)
        with m.Elif(self.shift):
            m.d.sync += held.eq(self.chain)
        return m


def registers(m: Module, name: str, terms: list[Value], enter: Value) -> list[Signal]:
    """The cut: a register per term."""
    held = []
    for n, term in enumerate(terms):
        register = Signal(len(term), name=f"{name}_{n}", reset_less=True)
        with m.If(enter):
            m.d.sync += register.eq(term)
        held.append(register)
    return held
