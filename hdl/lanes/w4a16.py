"""FP16 by FP16 weights that a table gives (docs/blocks/lane_w4a16.md)."""

from typing import ClassVar

from amaranth import Module, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.fp16.format import FP16
from hdl.bits import any_of, let, one_hot
from hdl.kinds import index_of
from hdl.lanes.config import LaneW4a16Config
from hdl.lanes.fp16 import LaneFp16, LaneFp16Column
from hdl.lanes.steps import Steps
from hdl.ports import In


class LaneW4a16Column(LaneFp16Column):
    """LaneFp16Column with weight ``entries[w[e]]``: a decoder per element, ANDs and ORs."""

    def __init__(self, config: LaneW4a16Config):
        super().__init__(
            config,
            {
                "w": In(
                    config.w_layout, "Weight indices of the column.", index_of("table entries")
                ),
                "entries": In(config.table_layout, "Weight of each index.", FP16),
            },
        )

    def weights(self, m: Module) -> list[Value]:
        words = []
        for e, index in enumerate(self.w):
            chosen = one_hot(m, f"index_{e}", index)
            word = any_of(
                one.replicate(FP16.bits) & entry
                for one, entry in zip(chosen, self.entries, strict=True)
            )
            words.append(let(m, f"weight_{e}", word))
        return words


class LaneW4a16(LaneFp16):
    """``o[c] = rne32(sum over beats and elements of a[e] * table[w[c][e]])``, the products aligned.

    Activations and the ``2**bits_w`` entries of the table are FP16 words. ``entry`` writes the
    table. The parent writes it only while no beat is inside, and before the first beat. Words, sums
    and roundings are those of lane_fp16.

    A packet of beats gives ``columns`` FP32 words, column 0 first. One beat per cycle. A packet
    takes at least ``columns`` cycles. ``i.ready`` depends combinationally on ``o.ready``;
    ``entry.ready`` is 1. Latency 5 cycles from the beat with ``last`` to column 0: look-up and
    products, tree, sum, chain, rounding.
    Source: dequantization before the FP16 multiplier, as W4A16 accelerators do, for comparison with
    kllm_lane_select. Golden: golden.lanes.sums.w4a16_packet.
    """

    golden = "golden.lanes.sums:w4a16_packet"
    reference = "tests/lanes/test_sums.py: test_w4a16_packet_looks_up"
    default = LaneW4a16Config()
    configs: ClassVar = {
        "w4a16": LaneW4a16Config(),
        "small": LaneW4a16Config(elements=3, columns=3, k_max=40, bits_w=3),
    }

    column = LaneW4a16Column

    def __init__(self, config: LaneW4a16Config):
        super().__init__(
            config,
            {"entry": In(stream.Signature(config.entry_layout), "Entries of the table.")},
        )

    def operands(self, m: Module, steps: Steps, columns: list) -> None:
        super().operands(m, steps, columns)
        table = []
        for n in range(2**self.config.bits_w):
            entry = Signal(FP16.bits, name=f"entry_{n}", reset_less=True)
            with m.If(self.entry.valid & (self.entry.p.index == n)):
                m.d.sync += entry.eq(self.entry.p.word)
            table.append(entry)
        m.d.comb += self.entry.ready.eq(1)
        for column in columns:
            m.d.comb += [each.eq(entry) for each, entry in zip(column.entries, table, strict=True)]
