"""Payloads of tiles: rows of codes and maps, and loads of codebooks."""

import dataclasses
from typing import ClassVar

from amaranth import signed
from amaranth.hdl import Value
from amaranth.lib import data

from golden.config import Config, flag, nested
from golden.fp16.format import FP16
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN, CodebookFault
from golden.qet.config import LIMIT, Stage, TileShape, swap_bits
from golden.qet.format import RowFault
from hdl.bits import outside
from hdl.kinds import BITS, NUMBER, index_of
from hdl.memory.config import MemoryConfig
from hdl.ports import Payload
from hdl.stream.payload import LAST

EXPONENTS = range(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1)
VALUE_BITS = LIMIT.bit_length() + 1  # of an element of an entry, -2**25..2**25


def entry_layout(shape: TileShape) -> data.ArrayLayout:
    """[group][element]: an entry of each group, as stored."""
    return data.ArrayLayout(data.ArrayLayout(shape.element_bits, shape.group), shape.groups)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetTileConfig(Config):
    """The tiles that a block takes."""

    has_exponent: ClassVar[bool] = False  # a load says the exponent of the matrix

    shape: TileShape = nested(TileShape)

    def __post_init__(self) -> None:
        for stage in self.stages:
            _ = stage.memory  # the range of its depth

    @property
    def stages(self) -> "list[QetStageConfig]":
        return [
            QetStageConfig(shape=self.shape, number=number, has_exponent=self.has_exponent)
            for number in range(len(self.shape.stages))
        ]

    @property
    def has_ranges(self) -> bool:
        """Entries are codes of ``entry_bits`` bits, not words."""
        return self.shape.entry_bits > 0

    @property
    def entry_field(self) -> str:
        """Field of a load: codes of a range, or FP16 words."""
        return "entry" if self.has_ranges else "word"

    @property
    def words_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16.bits, self.shape.columns)

    @property
    def numbers(self) -> dict:
        """Fields of the numbers of a load, stage by stage."""
        fields: dict = {}
        for stage in self.stages:
            n = stage.number
            fields[f"entries_{n}"] = (stage.entries_shape, f"entries of stage {n}, from 1 on")
            if self.has_ranges:
                fields[f"low_{n}"] = (
                    signed(VALUE_BITS), f"low of stage {n}, on the grid 2**-24", NUMBER,
                )  # fmt: skip
                fields[f"step_{n}"] = (
                    self.shape.step_bits, f"step of stage {n}, on the grid 2**-24", NUMBER,
                )  # fmt: skip
        return fields

    @property
    def info_layout(self) -> data.StructLayout:
        exponent = {"exponent": (EXPONENTS, "no element of the matrix exceeds 2**exponent")}
        return Payload(**self.numbers, **(exponent if self.has_exponent else {}))

    @property
    def load_layout(self) -> data.StructLayout:
        kind = BITS if self.has_ranges else FP16
        text = "entries of the same number of all groups"
        return Payload(
            **{self.entry_field: (entry_layout(self.shape), text, kind)},
            last=LAST,
        )

    @property
    def verdict_layout(self) -> data.StructLayout:
        return Payload(fault=(len(CodebookFault), "faults of the load; 0: none", CodebookFault))

    @property
    def codes_layout(self) -> dict:
        """Fields of the maps and codes of a row, stage by stage."""
        fields: dict = {}
        for stage in self.stages:
            n = stage.number
            if stage.map_bits:
                bits = data.ArrayLayout(stage.map_bits, stage.networks)
                fields[f"map_{n}"] = (bits, f"maps of stage {n}, network by network", BITS)
            codes = data.ArrayLayout(stage.stage.code_bits, self.shape.groups)
            fields[f"code_{n}"] = (
                codes, f"codes of stage {n}, of each part its groups", index_of("entries"),
            )  # fmt: skip
        return fields

    @property
    def row_layout(self) -> data.StructLayout:
        return Payload(
            **self.codes_layout,
            switch=(1, "use the codebooks that were loaded, from this row on"),
            wrong=(1, "the row has no meaning"),
            last=LAST,
        )

    @property
    def coded_layout(self) -> data.StructLayout:
        """A row as the encoder gives it."""
        return Payload(
            **self.codes_layout,
            switch=(1, "the first row with its codebooks"),
            fault=(len(RowFault), "why its codes have no meaning; 0: they have", RowFault),
            last=LAST,
        )

    @property
    def decoded_layout(self) -> data.StructLayout:
        return Payload(
            word=(self.words_layout, "columns of the tile, without the exponent", FP16),
            fault=(len(RowFault), "why all words are NaN; 0: they are not", RowFault),
            last=LAST,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetStageConfig(Config):
    """One stage of a tile."""

    shape: TileShape = nested(TileShape)
    number: int = 0  # of the stage, below the stages of the shape
    has_exponent: bool = flag(False, "as in QetTileConfig")

    def __post_init__(self) -> None:
        self._check_range("number", 0, len(self.shape.stages) - 1)

    @property
    def stage(self) -> Stage:
        return self.shape.stages[self.number]

    @property
    def is_final(self) -> bool:
        """No stage follows."""
        return self.number == len(self.shape.stages) - 1

    @property
    def networks(self) -> int:
        return self.shape.networks(self.stage)

    @property
    def map_bits(self) -> int:
        return swap_bits(self.stage.levels)

    @property
    def entries_shape(self) -> range:
        return range(self.stage.entries + 1)

    @property
    def memory(self) -> MemoryConfig:
        """Both buffers of the codebook of one group."""
        return MemoryConfig(
            depth=2 * self.stage.entries, width=self.shape.group * self.shape.element_bits
        )

    @property
    def rows_layout(self) -> data.ArrayLayout:
        """An entry of each group."""
        return data.ArrayLayout(self.stage.code_bits, self.shape.groups)

    @property
    def info_layout(self) -> data.StructLayout:
        ranges = {"low": signed(VALUE_BITS), "step": self.shape.step_bits}
        return data.StructLayout(
            {
                "entries": self.entries_shape,
                **(ranges if self.shape.entry_bits else {}),
                **({"exponent": EXPONENTS} if self.has_exponent else {}),
            }
        )

    def places(self) -> list[tuple[int, int]]:
        """[network][part] as pairs (group, element): which element of which entry is there."""
        per_part = self.networks // self.shape.group
        return [
            (part * per_part + network // self.shape.group, network % self.shape.group)
            for network in range(self.networks)
            for part in range(self.stage.parts)
        ]


def refused_numbers(config: QetTileConfig, p) -> list[Value]:
    """The checks that refuse the numbers of ``p``: entries, or a range beyond -2..2."""
    found, most = [], (1 << config.shape.entry_bits) - 1
    for stage in config.stages:
        n = stage.number
        found.append(outside(p[f"entries_{n}"], range(1, stage.stage.entries + 1)))
        if config.has_ranges:
            low, step = p[f"low_{n}"], p[f"step_{n}"]
            # Codes may end before the highest, so a step may reach beyond by one part.
            found += [low < -LIMIT, low > LIMIT, low + step * most > LIMIT + most]
    return found
