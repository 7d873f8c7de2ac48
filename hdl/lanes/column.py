"""What the columns of all lanes have in common: accumulator, held sum, chain."""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value

from golden.lanes.timing import column
from golden.timing import Timing
from hdl.bits import carry_save, let
from hdl.block import Block
from hdl.lanes.config import LaneConfig
from hdl.ports import In, Out

__all__ = ["LaneColumn", "registers"]


class LaneColumn(Block):
    """One output column: a subclass makes the terms of a beat, and this class adds them up.

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
        return column(self.config.stages)

    def terms(self, m: Module) -> tuple[list[Value], int]:
        """(terms of the beat in the last stage, a constant to add to them)."""
        raise NotImplementedError

    def aligned(self, m: Module, total: Value) -> Value:
        """The accumulator on the grid of the beat in the last stage."""
        return total

    def grid(self) -> Value | None:
        """The place of the grid of the beat in the last stage; None where there is one grid."""
        return None

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        total = Signal(config.held_layout, reset_less=True)
        terms, constant = self.terms(m)
        start = let(m, "start", Mux(self.first, 0, self.aligned(m, total.value)))
        modulus = 1 << config.sum_bits
        if constant:
            terms = [*terms, Value.cast(constant % modulus)]
        rows = carry_save(m, "total", [start.as_unsigned(), *terms], config.sum_bits)
        with m.If(self.add):
            m.d.sync += total.value.eq(sum(rows[1:], rows[0]))
            if (grid := self.grid()) is not None:
                m.d.sync += total.grid.eq(grid)

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
