"""Integers by bit planes, with tables of four activations (docs/blocks/lane_lut.md)."""

from typing import ClassVar

from amaranth import Cat, Const, Module, Signal
from amaranth.hdl import Value

from golden.lanes.format import GROUP
from hdl.bits import any_of, carry_save, let, one_hot
from hdl.kinds import BITS, NUMBER
from hdl.lanes.column import Beat, LaneColumn, registers
from hdl.lanes.config import LaneLutConfig
from hdl.lanes.lane import Lane
from hdl.lanes.steps import Steps
from hdl.ports import In


class LaneLutColumn(LaneColumn):
    """``held = sum over beats, groups, planes of +-table[g][index] * 2**plane``, exact.

    A word of ``w`` has the index of an entry and, in its highest bit, the sign. The column inverts
    an entry that counts negative, and the tree adds the one that completes it. The sign bits are
    inverted too, and a constant corrects the sum. So the tree adds unsigned words.
    """

    def __init__(self, config: LaneLutConfig):
        super().__init__(
            config,
            {
                "a": In(config.table_layout, "Tables of a beat.", NUMBER),
                "w": In(config.w_layout, "Words of the column, by group and plane.", BITS),
            },
        )

    def beat(self, m: Module, total: Value) -> Beat:
        config = self.config
        bits = config.entry_bits
        sign = 1 << bits - 1
        rows = []
        for place in range(config.bits_w):
            terms = []
            for g, (table, planes) in enumerate(zip(self.a, self.w, strict=True)):
                word = planes[place]
                chosen = one_hot(m, f"index_{g}_{place}", word[: GROUP - 1])
                entry = any_of(
                    one.replicate(bits) & entry.as_unsigned()
                    for one, entry in zip(chosen, table, strict=True)
                )
                negated = word[GROUP - 1]
                term = let(m, f"entry_{g}_{place}", entry ^ negated.replicate(bits) ^ sign)
                terms += [term, negated]
            terms.sort(key=len, reverse=True)
            width = config.tree_bits - place
            rows += [
                Cat(Const(0, place), row) for row in carry_save(m, f"place_{place}", terms, width)
            ]
        tree = carry_save(m, "tree", rows, config.tree_bits)
        return Beat(
            terms=registers(m, "tree", tree, self.enter[1]),
            constant=-config.groups * (2**config.bits_w - 1) * sign,
            kept=total,
        )


class LaneLut(Lane):
    """``o[c] = rne32(sum over beats and elements of a[e] * weight_value(code[c][e]))``.

    Activations are integers in two's complement. A weight of ``bits_w`` bits has a bit plane per
    bit, each of which counts +1 or -1 at its place (golden.lanes.format.weight_value). A table has
    the sums of four activations with any signs, half of them: the others are their negatives. A
    word of ``w`` is an index and a sign, folded beforehand by golden.lanes.format.plane_words.

    The lane makes the tables of a beat once for all columns, and each column selects an entry per
    group and plane. All planes are added in the same cycle. The sum is exact for up to ``k_max``
    elements (not checked). Its rounding to FP32, to nearest even, is the only one. Activations
    that do not count are 0.

    A packet of beats gives ``columns`` FP32 words, column 0 first. One beat per cycle. A packet
    takes at least ``columns`` cycles. ``i.ready`` depends combinationally on ``o.ready``. Latency
    5 cycles from the beat with ``last`` to column 0: tables, tree, sum, chain, rounding.
    Source: LUT Tensor Core (ISCA 2025) and FIGLUT (HPCA 2025), with their planes side by side
    instead of one after the other. Golden: golden.lanes.sums.table_packet.
    """

    golden = "golden.lanes.sums:table_packet"
    reference = "tests/lanes/test_sums.py: test_table_sum_is_a_sum_of_products"
    default = LaneLutConfig()
    configs: ClassVar = {
        "int8_int4": LaneLutConfig(),
        "int8_int2": LaneLutConfig(bits_w=2),
        "int16_int4": LaneLutConfig(bits_a=16),
        "small": LaneLutConfig(elements=8, columns=3, k_max=40, bits_a=5, bits_w=3),
    }

    column = LaneLutColumn

    def operands(self, m: Module, steps: Steps, columns: list) -> None:
        config = self.config
        tables = Signal(config.table_layout, reset_less=True)
        for g, table in enumerate(tables):
            entries = _entries(m, f"sum_{g}", list(self.i.p.a)[GROUP * g : GROUP * (g + 1)])
            with m.If(steps.enter[0]):
                m.d.sync += [each.eq(entry) for each, entry in zip(table, entries, strict=True)]
        for c, column in enumerate(columns):
            words = Signal(config.w_layout, name=f"words_{c}", reset_less=True)
            with m.If(steps.enter[0]):
                m.d.sync += words.eq(self.i.p.w[c])
            m.d.comb += [column.a.eq(tables), column.w.eq(words)]


def _entries(m: Module, name: str, a: list[Value]) -> list[Value]:
    """The sums of ``table_entries``: two of each pair of activations, and then their sums."""
    first, second, third, last = a
    low = [let(m, f"{name}_low_{n}", each) for n, each in enumerate(
        (-first - second, first - second, second - first, first + second)
    )]  # fmt: skip
    high = [let(m, f"{name}_high_{n}", each) for n, each in enumerate((last - third, last + third))]
    return [low[j % 4] + high[j // 4] for j in range(2 ** (GROUP - 1))]
