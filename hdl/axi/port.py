"""What the configurations of AxiReadPort and AxiWritePort share."""

import dataclasses

from golden.axi.format import PAGE_BYTES
from golden.config import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxiPortConfig(Config):
    """Widths and bursts of one port."""

    address_bits: int = 40  # bits of a byte address, 32..64
    data_bits: int = 512  # bits of a word and of RDATA or WDATA, a power of two in 8..1024
    id_bits: int = 0  # bits of an ID, 0..8; 0 gives one bit, as 1 does
    burst_beats: int = 64  # words of the longest burst, 1..256
    outstanding: int = 4  # bursts begun and not yet complete, 1..16
    length_bits: int = 24  # bits of a command's length, 1..32

    def __post_init__(self) -> None:
        self._check_range("address_bits", 32, 64)
        self._check_power_of_two("data_bits", 8, 1024)
        self._check_range("id_bits", 0, 8)
        self._check_range("burst_beats", 1, 256)
        self._check_range("outstanding", 1, 16)
        self._check_range("length_bits", 1, 32)

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def page_words(self) -> int:
        """Words between two addresses that no burst may cross."""
        return PAGE_BYTES // self.word_bytes
