"""Size of an engine's products, and the payloads of its parts."""

import dataclasses
from typing import ClassVar

from amaranth import signed
from amaranth.lib import data

from golden.config import Config, bounded, flag, power_of_two
from golden.fp16.format import FP16
from golden.index.format import GRID_PRODUCT_EXACT, SCALE_EXPONENTS
from hdl.index.dot_product import IndexDotProductConfig
from hdl.kinds import NUMBER, fixed, index_of, mask_of
from hdl.memory.config import MemoryConfig
from hdl.ports import Payload
from hdl.stream.payload import LAST


class SumsConfig(Config):
    """Exact sums of rows with ``batch`` vectors, on the grid 2**grid."""

    grid: ClassVar[int]
    batch: int

    @property
    def sum_bits(self) -> int:
        """The bits of a sum over all columns."""
        raise NotImplementedError

    @property
    def grids(self) -> tuple[int, ...]:
        """The grids of a sum times 2**exponent, for each exponent."""
        raise NotImplementedError

    @property
    def partials(self) -> MemoryConfig:
        """Sums of a job, and whether a row is wrong."""
        raise NotImplementedError

    @property
    def has_groups(self) -> bool:
        """Whether a row has several sums for each vector of the batch."""
        return False

    @property
    def sums_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(signed(self.sum_bits), self.batch)

    @property
    def sum_layout(self) -> data.StructLayout:
        return Payload(
            value=(self.sums_layout, "a sum of each vector", fixed(self.grid)),
            bad=(self.batch, "vectors whose sum has no meaning", mask_of("vectors")),
            **({"row_end": (1, "of the row's last group")} if self.has_groups else {}),
            last=LAST,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqRowSumsConfig(SumsConfig):
    """Products per cycle, and the largest job."""

    grid: ClassVar[int] = GRID_PRODUCT_EXACT

    macs: int = bounded(16, 1, 256, "products of a beat and a vector")
    largest: int = power_of_two(2, 1, 8, "bound of a word of the matrix")
    batch: int = bounded(1, 1, 64, "vectors side by side")
    groups: int = power_of_two(1, 1, 64, "most groups of vectors that a beat meets in turn")
    columns: int = 11264  # most of a vector, a multiple of macs in macs..2**20
    rows: int = bounded(256, 1, 1 << 16, "most rows of a job")
    states_words: bool = flag(False, "a job states the words of a vector, which are compared")

    def __post_init__(self) -> None:
        self._check_range("columns", self.macs, 1 << 20)
        if self.columns % self.macs:
            self._refuse("columns", f"a multiple of macs = {self.macs}")
        for name, words in (("columns", 2 * self.words), ("rows", self.rows)):
            if words * self.groups > 1 << 20:
                self._refuse(name, f"of at most 2**20 words in a RAM of {self.groups} groups")

    @property
    def words(self) -> int:
        """Beats of a vector."""
        return self.columns // self.macs

    @property
    def words_field(self) -> tuple:
        """The field of a job that states how long its vectors are."""
        return range(self.words + 1), "words of each vector of x", NUMBER

    @property
    def dot(self) -> IndexDotProductConfig:
        return IndexDotProductConfig(terms=self.macs, largest=self.largest)

    @property
    def sum_bits(self) -> int:
        """The bits of a sum over all columns."""
        return self.dot.term_bits + (self.columns - 1).bit_length()

    @property
    def has_groups(self) -> bool:
        return self.groups > 1

    @property
    def group_bits(self) -> int:
        """The bits of the number of a group."""
        return (self.groups - 1).bit_length()

    @property
    def grids(self) -> tuple[int, ...]:
        """The grids of a sum times 2**exponent, for each exponent."""
        return tuple(GRID_PRODUCT_EXACT + exponent for exponent in SCALE_EXPONENTS)

    @property
    def operands(self) -> MemoryConfig:
        """Both buffers of one vector of each group."""
        return MemoryConfig(depth=2 * self.words * self.groups, width=FP16.bits * self.macs)

    @property
    def partials(self) -> MemoryConfig:
        """Sums of a job, and whether a row is wrong."""
        depth = max(2, self.rows * self.groups)
        return MemoryConfig(depth=depth, width=self.sum_bits * self.batch + 1)

    @property
    def totals(self) -> MemoryConfig:
        """Sums of a row so far, group by group."""
        return MemoryConfig(depth=max(2, self.groups), width=self.sum_bits * self.batch)

    @property
    def beat_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16.bits, self.macs)

    @property
    def vectors_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(self.beat_layout, self.batch)

    @property
    def x_layout(self) -> data.StructLayout:
        return Payload(
            word=(self.beat_layout, "elements of a vector", FP16),
            end=(1, "with last: it is the last vector of the buffer"),
            last=LAST,
        )

    @property
    def job_layout(self) -> data.StructLayout:
        groups = {
            "group": (range(self.groups), "first group of the vectors", index_of("groups")),
            "groups": (range(self.groups + 1), "groups that each beat meets", NUMBER),
        }
        return Payload(
            offset=(range(max(2, self.words)), "word of x of beat 0", index_of("words")),
            beats=(range(self.words + 1), "beats of a row", NUMBER),
            rows=(range(self.rows + 1), "rows", NUMBER),
            first=(1, "the sums begin with 0"),
            final=(1, "the sums leave"),
            next_x=(1, "use the next buffer of vectors from this job on"),
            **({"words": self.words_field} if self.states_words else {}),
            **(groups if self.groups > 1 else {}),
        )

    @property
    def w_layout(self) -> data.StructLayout:
        return Payload(
            word=(self.beat_layout, "elements of a row", FP16),
            wrong=(1, "the row has no meaning"),
            last=LAST,
        )

    # Between the parts

    @property
    def flags_layout(self) -> data.StructLayout:
        """The flags that go along with a beat."""
        group = {"group": self.group_bits, "row_end": 1} if self.groups > 1 else {}
        return data.StructLayout(
            {
                "row": range(max(2, self.rows)), "begins": 1, "ends": 1, "first": 1, "final": 1,
                "last": 1, "bad": self.batch, "wrong": 1, **group,
            }
        )  # fmt: skip


SMALL_SUMS = VqRowSumsConfig(macs=4, batch=2, columns=32, rows=8)
