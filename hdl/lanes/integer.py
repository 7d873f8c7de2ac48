"""Integers by integers (docs/blocks/lane_integer.md)."""

from typing import ClassVar

from amaranth import Cat, Const, Module
from amaranth.hdl import Value

from hdl.bits import carry_save, let
from hdl.kinds import NUMBER
from hdl.lanes.column import Beat, LaneColumn, registers
from hdl.lanes.config import LaneIntegerConfig
from hdl.lanes.lane import Lane
from hdl.ports import In


class LaneIntegerColumn(LaneColumn):
    """``held = sum over beats and elements of a[e] * w[e]``, two's complement, exact.

    Baugh and Wooley: a partial product with one sign bit counts negative. Its inverse counts
    positive, and a constant corrects the sum. So the tree adds unsigned bits. The bits of one place
    of the weights are words on one grid, one word per element, which rows of full adders add.
    """

    def __init__(self, config: LaneIntegerConfig):
        super().__init__(
            config,
            {
                "a": In(config.a_layout, "Activations of a beat.", NUMBER),
                "w": In(config.w_layout, "Weights of the column.", NUMBER),
            },
        )

    def beat(self, m: Module, total: Value) -> Beat:
        config = self.config
        sign_a, sign_w = config.bits_a - 1, config.bits_w - 1
        rows = []
        for place in range(config.bits_w):
            inverted = (1 << sign_a) - 1 if place == sign_w else 1 << sign_a
            words = [
                let(
                    m,
                    f"product_{place}_{e}",
                    (a.as_unsigned() & w[place].replicate(config.bits_a)) ^ inverted,
                )
                for e, (a, w) in enumerate(zip(self.a, self.w, strict=True))
            ]
            width = config.tree_bits - place
            rows += [
                Cat(Const(0, place), row) for row in carry_save(m, f"place_{place}", words, width)
            ]
        tree = carry_save(m, "tree", rows, config.tree_bits)
        each = (1 << sign_a + sign_w + 1) - (1 << sign_a) - (1 << sign_w)
        return Beat(
            terms=registers(m, "tree", tree, self.enter[0]),
            constant=-config.elements * each,
            kept=total,
        )


class LaneInteger(Lane):
    """``o[c] = rne32(sum over beats and elements of a[e] * w[c][e])``.

    Activations and weights are integers in two's complement. A packet of beats gives ``columns``
    FP32 words, column 0 first. The sum is exact for up to ``k_max`` elements (not checked). Its
    rounding to FP32, to nearest even, is the only one. Elements that do not count are 0. The
    scales of a model multiply the words afterwards, as in kllm_scaler.

    One beat per cycle. A packet takes at least ``columns`` cycles, because a chain gives one sum
    per cycle while the next packet is added up. ``i.ready`` depends combinationally on ``o.ready``.
    Latency 4 cycles from the beat with ``last`` to column 0: tree, sum, chain, rounding.
    Source: the common alternative to look-up, INT8 x INT8 (W8A8) and INT4 x INT4 (W4A4), for
    comparison with kllm_lane_select. Golden: golden.lanes.sums.integer_packet.
    """

    golden = "golden.lanes.sums:integer_packet"
    reference = "tests/lanes/test_sums.py: test_integer_packet"
    default = LaneIntegerConfig()
    configs: ClassVar = {
        "int8": LaneIntegerConfig(),
        "int8_int4": LaneIntegerConfig(bits_w=4),
        "int8_int2": LaneIntegerConfig(bits_w=2),
        "int4": LaneIntegerConfig(bits_a=4, bits_w=4),
        "small": LaneIntegerConfig(elements=3, columns=3, k_max=40, bits_a=5, bits_w=3),
    }

    column = LaneIntegerColumn

    def __init__(self, config: LaneIntegerConfig):
        super().__init__(config)
