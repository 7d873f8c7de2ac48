"""The dense path of a selecting lane: rows to sums."""

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import stream

from golden.fp16.format import FP32
from golden.timing import Timing
from hdl.block import Block, Operations, Tier
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.kllm.lane.config import SELECTING, KllmPeLaneConfig
from hdl.kllm.lane.select_column import KllmSelectColumn
from hdl.lanes.steps import lane_steps, lane_timing
from hdl.ports import In, Out

_STAGES = 1  # registers before the accumulators: those of a column's tree


class KllmLaneSelect(Block):
    """``D[c] = sum over beats, elements e of row[e][index[c][e]] * 2**(bits_a * digit)``: rne32.

    ``row`` has a word for each element and weight index (KllmRowLookup), ``digit`` is the place of
    a digit of integers. Words are integers on the grid of ``product``: 2**-24 with ``rounded``,
    else golden.kllm.format.product_grid, or integer_grid where ``is_integer``. The sum is exact.
    Its rounding to FP32, to nearest even, is the only one. At most ``k_max`` elements of a packet
    have rows that are not zero (not checked). The parent changes ``is_integer`` only while no
    packet is inside.

    A packet of beats gives ``columns`` words, column 0 first. A second register in each column
    holds the finished sums, and the registers are a chain that moves one column per word. Adding
    up a packet overlaps giving the last. ``i.ready`` depends combinationally on ``o.ready``.

    One beat per cycle. Latency 4 cycles from the beat with ``last`` to column 0: tree, sum, chain,
    rounding. A packet takes at least ``columns`` cycles.
    Source: KLLM, section III-B; the sums replace its counters and their reduction. Golden:
    golden.kllm.blocks.dense_sums.

    All columns take each beat in the same cycle, so one control steps them all. Each selected word
    has a bias of 2**(word_bits - 1). A counter adds up the biases of a packet, once for all
    columns. The results are those of KllmLaneDense with ``flipflop``, bit for bit.
    """

    tier = Tier.PART
    golden = "golden.kllm.blocks:dense_sums"
    default = KllmPeLaneConfig()
    configs = SELECTING

    def __init__(self, config: KllmPeLaneConfig):
        config._check_choice("counter", ("select",))
        members = {
            "i": In(
                stream.Signature(config.selected_layout),
                "Rows of one beat, and the weight indices of each column.",
            ),
            "o": Out(stream.Signature(config.dense_layout), "Dense sums, column by column."),
        }
        if len(config.select_config.grids) > 1:
            members["is_integer"] = In(1, "Integer mode, constant while a packet is inside.")
        super().__init__(config, members)

    @property
    def timing(self) -> Timing:
        return lane_timing(_STAGES)

    @property
    def operations(self) -> Operations:
        return Operations("i", self.config.elements * self.config.columns, "MAC")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        shape = config.select_config
        columns = [add(m, f"column_{c}", KllmSelectColumn(shape)) for c in range(config.columns)]
        rounder = add(
            m,
            "rounder",
            FixedToFloat(
                FixedToFloatConfig(
                    width=shape.sum_bits,
                    grid_exponents=shape.grids,
                    o=FP32,
                    stages=1,
                )
            ),
        )

        steps = lane_steps(
            m,
            _STAGES,
            config.columns,
            valid=self.i.valid,
            last=self.i.p.last,
            taken=rounder.i.ready,
        )
        digit = Const(0, 1)
        if shape.digits > 1:
            digit = Signal(range(shape.digits), reset_less=True)
            with m.If(steps.enter):
                m.d.sync += digit.eq(self.i.p.digit)
        following = Const(0, signed(shape.sum_bits))
        for c, column in reversed(list(enumerate(columns))):
            m.d.comb += [
                column.row.eq(self.i.p.row),
                column.index.eq(self.i.p.index[c]),
                column.enter.eq(steps.enter),
                column.add.eq(steps.add),
                column.first.eq(steps.first),
                column.load.eq(steps.load),
                column.shift.eq(steps.shift),
                column.chain.eq(following),
            ]
            if shape.digits > 1:
                m.d.comb += column.digit.eq(digit)
            following = column.held

        # The biases of a packet: what a column of zeros would hold above a word's other bits.
        low = shape.word_bits - 1
        biases = Signal(shape.bias_bits)
        bias = Signal(shape.bias_bits)
        step = Const(config.elements % 2**shape.bias_bits, shape.bias_bits)
        for d in range(1, shape.digits):
            step_of_digit = (config.elements << config.bits_a * d) % 2**shape.bias_bits
            step = Mux(digit == d, step_of_digit, step)
        with m.If(steps.add):
            m.d.sync += biases.eq(Mux(steps.first, 0, biases) + step)
        with m.If(steps.load):
            m.d.sync += bias.eq(biases)
        held = columns[0].held
        m.d.comb += [
            self.i.ready.eq(steps.ready),
            rounder.i.valid.eq(steps.offers),
            rounder.i.p.value.eq(Cat(held[:low], (held[low:] - bias)[: shape.bias_bits])),
            self.o.valid.eq(rounder.o.valid),
            self.o.p.y.eq(rounder.o.p.y),
            rounder.o.ready.eq(self.o.ready),
        ]
        if len(shape.grids) > 1:
            m.d.comb += rounder.i.p.grid.eq(self.is_integer)
        return m
