"""Size of an engine of tables, and the payloads of its parts."""

import dataclasses
from typing import ClassVar

from amaranth.lib import data

from golden.config import Config, bounded, flag, nested
from golden.fp16.format import FP16
from golden.index.format import GRID_PRODUCT_ROUNDED, SCALE_EXPONENTS
from golden.vqllm.config import VqShape
from hdl.index.codebook_store import IndexCodebookStoreConfig
from hdl.index.sums import WORD_TERM_BITS
from hdl.index.table_lane import IndexTableLaneConfig
from hdl.kinds import NUMBER, index_of, mask_of
from hdl.memory.config import MemoryConfig
from hdl.ports import Payload
from hdl.stream.payload import LAST
from hdl.vqllm.row.config import SumsConfig, VqRowSumsConfig
from hdl.vqllm.row.finish import VqRowFinishConfig

ENTRIES_MAX = 4096  # of a codebook whose tables are built


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSumsConfig(SumsConfig):
    """Sums of entries of tables."""

    grid: ClassVar[int] = GRID_PRODUCT_ROUNDED

    terms: int = 2816  # most entries of a sum
    batch: int = 1  # vectors side by side
    rows: int = 4096  # most rows of a job

    @property
    def sum_bits(self) -> int:
        """The bits of a sum over all columns."""
        return WORD_TERM_BITS + (self.terms - 1).bit_length()

    @property
    def grids(self) -> tuple[int, ...]:
        """The entries include 2**exponent."""
        return (GRID_PRODUCT_ROUNDED,)

    @property
    def partials(self) -> MemoryConfig:
        """Sums of a job, and which vectors of a row are wrong."""
        return MemoryConfig(depth=max(2, self.rows), width=(self.sum_bits + 1) * self.batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqTableGemvConfig(Config):
    """Codebooks, look-ups and entries of tables per cycle, and the largest matrix."""

    vq: VqShape = nested(VqShape)
    lookups: int = bounded(8, 1, 64, "tables that are read per cycle, a multiple of vq.stages")
    lanes: int = 4  # entries of tables per cycle and vector, a divisor of lookups / vq.stages
    batch: int = 1  # vectors side by side, 1..64
    columns: int = 11264  # most of the matrix, a multiple of the elements of a beat
    rows: int = 4096  # most rows of a job, 1..65,536
    scaled: bool = flag(False, "each row has an FP16 scale")

    def __post_init__(self) -> None:
        if self.vq.lattice:  # quip4
            self._refuse("vq", "without lattice: entries with signs of their own share no table")
        if self.vq.entries > ENTRIES_MAX:
            self._refuse("vq", f"of at most {ENTRIES_MAX} entries")
        if self.lookups % self.vq.stages:
            self._refuse("lookups", f"a multiple of vq.stages = {self.vq.stages}")
        self._check_range("lanes", 1, self.vectors)
        if self.vectors % self.lanes:
            self._refuse("lanes", f"a divisor of lookups / vq.stages = {self.vectors}")
        self.check_parts()

    @property
    def vectors(self) -> int:
        """Vectors of the matrix in a beat."""
        return self.lookups // self.vq.stages

    @property
    def parts(self) -> int:
        """Cycles of an entry of the codebook."""
        return self.vectors // self.lanes

    @property
    def operands(self) -> VqRowSumsConfig:
        """The buffers of x, whose words are beats."""
        return VqRowSumsConfig(
            macs=self.vectors * self.vq.size,
            batch=self.batch,
            columns=self.columns,
            rows=self.rows,
        )

    @property
    def store(self) -> IndexCodebookStoreConfig:
        """A word is an entry, a book a stage."""
        return IndexCodebookStoreConfig(
            macs=self.vq.size, parts=1, entries=self.vq.entries, books=self.vq.stages
        )

    @property
    def lane(self) -> IndexTableLaneConfig:
        return IndexTableLaneConfig(sub=self.vq.size)

    @property
    def bank(self) -> MemoryConfig:
        """Both sides of a table, those of all vectors in one word."""
        return MemoryConfig(depth=2 * self.vq.entries, width=FP16.bits * self.batch)

    @property
    def sums(self) -> TableSumsConfig:
        return TableSumsConfig(
            terms=self.columns // self.vq.size * self.vq.stages, batch=self.batch, rows=self.rows
        )

    @property
    def finish(self) -> VqRowFinishConfig:
        return VqRowFinishConfig(sums=self.sums, scaled=self.scaled)

    @property
    def job_layout(self) -> data.StructLayout:
        operands = self.operands
        return Payload(
            offset=(range(max(2, operands.words)), "word of x of slice 0", index_of("words")),
            beats=(range(operands.words + 1), "slices: beats of a row", NUMBER),
            rows=(range(self.rows + 1), "rows", NUMBER),
            first=(1, "the sums begin with 0"),
            final=(1, "the sums leave"),
            next_x=(1, "use the next buffer of vectors from this job on"),
            switch=(1, "from this job on, use the codebooks that are loaded"),
        )

    @property
    def code_layout(self) -> data.StructLayout:
        codes = data.ArrayLayout(self.vq.code_bits, self.lookups)
        return Payload(
            code=(codes, "lane l looks up stage l % stages", index_of("entries")),
            use=(self.lookups, "lanes that look up", mask_of("lanes")),
            last=LAST,
        )

    # Between the parts

    @property
    def slice_layout(self) -> data.StructLayout:
        """The facts of a slice that its look-ups need in addition to its tables."""
        return data.StructLayout(
            {
                "last_row": range(max(2, self.rows)), "entries": range(self.vq.entries + 1),
                "first": 1, "final": 1, "bad": self.batch,
            }
        )  # fmt: skip

    @property
    def place_layout(self) -> data.StructLayout:
        """The place of entries of tables, those of the same entry of a codebook."""
        return data.StructLayout(
            {
                "side": 1, "part": range(max(2, self.parts)),
                "stage": range(max(2, self.vq.stages)), "row": self.vq.code_bits,
            }
        )  # fmt: skip

    @property
    def build_layout(self) -> data.StructLayout:
        """The fields that go with an entry of the codebook."""
        grid = range(len(SCALE_EXPONENTS))
        return data.StructLayout({"place": self.place_layout, "grid": grid, "ends": 1})

    @property
    def words_layout(self) -> data.ArrayLayout:
        """Entries of the tables of neighbours, those of all vectors side by side."""
        return data.ArrayLayout(data.ArrayLayout(FP16.bits, self.batch), self.lanes)

    @property
    def flags_layout(self) -> data.StructLayout:
        """The flags that go along with a beat of codes."""
        return data.StructLayout(
            {
                "row": range(max(2, self.rows)), "begins": 1, "ends": 1, "first": 1, "final": 1,
                "last": 1, "bad": self.batch, "beyond": 1,
            }
        )  # fmt: skip
