"""Shapes of matrices quantized by QET, and how many bits each part of them takes. Pure Python.

Source: QET, sections 3.2 and 4.1.
"""

import dataclasses
from fractions import Fraction

from golden.config import Config, ConfigError, Range, bounded, choice, declared, flag
from golden.fp16.format import FP16, FP32
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN

LEVELS_MAX = 5
STAGES_MAX = 4
ENTRIES_MAX = 1 << 16
FORMATS = {16: FP16, 32: FP32}  # of an element, by its bits
ELEMENT_BITS = tuple(FORMATS)
EXPONENT_BITS = 8  # of the power of two that scales all entries
RANGE_BITS = 32  # of low or of step
GRID = 24  # entries are integers times 2**-GRID
LIMIT = 1 << GRID + 1  # of the magnitude of an element of an entry, as an integer
_TILE_COLUMNS_MAX = 1024


def swap_bits(levels: int) -> int:
    """Bits of the map of one network of ``2**levels`` values: ``levels * 2**(levels - 1)``."""
    return levels << levels >> 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage(Config):
    """One quantization: of the matrix, or of what the stages before it leave.

    After ``levels`` compare-swaps ``2**levels`` neighbouring columns are a network of their own.
    """

    levels: int = bounded(3, 0, LEVELS_MAX, "l: compare-swaps of each element")
    entries: int = bounded(256, 1, ENTRIES_MAX, "k: entries of each codebook")

    @property
    def parts(self) -> int:
        """Values of a network; each goes into a part of its own."""
        return 1 << self.levels

    @property
    def code_bits(self) -> int:
        """``ceil(log2 k)``: a single entry needs no code."""
        return (self.entries - 1).bit_length()


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetShape(Config):
    """A matrix of ``rows`` x ``columns``, and how it is quantized.

    ``group`` columns of a part share a codebook, so a stage's codes come in tiles of
    ``2**levels * group`` columns. Columns that fill no tile are padded, and counted.
    """

    rows: int = dataclasses.field(metadata=declared(Range(1, 1 << 24), "n: rows of the matrix"))
    columns: int = dataclasses.field(
        metadata=declared(Range(1, 1 << 24), "d: columns of the matrix")
    )
    element_bits: int = choice(32, ELEMENT_BITS, "a: bits of an element")
    group: int = bounded(8, 1, 256, "d / m: columns of a codebook")
    stages: tuple[Stage, ...] = (Stage(),)  # r of them, 1..4
    entry_bits: int = 10  # a': bits of an element of an entry, 2..16; 0: those of an element
    by_group: bool = flag(False, "each codebook has a range of its own, not each stage")

    def __post_init__(self) -> None:
        if not 1 <= len(self.stages) <= STAGES_MAX:
            self._refuse("stages", f"1..{STAGES_MAX} of them")
        if type(self.entry_bits) is not int or self.entry_bits:
            self._check_range("entry_bits", 2, 16)

    @property
    def tile(self) -> int:
        """Columns of a tile: those of the stage with most levels."""
        return self.group << max(stage.levels for stage in self.stages)

    @property
    def padded(self) -> int:
        """Columns with those that fill the last tile."""
        return -(-self.columns // self.tile) * self.tile

    @property
    def tiles(self) -> int:
        return self.padded // self.tile

    @property
    def groups(self) -> int:
        """m: codebooks of each stage, and codes of a row."""
        return self.padded // self.group

    @property
    def stored_entry_bits(self) -> int:
        """Bits that an element of an entry takes."""
        return self.entry_bits or self.element_bits

    @property
    def exponents(self) -> range:
        """Powers of two that may scale all entries."""
        if self.element_bits == 32:
            return range(-126, 128)
        return range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1)

    @property
    def range_bits(self) -> int:
        """Bits of the ranges of one stage: low and step."""
        if not self.entry_bits:
            return 0
        return (self.groups if self.by_group else 1) * 2 * RANGE_BITS

    def map_bits(self, stage: Stage) -> int:
        """Bits of a stage's indicator maps: half a bit per element and level."""
        return self.rows * (self.padded >> stage.levels) * swap_bits(stage.levels)

    def code_bits(self, stage: Stage) -> int:
        return self.rows * self.groups * stage.code_bits

    def codebook_bits(self, stage: Stage) -> int:
        """Bits of the entries of all codebooks of a stage."""
        return stage.entries * self.padded * self.stored_entry_bits

    @property
    def stored_bits(self) -> int:
        """Every bit that the quantized matrix takes."""
        return EXPONENT_BITS + sum(
            self.map_bits(stage)
            + self.code_bits(stage)
            + self.codebook_bits(stage)
            + self.range_bits
            for stage in self.stages
        )

    @property
    def ratio(self) -> Fraction:
        """Bits of the matrix over bits stored."""
        return Fraction(self.rows * self.columns * self.element_bits, self.stored_bits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileShape(Config):
    """Tiles of FP16 matrices that a block takes, with the largest codebooks.

    A tile is ``group << levels`` neighbouring columns, with the levels of the stage that has most.
    Its networks and codebooks serve no other columns. All rows of a tile come before those of the
    next. Source: QET, sections 3.2 and 3.4; decision 0223.
    """

    group: int = 8  # columns of a codebook, 1..256
    # one for each pass of the quantization, 1..4
    stages: tuple[Stage, ...] = (Stage(levels=3, entries=256), Stage(levels=0, entries=64))
    entry_bits: int = 10  # of an element of an entry, 2..16; 0: FP16 words

    def __post_init__(self) -> None:
        if not isinstance(self.stages, tuple) or not all(
            isinstance(stage, Stage) for stage in self.stages
        ):
            self._refuse("stages", "a tuple of Stage")
        _ = self.whole  # the ranges that a matrix has, too
        if self.columns > _TILE_COLUMNS_MAX:
            self._refuse("group", f"of at most {_TILE_COLUMNS_MAX} columns of a tile")
        if min(stage.entries for stage in self.stages) < 2:
            self._refuse("stages", "of 2 or more entries")

    @property
    def whole(self) -> QetShape:
        """A matrix of one tile and one row."""
        return QetShape(
            rows=1, columns=1, element_bits=16, group=self.group, stages=self.stages,
            entry_bits=self.entry_bits,
        )  # fmt: skip

    @property
    def columns(self) -> int:
        return self.whole.tile

    @property
    def groups(self) -> int:
        """Codebooks of each stage, and codes of a row."""
        return self.columns // self.group

    @property
    def element_bits(self) -> int:
        """Bits of an element of an entry as it is stored."""
        return self.entry_bits or 16

    @property
    def entry_word_bits(self) -> int:
        """The entries of the same number of all groups."""
        return self.columns * self.element_bits

    @property
    def row_bits(self) -> int:
        """Maps and codes of a row, stage by stage."""
        return sum(
            stage.code_bits * self.groups + self.networks(stage) * swap_bits(stage.levels)
            for stage in self.stages
        )

    @property
    def step_bits(self) -> int:
        """Bits of a step, the width of -2..2 in ``2**entry_bits - 1`` parts, rounded up.

        0: entries are FP16 words and have no step.
        """
        if not self.entry_bits:
            return 0
        return (-(-2 * LIMIT // ((1 << self.entry_bits) - 1))).bit_length()

    def networks(self, stage: Stage) -> int:
        return self.columns >> stage.levels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget(Config):
    """The memory that a quantized matrix may take, and its stages' shares.

    ``k d a' + ranges + n m ceil(log2 k) <= (n d a / ratio - maps) * share`` for each stage. The
    paper's ranges are 2 a bits. Ours are ``QetShape.range_bits``, and d, m count padded columns.
    The exponent takes 8 bits of n d a / ratio.
    Source: section 4.1, "Parameter Selection".
    """

    ratio: Fraction = Fraction(4)
    shares: tuple[Fraction, ...] = (Fraction(7, 10), Fraction(3, 10))  # R_i

    def __post_init__(self) -> None:
        if not self.ratio > 0:
            raise ConfigError(f"Budget.ratio must be above 0, not {self.ratio}")
        if not self.shares or min(self.shares) <= 0 or sum(self.shares) > 1:
            raise ConfigError(
                f"Budget.shares must be above 0 and at most 1 together, not {self._shares}"
            )

    @property
    def _shares(self) -> str:
        return ",".join(map(str, self.shares))

    def solve(self, shape: QetShape) -> QetShape:
        """``shape`` with the largest entries of each stage that fit; more than rows are none.

        ConfigError, one line: no number of entries fits, what takes the memory, and the largest
        ratio that can be reached.
        """
        if len(self.shares) != len(shape.stages):
            raise ConfigError(
                f"Budget.shares must be {len(shape.stages)}, one for each stage, not {self._shares}"
            )
        free = self._free(shape)
        stages = []
        for number, (stage, share) in enumerate(zip(shape.stages, self.shares, strict=True)):
            found = _largest(shape, stage, free * share)
            if not found:
                raise ConfigError(self._refusal(shape, number, free))
            stages.append(dataclasses.replace(stage, entries=found))
        return dataclasses.replace(shape, stages=tuple(stages))

    def _free(self, shape: QetShape) -> Fraction:
        """Bits that the maps leave."""
        maps = sum(shape.map_bits(stage) for stage in shape.stages)
        whole = Fraction(shape.rows * shape.columns * shape.element_bits) / self.ratio
        return whole - maps - EXPONENT_BITS

    def largest_ratio(self, shape: QetShape) -> Fraction:
        """The ratio at which each stage has at least one entry."""
        maps = sum(shape.map_bits(stage) for stage in shape.stages)
        least = max(
            _needed(shape, stage, 1) / share
            for stage, share in zip(shape.stages, self.shares, strict=True)
        )
        whole = Fraction(shape.rows * shape.columns * shape.element_bits)
        return whole / (maps + least + EXPONENT_BITS)

    def _refusal(self, shape: QetShape, number: int, free: Fraction) -> str:
        elements = shape.rows * shape.columns
        budget = shape.element_bits / self.ratio
        maps = Fraction(sum(shape.map_bits(stage) for stage in shape.stages), elements)
        line = f"ratio must be at most {_down(self.largest_ratio(shape))}, not {_text(self.ratio)}"
        if free <= 0:
            return f"{line}: the maps take {_text(maps)} of {_text(budget)} bits per element"
        one = _needed(shape, shape.stages[number], 1) / elements
        share = free * self.shares[number] / elements
        return (
            f"{line}: one entry per codebook of stage {number} takes {_text(one)} of "
            f"{_text(share)} bits per element"
        )


def _needed(shape: QetShape, stage: Stage, entries: int) -> Fraction:
    """Bits of a stage without its maps."""
    stage = dataclasses.replace(stage, entries=entries)
    return Fraction(shape.codebook_bits(stage) + shape.range_bits + shape.code_bits(stage))


def _largest(shape: QetShape, stage: Stage, bits: Fraction) -> int:
    """Most entries of ``stage`` within ``bits``, 0: none. The need grows with the entries."""
    low, high = 0, min(shape.rows, ENTRIES_MAX)
    while low < high:
        middle = (low + high + 1) // 2
        if _needed(shape, stage, middle) <= bits:
            low = middle
        else:
            high = middle - 1
    return low


def _text(value: Fraction) -> str:
    return f"{float(value):.4g}"


def _down(value: Fraction) -> str:
    """Writes ``value`` rounded down to two digits after the point."""
    return f"{float(Fraction(int(value * 100), 100)):g}"
