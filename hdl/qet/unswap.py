"""Parts of smaller and larger values back to their columns (docs/blocks/qet_unswap.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded
from golden.qet.config import LEVELS_MAX
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block
from hdl.kinds import BITS
from hdl.ports import In, Out
from hdl.qet.layouts import columns_layout, networks_max, parts_layout, places


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetUnswapConfig(Config):
    """Networks side by side, and their values."""

    levels: int = bounded(
        3, 0, LEVELS_MAX, "compare-swaps that made the parts; a network has 2**levels values"
    )
    networks: int = 8  # side by side, from 1 to what a payload of 65,536 bits holds
    bits: int = bounded(16, 1, 32, "of a value; values are not compared")

    def __post_init__(self) -> None:
        self._check_range("networks", 1, networks_max(self.levels, self.bits))

    @property
    def i_layout(self) -> data.StructLayout:
        return parts_layout(self, BITS)

    @property
    def o_layout(self) -> data.StructLayout:
        return columns_layout(self, BITS)


class QetUnswap(Block):
    """``word[n][c]`` of ``o`` is the value of column c of network n, by the network's maps.

    The inverse of ``QetSwap``, from the last level to the first. A pair is the values of the parts
    S and L at the same place. Its map bit is 1 where the value of S was on the right. Parts and map
    bits are in the order of ``QetSwap``.

    Values pass unchanged and are never compared. So any values and any map bits are legal, such as
    values that a codebook gives for the parts.

    A beat per cycle. Latency ``timing``: one cycle. ``i.ready`` depends
    combinationally on ``o.ready``.
    Source: QET, section 3.2.1, Algorithm 2; the sign of the maps is decision 0220.
    Golden: golden.qet.swap.unswap, maps_of_words.
    """

    golden = "golden.qet.swap:unswap"
    reference = "tests/qet/test_swap.py: test_any_maps_are_undone"
    default = QetUnswapConfig()
    configs: ClassVar = {
        "fp32": QetUnswapConfig(bits=32),
        "widest": QetUnswapConfig(levels=5, bits=32),
        "small": QetUnswapConfig(levels=2, networks=2, bits=5),
    }

    def __init__(self, config: QetUnswapConfig):
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "Parts of a row, and their maps."),
                "o": Out(stream.Signature(config.o_layout), "The columns of the same parts."),
            },
        )

    # One register after all levels: a level selects, and does not compare.
    timing = Timing(latency=1, unit="beat")

    def elaborate(self, platform) -> Module:
        m = Module()
        held = Signal(self.config.o_layout, reset_less=True)
        full = Signal()
        m.d.comb += [
            self.i.ready.eq(~full | self.o.ready),
            self.o.valid.eq(full),
            self.o.payload.eq(held),
        ]
        columns = [self._columns(m, n) for n in range(self.config.networks)]
        with m.If(self.i.ready):
            m.d.sync += full.eq(self.i.valid)
        with m.If(self.i.ready & self.i.valid):
            m.d.sync += held.last.eq(self.i.p.last)
            for words, values in zip(held.word, columns, strict=True):
                m.d.sync += [
                    Value.cast(word).eq(value) for word, value in zip(words, values, strict=True)
                ]
        return m

    def _columns(self, m: Module, n: int) -> list[Value]:
        """The values of network ``n`` by column."""
        levels = self.config.levels
        maps = self.i.p.map[n] if levels else Const(0, 0)
        values = [Value.cast(word) for word in self.i.p.word[n]]
        pairs = len(values) // 2
        for k in reversed(range(levels)):
            before: list[Value] = []
            for pair in range(pairs):
                small, large = (values[place] for place in places(levels, k, pair))
                was_exchanged = maps[k * pairs + pair]
                for side, this, other in ("left", small, large), ("right", large, small):
                    value = Mux(was_exchanged, other, this)
                    before.append(let(m, f"{side}_{k}_{n}_{pair}", value))
            values = before
        return values
