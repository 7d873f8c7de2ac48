"""The fields and checks that the configurations of AxiReadPort and AxiWritePort share."""

import dataclasses

from golden.axi.format import PAGE_BYTES
from golden.config import Config, bounded, power_of_two


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxiPortConfig(Config):
    """Widths and bursts of one port."""

    address_bits: int = bounded(40, 32, 64, "bits of a byte address")
    data_bits: int = power_of_two(512, 8, 1024, "bits of a word and of RDATA or WDATA")
    id_bits: int = bounded(0, 0, 8, "bits of an ID; 0 gives one bit, as 1 does")
    burst_beats: int = bounded(64, 1, 256, "words of the longest burst")
    outstanding: int = bounded(4, 1, 16, "bursts begun and not yet complete")
    length_bits: int = bounded(24, 1, 32, "bits of a command's length")

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def page_words(self) -> int:
        """Words between two addresses that no burst may cross."""
        return PAGE_BYTES // self.word_bytes
