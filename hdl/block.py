"""What a block is: a component whose frozen configuration is its whole identity."""

from typing import ClassVar

from amaranth.lib import wiring

from golden.config import Config
from golden.timing import Timing

__all__ = ["Block"]


class Block(wiring.Component):
    """A component that ``hdl.emit`` converts once per (class, configuration).

    Everything that shapes the hardware is in ``config``; two blocks of one class with equal
    configurations are one Verilog module. Subclasses set ``meaning`` and ``timing``, which comes
    from golden/<room>/timing.py. ``latency`` and ``throughput`` are its texts.
    """

    config: Config
    meaning: ClassVar[dict[str, str]] = {}  # top-level member name -> one sentence

    def __init__(self, config: Config, signature):
        self.config = config
        super().__init__(signature)

    @property
    def timing(self) -> Timing | None:
        """Cycles of this block at its configuration, from golden/<room>/timing.py."""
        return None

    @property
    def latency(self) -> str:
        return self.timing.latency_text if self.timing else "see docs"

    @property
    def throughput(self) -> str:
        return self.timing.throughput_text if self.timing else "see docs"
