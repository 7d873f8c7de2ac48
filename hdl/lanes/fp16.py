"""FP16 by FP16 (docs/blocks/lane_fp16.md)."""

from collections.abc import Mapping
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value

from golden.fp16.format import FP16
from hdl.bits import carry_save, let
from hdl.fp16.unpack import unpack
from hdl.lanes.column import Beat, LaneColumn, registers
from hdl.lanes.config import LaneFp16Config
from hdl.lanes.lane import Lane
from hdl.lanes.steps import Steps
from hdl.ports import In


class LaneFp16Column(LaneColumn):
    """``held`` = the aligned sum of golden.lanes.sums.fp16_sum: integer and place of its grid.

    Stage 0 holds the exact products, their exponents and the largest exponent of the packet so far.
    Stage 1 holds the sum of the aligned products and its carries. The accumulator moves to the
    grid of the beat that it adds. It never moves back, so no normalisation is in its loop.
    """

    def __init__(self, config: LaneFp16Config, members: Mapping | None = None):
        super().__init__(
            config,
            {
                "a": In(config.parts_layout, "Activations of a beat."),
                "w": In(config.w_layout, "Weights of the column.", FP16),
                **(members or {}),
                "opens": In(1, "With enter of stage 0: a packet begins."),
            },
        )

    def weights(self, m: Module) -> list[Value]:
        """The FP16 word of each weight."""
        return list(self.w)

    def beat(self, m: Module, total: Value) -> Beat:
        config = self.config
        into_products, into_tree = self.enter
        decoded = [unpack(m, w, FP16, f"w_{e}") for e, w in enumerate(self.weights(m))]
        exponents, products = [], []
        for e, (a, w) in enumerate(zip(self.a, decoded, strict=True)):
            exponent = let(m, f"exponent_{e}", a.exponent + w.exponent)
            exponents.append(exponent)
            product = [a.significand * w.significand, exponent, a.sign ^ w.sign]
            products.append(registers(m, f"product_{e}", product, into_products))

        top, rise = (Signal(len(exponents[0]), name=n, reset_less=True) for n in ("top", "rise"))
        before = let(m, "before", Mux(self.opens, 0, top))
        largest = _largest(m, [before, *exponents])
        with m.If(into_products):
            m.d.sync += [top.eq(largest), rise.eq(largest - before)]

        words, ones = [], []
        for e, (product, exponent, sign) in enumerate(products):
            distance = let(m, f"distance_{e}", (top - exponent)[: len(top)])
            aligned = let(m, f"aligned_{e}", Cat(Const(0, config.guard_bits), product) >> distance)
            inverted = let(m, f"inverted_{e}", aligned ^ sign.replicate(config.word_bits))
            words.append(Cat(inverted, ~sign))
            ones.append(sign)
        tree = carry_save(m, "tree", [*words, *ones], config.tree_bits)
        grid, drop = registers(m, "of_tree", [top, rise], into_tree)
        return Beat(
            terms=registers(m, "tree", tree, into_tree),
            constant=-config.elements << config.word_bits,
            kept=let(m, "kept", total >> drop),
            grid=(grid - 2)[: len(grid)],
        )


def _largest(m: Module, values: list[Value]) -> Value:
    """The largest, by a tree of comparisons."""
    level = 0
    while len(values) > 1:
        pairs = list(zip(values[::2], values[1::2], strict=False))
        values = [
            let(m, f"largest_{level}_{n}", Mux(a > b, a, b)) for n, (a, b) in enumerate(pairs)
        ] + values[2 * len(pairs) :]
        level += 1
    return values[0]


class LaneFp16(Lane):
    """``o[c] = rne32(sum over beats and elements of a[e] * w[c][e])``, the products aligned.

    Activations and weights are FP16 words, all of them numbers: exponent 31 counts as the
    exponents below it do. Each product is exact. X is the largest exponent of a product of the
    packet so far. The grid is ``guard_bits`` below the last bit of a product of exponent X.

    Roundings: each product is truncated to the grid, towards zero. Where X grows, the sum so far is
    truncated to the new grid, towards minus infinity. The result is rounded to FP32, to nearest
    even. Sums are exact, for up to ``k_max`` elements (not checked). An element that does not
    count is 0. With few exponents, within ``guard_bits`` of each other, nothing is truncated.

    A packet of beats gives ``columns`` FP32 words, column 0 first. One beat per cycle. A packet
    takes at least ``columns`` cycles. ``i.ready`` depends combinationally on ``o.ready``. Latency
    5 cycles from the beat with ``last`` to column 0: products, tree, sum, chain, rounding.
    Source: the aligned adder trees of tensor cores, for comparison with kllm_lane_select. Golden:
    golden.lanes.sums.fp16_packet.
    """

    golden = "golden.lanes.sums:fp16_packet"
    reference = "tests/lanes/test_sums.py: test_fp16_sum_is_exact_within_the_guard"
    default = LaneFp16Config()
    configs: ClassVar = {
        "fp16": LaneFp16Config(),
        "small": LaneFp16Config(elements=3, columns=3, k_max=40),
    }

    column = LaneFp16Column

    def operands(self, m: Module, steps: Steps, columns: list) -> None:
        decoded = [unpack(m, a, FP16, f"a_{e}") for e, a in enumerate(self.i.p.a)]
        goes_on = Signal()  # the next beat is of the packet of the last
        with m.If(steps.enter[0]):
            m.d.sync += goes_on.eq(~self.i.p.last)
        for c, column in enumerate(columns):
            for a, raw in zip(column.a, decoded, strict=True):
                m.d.comb += [
                    a.sign.eq(raw.sign),
                    a.exponent.eq(raw.exponent),
                    a.significand.eq(raw.significand),
                ]
            m.d.comb += [column.w.eq(self.i.p.w[c]), column.opens.eq(~goes_on)]
