"""Shape of a RAM, common to every memory block."""

import dataclasses

from golden.config import Config, bounded
from hdl.children import SIGNAL_BITS


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryConfig(Config):
    """Shape of one RAM; neither ``depth`` nor ``width`` need be a power of two."""

    depth: int = bounded(256, 1, 1 << 20, "words")
    width: int = bounded(32, 1, SIGNAL_BITS, "bits of one word")
    granularity: int = 0  # bits per write lane, a divisor of width; 0 is the whole word

    def __post_init__(self) -> None:
        self._check_range("granularity", 0, self.width)
        if self.granularity and self.width % self.granularity:
            self._refuse("granularity", f"0 or a divisor of width {self.width}")

    @property
    def lane_bits(self) -> int:
        return self.granularity or self.width

    @property
    def lanes(self) -> int:
        """Write lanes of one word."""
        return self.width // self.lane_bits

    @property
    def address_bits(self) -> int:
        """The bits of an address, at least 1, so that every memory has the same ports."""
        return max(1, (self.depth - 1).bit_length())

    @property
    def bits(self) -> int:
        """Bits stored."""
        return self.depth * self.width


NAMED = {
    "smallest": MemoryConfig(depth=1, width=1),
    "odd": MemoryConfig(depth=5, width=12, granularity=4),
}
