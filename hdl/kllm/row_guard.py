"""Requests that wait for rows which a running command still writes."""

import dataclasses
from typing import ClassVar

from amaranth import Module, Signal
from amaranth.lib import stream

from golden.config import Config, flag
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.kllm.engine import front_layout, row_write_layout
from hdl.ports import In, Out, Payload


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmRowGuardConfig(Config):
    """The requests that pass."""

    writes: bool = flag(False, "requests to write a row, not to read it")

    @property
    def layout(self) -> Payload:
        """A request."""
        return row_write_layout if self.writes else Payload(row=row_write_layout.parts["row"])


class KllmRowGuard(Block):
    """``o`` = ``i``; a request waits while its row is in ``next .. end - 1`` of a valid ``front``.

    A request that was offered stays offered, whatever ``front`` becomes.

    Latency 0 cycles, one request per cycle. ``o.valid`` depends combinationally on ``i`` and on
    ``front``, ``i.ready`` on these and on ``o.ready``. Golden: golden.kllm.walks.is_held.
    """

    tier = Tier.PART
    golden = "golden.kllm.walks:is_held"
    default = KllmRowGuardConfig()
    configs: ClassVar = {
        "reads": KllmRowGuardConfig(),
        "writes": KllmRowGuardConfig(writes=True),
    }

    def __init__(self, config: KllmRowGuardConfig):
        request = stream.Signature(config.layout)
        super().__init__(
            config,
            {
                "front": In(front_layout, "Rows that another unit's command still writes."),
                "i": In(request, "Requests of a unit."),
                "o": Out(request, "The same, of rows that are not held."),
            },
        )

    timing = Timing(latency=0, start="i", end="o", unit="request")

    def elaborate(self, platform) -> Module:
        m, front, row = Module(), self.front, self.i.p.row
        held = Signal()
        offered = Signal()
        passes = Signal()
        m.d.comb += [
            held.eq(front.valid & (row >= front.next) & (row < front.end)),
            passes.eq(offered | ~held),
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid & passes),
            self.i.ready.eq(self.o.ready & passes),
        ]
        m.d.sync += offered.eq(self.o.valid & ~self.o.ready)
        return m
