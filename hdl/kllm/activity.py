"""Cycles in which each unit is at work."""

import dataclasses
from typing import ClassVar

from amaranth import Const, Module
from amaranth.lib import data

from golden.config import Config, bounded
from golden.kllm.isa import Unit
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kinds import NUMBER, mask_of
from hdl.ports import In, Out


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmActivityConfig(Config):
    """Units of the machine, and the size of the counts."""

    units: int = bounded(len(Unit), int(Unit.CACHE), len(Unit), "units, the first of Unit")
    bits: int = bounded(32, 1, 32, "bits of a count")


class KllmActivity(Block):
    """``count``: cycles since reset, then those in which each unit had its bit of ``busy``.

    Counts are modulo ``2**bits``, and 0 after reset. A cycle counts from the next one on. Golden:
    golden.kllm.engines.activity.

    Nothing sets a count to 0 but a reset: who wants those of a time takes a difference, and several
    may do so at once.
    """

    tier = Tier.PART
    golden = "golden.kllm.engines:activity"
    default = KllmActivityConfig()
    configs: ClassVar = {
        "cache": KllmActivityConfig(),
        "odd": KllmActivityConfig(units=int(Unit.CACHE), bits=5),
    }

    def __init__(self, config: KllmActivityConfig):
        super().__init__(
            config,
            {
                "busy": In(config.units, "Units at work.", mask_of("units")),
                "count": Out(
                    data.ArrayLayout(config.bits, 1 + config.units),
                    "Cycles, then those of each unit, modulo 2**bits.",
                    NUMBER,
                ),
            },
        )

    timing = Timing(latency=1, start="busy", end="count", unit="cycle")

    def elaborate(self, platform) -> Module:
        m = Module()
        for count, is_counted in zip(self.count, (Const(1), *self.busy), strict=True):
            m.d.sync += count.eq(count + is_counted)
        return m
