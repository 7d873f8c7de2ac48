"""What a block is: a component whose frozen configuration is its whole identity."""

from typing import ClassVar

from amaranth.lib import wiring

from golden.config import Config

__all__ = ["Block"]


class Block(wiring.Component):
    """A component that ``hdl.emit`` converts once per (class, configuration).

    Everything that shapes the hardware is in ``config``; two blocks of one class with equal
    configurations are one Verilog module. Subclasses set ``meaning`` and, where they are
    known, ``latency`` (cycles from a transfer in to the transfer that it causes) and
    ``throughput`` (one phrase, with its unit).
    """

    config: Config
    meaning: ClassVar[dict[str, str]] = {}  # top-level member name -> one sentence

    def __init__(self, config: Config, signature):
        self.config = config
        super().__init__(signature)

    @property
    def latency(self) -> str:
        """Latency in cycles, as the docstring states it."""
        return "see docs"

    @property
    def throughput(self) -> str:
        return "see docs"
