"""Words of qet_dequant_gemv in memory, and what it says of a job. Pure Python."""

import dataclasses
import enum

from golden.config import Config, nested, power_of_two
from golden.qet.config import TileShape


class RowFault(enum.IntFlag):
    """Why a row has no meaning."""

    CODE = 1  # a code is beyond its codebook
    UNLOADED = 2  # no codebooks are in use
    WRONG = 4  # the row came with the mark that it is wrong
    NONFINITE = 8  # an element is NaN or infinite


class Fault(enum.IntFlag):
    """The faults of a job; its other rows are right."""

    JOB = 1 << 0  # a number of the job is out of range: it gives one row, NaN
    NONFINITE = 1 << 1  # NaN or infinity in x
    CODEBOOK = 1 << 2  # an element of an entry is NaN, infinite or above 2 in magnitude
    CODE = 1 << 3  # a code beyond its codebook
    NO_CODEBOOK = 1 << 4  # memory refused codebooks
    NO_CODE = 1 << 5  # memory refused codes or maps


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageShape(Config):
    """Tiles, and words of memory."""

    shape: TileShape = nested(TileShape)
    data_bits: int = power_of_two(512, 64, 1024, "of a word of memory")

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def entry_bytes(self) -> int:
        """The entries of the same number of all groups."""
        return -(-self.shape.entry_word_bits // 8)

    @property
    def row_bytes(self) -> int:
        return -(-self.shape.row_bits // 8)

    def book_words(self, entries: int) -> int:
        """Words of memory of a tile's codebooks, with ``entries`` of all stages together."""
        return -(-entries * self.entry_bytes // self.word_bytes)

    def row_words(self, rows: int) -> int:
        """Words of memory of a tile's rows."""
        return -(-rows * self.row_bytes // self.word_bytes)
