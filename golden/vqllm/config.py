"""Shapes of vector-quantized matrices that golden, RTL and testbenches share. Pure Python.

VQ<x, y, z> of the paper (Table I) is ``VqShape(size=x, entries=y, stages=z)``.
"""

import dataclasses
import math

from golden.config import (
    Config,
    Kind,
    Range,
    Shape,
    bounded,
    choice,
    declared,
    flag,
    nested,
    power_of_two,
)
from golden.million.config import PqShape

_WORD_BITS = 16  # of an FP16 element of a codebook

# A code of the lattice, from bit 0 on: signs, shift, index of the entry (docs/vqllm-lattice.md).
LATTICE_ENTRIES = 256
LATTICE_SIGN_BITS = 7  # bit i: element i changes its sign; the last one changes by parity
LATTICE_SHIFT_BIT = 7  # 1: a quarter is added to every element, 0: it is subtracted
LATTICE_EXPONENT = 2  # words of entries are points times 2**-2, so all are at most 1
LATTICE_STAGES = 2  # most stages; the entries of stage z are points times 2**(-2 - 2 z)


def lattice_step(stage: int) -> int:
    """The exponent of what a stage adds to or subtracts from its words: a quarter of its points."""
    return -2 - LATTICE_EXPONENT - 2 * stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqShape(Shape):
    """Codes of a vector, and which part of a matrix shares a codebook.

    A vector is ``size`` neighbours of a row. Each stage quantizes what the stages before it leave.
    A codebook serves a tile of the matrix, and 0 means that the tile spans it.
    """

    size: int = bounded(8, 1, 16, "x: elements of a vector")
    entries: int = bounded(256, 4, 1 << 16, "y: entries of a codebook, a power of two")
    stages: int = bounded(2, 1, 4, "z: codes of a vector; their entries are added")
    tile_rows: int = bounded(0, 0, 1 << 20, "rows that share the codebooks; 0: all")
    tile_columns: int = bounded(
        0, 0, 1 << 20, "columns that share them, a multiple of size; 0: all"
    )
    lattice: bool = flag(
        False, "E8P of 8 elements: 256 entries are looked up, signs and a shift applied"
    )

    def __post_init__(self) -> None:
        if self.entries & (self.entries - 1):
            self._refuse("entries", "a power of two in 4..65536")
        if self.tile_columns % self.size:
            self._refuse("tile_columns", f"a multiple of size = {self.size}")
        if self.lattice:
            for field, only in (("size", 8), ("entries", 1 << 16)):
                if getattr(self, field) != only:
                    self._refuse(field, f"{only} with lattice")
            if self.stages > LATTICE_STAGES:
                self._refuse("stages", f"1..{LATTICE_STAGES} with lattice")

    @property
    def code_bits(self) -> int:
        """log2 y: bits of one code."""
        return self.entries.bit_length() - 1

    @property
    def stored(self) -> int:
        """Entries of a codebook that are stored and looked up."""
        return LATTICE_ENTRIES if self.lattice else self.entries

    @property
    def index_bits(self) -> int:
        """Counts the upper bits of a code: the entry that is looked up."""
        return self.stored.bit_length() - 1

    @property
    def point_bits(self) -> int:
        """Counts the lower bits of a code: signs and shift of the lattice."""
        return self.code_bits - self.index_bits

    @property
    def summed(self) -> bool:
        """A vector is more than an entry: a sum of several, or one with signs and a shift."""
        return self.stages > 1 or self.lattice

    @property
    def largest(self) -> int:
        """A power of two that no element exceeds where entries are at most 1 in magnitude."""
        return 1 << (self.stages - 1 + self.lattice).bit_length()

    @property
    def codebook_bits(self) -> int:
        """Bits of the codebooks of one tile."""
        return self.stages * self.stored * self.size * _WORD_BITS

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry in memory: a power of two."""
        return 1 << (self.size * _WORD_BITS // 8 - 1).bit_length()

    def load_width(self, word_bytes: int, banks: int) -> int:
        """Entries that a cache takes in a cycle: those of a memory word, each into another bank."""
        return max(1, min(word_bytes // self.entry_bytes, banks))

    def load_beats(self, shared: int, word_bytes: int, banks: int) -> int:
        """Cycles in which a cache takes ``shared`` entries of each stage."""
        return self.stages * -(-shared // self.load_width(word_bytes, banks))

    def load_words(self, shared: int, word_bytes: int) -> int:
        """Words that a load of ``shared`` entries of each stage reads, header included."""
        return 1 + self.stages * -(-shared * self.entry_bytes // word_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExchangeShape(Shape):
    """Lanes that each dequantize a vector, and how many elements a lane multiplies at a time."""

    size: int = bounded(8, 2, 16, "x: elements of a vector")
    need: int = bounded(
        2, 1, 8, "y: elements that a lane takes at a time; size / need is a power of two from 2"
    )
    lanes: int = bounded(8, 2, 64, "a multiple of size / need")

    def __post_init__(self) -> None:
        if self.size % self.need or self.pieces < 2 or self.pieces & (self.pieces - 1):
            self._refuse("need", f"size = {self.size} divided by a power of two from 2 on")
        if self.lanes % self.pieces:
            self._refuse("lanes", f"a multiple of size / need = {self.pieces}")

    @property
    def pieces(self) -> int:
        """Counts the pieces of a vector, which are the lanes of a mini-group."""
        return self.size // self.need

    @property
    def steps(self) -> int:
        """Exchanges of each lane: one with each other lane of its mini-group."""
        return self.pieces - 1


# Table II of the paper. Its codebooks are per tensor (AQLM), per tile of 256 x 256 (GPTVQ), and per
# group of channels of a head (CQ), whose rows are tokens. The last two are the shapes of published
# checkpoints of AQLM. quip4 has a lattice like
# QuiP#'s E8P; its padding and second stage differ (docs/vqllm-lattice.md).
NAMED: dict[str, VqShape] = {
    "quip4": VqShape(entries=65536, lattice=True),
    "aqlm3": VqShape(entries=4096),
    "gptvq2": VqShape(size=4, stages=1, tile_rows=256, tile_columns=256),
    "cq4": VqShape(size=2, stages=1, tile_columns=2),
    "cq2": VqShape(size=4, stages=1, tile_columns=4),
    "aqlm2x8": VqShape(),
    "aqlm1x16": VqShape(entries=65536, stages=1),
}


@dataclasses.dataclass(frozen=True)
class Tile:
    """Rows and vectors of a matrix that share their codebooks; the last ones may be ragged."""

    rows: slice
    vectors: slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixShape(Config):
    """A matrix of ``rows`` outputs and ``columns`` inputs, or of tokens and channels."""

    rows: int = dataclasses.field(metadata=declared(Range(1, 1 << 20), "rows of the matrix"))
    columns: int = dataclasses.field(metadata=declared(Range(1, 1 << 20), "a multiple of vq.size"))
    vq: VqShape = nested(VqShape)

    def __post_init__(self) -> None:
        if self.columns % self.vq.size:
            self._refuse("columns", f"a multiple of vq.size = {self.vq.size}")

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return self.columns // self.vq.size

    @property
    def tile_rows(self) -> int:
        return min(self.vq.tile_rows or self.rows, self.rows)

    @property
    def tile_vectors(self) -> int:
        return min(self.vq.tile_columns // self.vq.size or self.vectors, self.vectors)

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down the rows and along the columns."""
        return math.ceil(self.rows / self.tile_rows), math.ceil(self.vectors / self.tile_vectors)

    @property
    def tiles(self) -> list[Tile]:
        """All tiles, row of tiles by row of tiles."""
        down, along = self.grid
        return [
            Tile(
                slice(r * self.tile_rows, min((r + 1) * self.tile_rows, self.rows)),
                slice(v * self.tile_vectors, min((v + 1) * self.tile_vectors, self.vectors)),
            )
            for r in range(down)
            for v in range(along)
        ]

    @property
    def code_bits(self) -> int:
        """Bits of all codes."""
        return self.rows * self.vectors * self.vq.stages * self.vq.code_bits

    @property
    def codebook_bits(self) -> int:
        """Bits of all codebooks."""
        return math.prod(self.grid) * self.vq.codebook_bits

    @property
    def bits_per_element(self) -> float:
        """Codes and codebooks; a scale of a row is not counted."""
        return (self.code_bits + self.codebook_bits) / (self.rows * self.columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work(Config):
    """The computation: a matrix times vectors, or attention over the codes of K and of V.

    Attention: rows are cached tokens, columns the channels of a head, vectors the queries of a KV
    head. It runs once for K and once for V, for each of ``heads``.
    """

    matrix: MatrixShape = dataclasses.field(metadata=declared(Kind(MatrixShape)))
    operation: str = choice("gemv", ("gemv", "gemm", "attention"), "what is computed")
    vectors: int = bounded(1, 1, 1 << 16, "batch or tokens or queries of a KV head")
    heads: int = 1  # KV heads of attention, 1..1,024

    def __post_init__(self) -> None:
        self._check_range("heads", 1, 1024 if self.operation == "attention" else 1)
        if self.operation == "attention" and self.matrix.vq.stages > 1:
            self._refuse("matrix.vq.stages", "1 for attention")
        # A channel group has a codebook for all tokens.
        tile = {"tile_rows": 0, "tile_columns": self.matrix.vq.size}
        for field, only in tile.items() if self.operation == "attention" else ():
            if getattr(self.matrix.vq, field) != only:
                self._refuse(f"matrix.vq.{field}", f"{only} for attention")

    @property
    def code_bits(self) -> int:
        """Bits of all codes, of K and V for attention."""
        return self.matrix.code_bits * (2 * self.heads if self.operation == "attention" else 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Config):
    """The resources that an engine may take. Bits count both sides of a double buffer."""

    register_bits: int = bounded(1 << 18, 0, 1 << 30, "flip-flops for entries and exchanges")
    sram_bits: int = bounded(1 << 23, 0, 1 << 36, "bits of the memories")
    ports: int = bounded(256, 1, 1 << 16, "memories of one read per cycle")
    multipliers: int = bounded(256, 1, 1 << 16, "products per cycle")
    data_bits: int = power_of_two(512, 64, 1024, "W: bits per cycle of the memory port")
    latency: int = bounded(40, 1, 4096, "cycles from a request to its word")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Config):
    """The form of an engine's work: the sizes that are generated, and those of its registers."""

    method: str = choice(
        "dequantize", ("dequantize", "tables"), "tables: x . C once, then look-ups"
    )
    fusion: str = choice(
        "none",
        ("none", "exchange", "buffer"),
        "what brings elements to other lanes: exchange is a network, buffer a memory",
    )
    need: int = 0  # elements of a vector multiplied at a time with a fusion, 1..8; else 0
    cores: int = power_of_two(1, 1, 16, "cores side by side")
    lookups: int = bounded(8, 1, 128, "codes of a beat of a core, a multiple of the stages")
    side: int = bounded(1, 1, 64, "vectors side by side")
    groups: int = power_of_two(1, 1, 64, "of them that a beat of a gemm meets in turn")
    banks: int = power_of_two(8, 1, 64, "of each core")
    registers: int = 0  # n_reg: entries of each stage in registers, 0..256
    shared: int = bounded(
        256, 1, 1 << 16, "n_shared: entries of each stage on chip, at least registers and 1"
    )
    split: int = 1  # parts of the columns, a divisor of cores
    rows: int = bounded(256, 1, 1 << 16, "rows of a job of a core")
    lanes: int = 1  # sums of cores that are added per cycle, a power of two up to cores
    builders: int = 0  # entries of tables per cycle, a divisor of the vectors; 0 without tables

    def __post_init__(self) -> None:
        self._check_range("registers", 0, min(256, self.shared))
        self._check_range("split", 1, self.cores)
        if self.cores % self.split:
            self._refuse("split", f"a divisor of cores = {self.cores}")
        self._check_power_of_two("lanes", 1, self.cores)
        self._check_range("builders", *((1, 64) if self.method == "tables" else (0, 0)))
        self._check_range("need", *((0, 0) if self.fusion == "none" else (1, 8)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttendShape(Shape):
    """Decode attention on CQ codes: ``groups`` channel groups of a head in a pass.

    A pass takes all tokens. K has ``passes`` of them, and so has V.
    """

    pq: PqShape = nested(PqShape, "a code per channel group")
    groups: int = bounded(8, 4, 128, "channel groups of a pass, a divisor of pq.subspaces")
    queries: int = bounded(4, 1, 8, "queries of a KV head side by side")
    data_bits: int = power_of_two(256, 64, 1024, "of a memory word; divides a pass's entries")
    max_tokens: int = bounded(4096, 1, 32768, "longest context")

    def __post_init__(self) -> None:
        if self.pq.subspaces % self.groups:
            self._refuse("groups", f"a divisor of pq.subspaces = {self.pq.subspaces}")
        row = self.groups * self.pq.sub * _WORD_BITS
        if row % self.data_bits or self.data_bits % (self.pq.sub * _WORD_BITS):
            self._refuse("data_bits", f"a divisor of {row}, of whole entries")
        if self.data_bits % self.token_bits and self.token_bits % self.data_bits:
            self._refuse("data_bits", f"a multiple or a divisor of {self.token_bits}")
        _ = self.part

    @property
    def passes(self) -> int:
        """Counts the passes of K, or of V."""
        return self.pq.subspaces // self.groups

    @property
    def part(self) -> PqShape:
        """The channels of a pass."""
        size = self.groups * self.pq.sub
        return PqShape(head_dim=size, subspaces=self.groups, bits=self.pq.bits)

    @property
    def token_bits(self) -> int:
        """Bits of the codes of a token and a pass."""
        return self.groups * self.pq.bits

    def code_words(self, tokens: int) -> int:
        """Memory words of the codes of a pass."""
        return -(-tokens * self.token_bits // self.data_bits)

    def book_words(self, entries: int) -> int:
        """Memory words of the codebooks of a pass."""
        return entries * self.groups * self.pq.sub * _WORD_BITS // self.data_bits


# By method and head size. SmolLM2 has heads of 64 elements, 3 of them on a KV head.
ATTEND: dict[str, AttendShape] = {
    "cq4": AttendShape(),
    "cq2": AttendShape(pq=PqShape(subspaces=32), groups=4),
    "cq4_64": AttendShape(pq=PqShape(head_dim=64, subspaces=32), queries=3),
    "cq2_64": AttendShape(pq=PqShape(head_dim=64, subspaces=16), groups=4, queries=3),
}
