"""Image of a quantized matrix in memory, and the jobs of an engine that reads it. Pure Python.

    descriptors   of every tile part, one for each core: part by part, core by core
    codebooks     of every tile: a word of header, then stage by stage all entries, padded
    codes         of every tile part: the beats of its rows, in the order in which a core reads them
    scales        of every row, FP16, if the matrix has scales

Each of them begins at a word of memory. The lowest bytes are the first ones. A beat has the codes
of ``lookups`` lanes, lane 0 in the lowest bits, and whole bytes. The last beat of a row may have
fewer vectors, and its other codes are 0.

With ``cores`` cores and ``split`` s the columns are cut in s parts, and the rows go round among
cores / s cores. Core ``r * s + p`` has the columns of part p, and the rows r, r + cores / s and so
on of each stripe. A stripe is the rows whose sums the cores keep at a time.
"""

import dataclasses
import enum
import itertools
from collections.abc import Mapping
from typing import ClassVar

from golden.config import Config, ConfigError, bounded, flag, nested, power_of_two
from golden.vqllm.config import NAMED, ExchangeShape, MatrixShape, VqShape

ADDRESS_BITS = 48  # of the addresses of a descriptor
ROWS_BITS = 21  # of a number of rows
DESCRIPTOR_BITS = 256

# Fields of a descriptor, the first in the lowest bits: name to bits.
DESCRIPTOR: dict[str, int] = {
    "code": ADDRESS_BITS,  # address of the codes
    "words": 24,  # words of memory that they take
    "book": ADDRESS_BITS,  # address of the header of the codebooks
    "tensor": 24,  # number of the matrix
    "tile": 20,  # number of the tile that the codebooks serve
    "offset": 20,  # beat of x that beat 0 of a row meets
    "beats": 20,  # of a row; 0: the core has no columns, and its sums are 0
    "tail": 7,  # vectors of the last beat of a row
    "registers": 9,  # n_reg: entries of each stage in registers
    "shared": 17,  # n_shared: entries of each stage on chip
    "load": 1,  # the codebooks are others than those of the part before
}

# Fields of the header of codebooks.
HEADER: dict[str, int] = {
    "tensor": 24,  # number of the matrix
    "tile": 20,  # number of the tile
    "entries": 17,  # of each stage; a code at or above it is wrong
}


class Fault(enum.IntFlag):
    """The faults of a job; its other rows are right."""

    JOB = 1 << 0  # a number of the job is out of range: it gives one row, NaN
    SHAPE = 1 << 1  # a number of a descriptor is out of range, or the codes are too few
    TENSOR = 1 << 2  # a descriptor or codebooks of another matrix, or of another tile
    SWITCH = 1 << 3  # a switch of the codebooks in mid-tile, or none at the end of a tile
    CODEBOOK = 1 << 4  # an entry is NaN, infinite or above 1 in magnitude
    CODE = 1 << 5  # an index beyond the codebook
    NONFINITE = 1 << 6  # NaN or infinity in x
    NO_DESCRIPTOR = 1 << 7  # memory refused a descriptor
    NO_CODEBOOK = 1 << 8  # memory refused codebooks that are loaded
    NO_CODE = 1 << 9  # memory refused codes
    NO_ENTRY = 1 << 10  # memory refused an entry beyond n_shared
    NO_SCALE = 1 << 11  # memory refused scales of rows
    LENGTH = 1 << 12  # vectors of another length than the job states, or too many of them


def packed(fields: Mapping[str, int], values: Mapping[str, int]) -> int:
    """The word of ``values``, each in the bits of its field. ConfigError: a value does not fit."""
    word, at = 0, 0
    for name, bits in fields.items():
        value = values.get(name, 0)
        if not 0 <= value < 1 << bits:
            raise ConfigError(f"{name} must be 0..{(1 << bits) - 1}, not {value}")
        word |= value << at
        at += bits
    return word


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageShape(Config):
    """The numbers that shape an image: codes of a beat, words of memory, cores of the engine."""

    conditional_parts: ClassVar[tuple[str, ...]] = ("exchange",)

    vq: VqShape = nested(VqShape)
    lookups: int = bounded(8, 1, 64, "codes of a beat, a multiple of vq.stages")
    data_bits: int = power_of_two(512, 64, 1024, "of a word of memory")
    cores: int = power_of_two(1, 1, 16, "cores side by side")
    rows: int = bounded(256, 1, 1 << 16, "most rows of a stripe in a core")
    need: int = 0  # elements of a vector that are multiplied at a time; 0: all

    def __post_init__(self) -> None:
        if self.lookups % self.vq.stages:
            self._refuse("lookups", f"a multiple of vq.stages = {self.vq.stages}")
        if self.need:
            _ = self.exchange  # the ranges of both

    @property
    def exchange(self) -> ExchangeShape:
        """ConfigError: need and the vectors of a beat do not fit each other."""
        return ExchangeShape(size=self.vq.size, need=self.need, lanes=self.beat_vectors)

    @property
    def beat_words(self) -> int:
        """Words of x that a beat meets."""
        return self.exchange.pieces if self.need else 1

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    @property
    def beat_vectors(self) -> int:
        """Vectors of a beat."""
        return self.lookups // self.vq.stages

    @property
    def beat_bytes(self) -> int:
        """Bytes of the codes of a beat."""
        return -(-self.lookups * self.vq.code_bits // 8)

    def x_words(self, columns: int) -> int:
        """Words of a vector that a matrix of ``columns`` columns meets."""
        return -(-columns // (self.beat_vectors * self.vq.size)) * self.beat_words

    @property
    def entry_bytes(self) -> int:
        return self.vq.entry_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of the codebook of a stage."""
        return self.vq.stored * self.entry_bytes

    @property
    def book_bytes(self) -> int:
        """Bytes of the codebooks of a tile, header included."""
        return self.word_bytes + self.whole_words(self.vq.stages * self.stage_bytes)

    @property
    def descriptor_bytes(self) -> int:
        return max(DESCRIPTOR_BITS // 8, self.word_bytes)

    def whole_words(self, count: int) -> int:
        """Bytes of the words that ``count`` bytes take."""
        return -(-count // self.word_bytes) * self.word_bytes

    def load_beats(self, shared: int, banks: int) -> int:
        return self.vq.load_beats(shared, self.word_bytes, banks)

    def load_words(self, shared: int) -> int:
        """Words that a load of ``shared`` entries of each stage reads, header included."""
        return self.vq.load_words(shared, self.word_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Config):
    """Run-time numbers of a job."""

    registers: int = bounded(0, 0, 256, "n_reg: entries of each stage in registers")
    shared: int = bounded(256, 1, 1 << 16, "n_shared: entries of each stage on chip")
    split: int = power_of_two(1, 1, 16, "parts of the columns")

    def __post_init__(self) -> None:
        if self.registers > self.shared:
            self._refuse("registers", f"at most shared = {self.shared}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqPackConfig(Config):
    """An engine and a plan, as golden.llm.pack writes images for them."""

    image: ImageShape = nested(ImageShape)
    plan: Plan = nested(Plan)
    banks: int = power_of_two(16, 1, 64, "of the SRAM of a core")
    lanes: int = bounded(1, 1, 16, "sums of cores that are added per cycle")
    scaled: bool = flag(True, "rows have scales")


# Matrices of a decoder layer that golden.llm.pack takes, by default those of the FFN.
FFN = ("gate_proj", "up_proj", "down_proj")
MATRICES = (*FFN, "k_proj", "v_proj")

# Named configurations of vq_gemv, with the entries that fit on chip.
PACKS: dict[str, VqPackConfig] = {
    "aqlm3": VqPackConfig(
        image=ImageShape(vq=NAMED["aqlm3"]), plan=Plan(registers=32, shared=4096)
    ),
    "gptvq2": VqPackConfig(
        image=ImageShape(vq=NAMED["gptvq2"], lookups=16), plan=Plan(registers=32)
    ),
    "quip4": VqPackConfig(image=ImageShape(vq=NAMED["quip4"]), plan=Plan(registers=32), banks=8),
    "aqlm2x8": VqPackConfig(image=ImageShape(vq=NAMED["aqlm2x8"]), plan=Plan(registers=32)),
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A tile's part that a core works on; ``beats`` 0: the core has no columns left.

    rows: of the matrix, every cores / split-th; vectors: of a row; offset: its first beat
    """

    core: int
    rows: range
    tile: int
    vectors: range
    offset: int
    beats: int
    tail: int
    load: bool

    def code_bytes(self, shape: ImageShape) -> int:
        """Bytes of its codes: whole words."""
        return shape.whole_words(len(self.rows) * self.beats * shape.beat_bytes)


@dataclasses.dataclass(frozen=True)
class Layout:
    """An image: where everything lies, as bytes from its beginning.

    parts: stripe by stripe, piece by piece of the columns, core by core, as the descriptors are.
    """

    parts: list[Part]
    stripe: int  # rows of a stripe
    pieces: int  # parts of each core and stripe
    books: list[int]  # by tile
    codes: list[int]  # by part
    scales: int
    size: int

    def of_core(self, core: int) -> list[Part]:
        """The parts that a core works on, in order."""
        return [part for part in self.parts if part.core == core and part.rows]


def layout(matrix: MatrixShape, shape: ImageShape, plan: Plan) -> Layout:
    """Lays a matrix out for an engine of ``shape``. ConfigError: the engine cannot have it."""
    if matrix.vq != shape.vq:
        raise ConfigError(f"the matrix must be {shape.vq}, not {matrix.vq}")
    if plan.split > shape.cores:
        raise ConfigError(f"Plan.split must be 1..{shape.cores}, not {plan.split}")
    along = matrix.grid[1]
    if along > 1 and matrix.tile_vectors % shape.beat_vectors:
        raise ConfigError(
            f"a tile must have a multiple of {shape.beat_vectors} vectors, not "
            f"{matrix.tile_vectors}"
        )
    if plan.shared > shape.vq.stored:
        raise ConfigError(f"Plan.shared must be 1..{shape.vq.stored}, not {plan.shared}")
    stripe = _stripe(matrix, shape.rows * (shape.cores // plan.split))
    cuts = _pieces(matrix, shape.beat_vectors, plan.split)
    pieces = max(map(len, cuts))
    parts = list(_parts(matrix, shape, plan, stripe, cuts, pieces))
    at = len(parts) * shape.descriptor_bytes
    books = [at + n * shape.book_bytes for n in range(len(matrix.tiles))]
    at += len(books) * shape.book_bytes
    sizes = itertools.accumulate((part.code_bytes(shape) for part in parts), initial=at)
    *codes, scales = sizes
    size = scales + shape.whole_words(2 * matrix.rows)
    return Layout(parts, stripe, pieces, books, codes, scales, size)


def _stripe(matrix: MatrixShape, most: int) -> int:
    """Rows of a stripe: as many as there is room for; tiles of rows have whole stripes."""
    if matrix.grid[0] == 1:
        return min(matrix.rows, most)
    return max(n for n in range(1, most + 1) if matrix.tile_rows % n == 0)


def _pieces(matrix: MatrixShape, beat: int, split: int) -> list[list[tuple[int, int, int]]]:
    """Cuts the columns into parts: (number of the tile along the columns, first beat, last + 1).

    In the order of the work: a tile that is cut off at the end of the columns comes first.
    """
    along = matrix.grid[1]
    of_tile = -(-matrix.tile_vectors // beat)
    beats = -(-matrix.vectors // beat)
    unit = of_tile if along >= split else 1  # cut between tiles where there are enough
    count = -(-beats // unit)
    ends = [min(round(n * count / split) * unit, beats) for n in range(split + 1)]
    found = []
    for first, last in itertools.pairwise(ends):
        tiles = range(first // of_tile, -(-last // of_tile)) if last > first else range(0)
        own = [(n, max(first, n * of_tile), min(last, (n + 1) * of_tile)) for n in tiles]
        # Sums leave during the last part. So it is a long one, which all cores give no faster than
        # a row per cycle.
        found.append(sorted(own, key=lambda part: part[2] - part[1]))
    return found


def _parts(matrix, shape: ImageShape, plan: Plan, stripe: int, cuts, pieces: int):
    """Yields the parts of all cores, in the order of their descriptors."""
    along, split = matrix.grid[1], plan.split
    latest: dict[int, int] = {}
    for start in range(0, matrix.rows, stripe):
        end = min(start + stripe, matrix.rows)
        for piece, core in itertools.product(range(pieces), range(shape.cores)):
            rows = range(start + core // split, end, shape.cores // split)
            own = cuts[core % split]
            if piece >= len(own) or not rows:
                yield Part(core, rows, 0, range(0), 0, 0, 0, False)
                continue
            column, first, last = own[piece]
            tile = start // matrix.tile_rows * along + column
            vectors = range(first * shape.beat_vectors,
                            min(last * shape.beat_vectors, matrix.vectors))  # fmt: skip
            tail = len(vectors) - (last - first - 1) * shape.beat_vectors
            load = latest.get(core) != tile
            latest[core] = tile
            yield Part(core, rows, tile, vectors, first, last - first, tail, load)
