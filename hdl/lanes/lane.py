"""The structure that all lanes have in common: columns in step, a chain, one rounder."""

from collections.abc import Mapping

from amaranth import Const, Module
from amaranth.lib import stream

from golden.timing import Timing
from hdl.block import Block, Operations
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat
from hdl.lanes.column import LaneColumn
from hdl.lanes.config import LaneConfig
from hdl.lanes.steps import Steps, lane_steps, lane_timing
from hdl.ports import In, Out


class Lane(Block):
    """Packets of beats to sums of columns. A subclass names its column and connects its operands.

    Adding up a packet overlaps giving the sums of the last. A packet takes as many cycles as it has
    beats, and at least ``columns``. ``members``: of the subclass alone.
    """

    column: type[LaneColumn]

    def __init__(self, config: LaneConfig, members: Mapping | None = None):
        super().__init__(
            config,
            {
                "i": In(
                    stream.Signature(config.i_layout),
                    "Activations of one beat, and the weights of each column.",
                ),
                **(members or {}),
                "o": Out(stream.Signature(config.o_layout), "Sums, column by column."),
            },
        )

    @property
    def timing(self) -> Timing:
        return lane_timing(self.config.stages)

    @property
    def operations(self) -> Operations:
        return Operations("i", self.config.elements * self.config.columns, "MAC")

    def operands(self, m: Module, steps: Steps, columns: list) -> None:
        """Connect the operands of each column."""
        for c, column in enumerate(columns):
            m.d.comb += [column.a.eq(self.i.p.a), column.w.eq(self.i.p.w[c])]

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        columns = [add(m, f"column_{c}", self.column(config)) for c in range(config.columns)]
        rounder = add(m, "rounder", FixedToFloat(config.rounder_config))
        steps = lane_steps(
            m,
            config.stages,
            config.columns,
            valid=self.i.valid,
            last=self.i.p.last,
            taken=rounder.i.ready,
        )
        self.operands(m, steps, columns)
        following = Const(0, config.held_layout.size)
        for column in reversed(columns):
            m.d.comb += [
                column.enter.eq(steps.enter),
                column.add.eq(steps.add),
                column.first.eq(steps.first),
                column.load.eq(steps.load),
                column.shift.eq(steps.shift),
                column.chain.eq(following),
            ]
            following = column.held
        held = columns[0].held
        m.d.comb += [
            self.i.ready.eq(steps.ready),
            rounder.i.valid.eq(steps.offers),
            rounder.i.p.value.eq(held.value),
            self.o.valid.eq(rounder.o.valid),
            self.o.p.y.eq(rounder.o.p.y),
            rounder.o.ready.eq(self.o.ready),
        ]
        if len(config.grid_exponents) > 1:
            m.d.comb += rounder.i.p.grid.eq(held.grid)
        return m
