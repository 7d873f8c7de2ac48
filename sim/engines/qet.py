"""QET: matrices as codes of ordered columns, decoded tile by tile by an engine of each core.

Attention, the vector unit and the memory are ``sim.matrix``; K and V are FP16 words. A matrix has
the most entries that ``ratio`` allows (``golden.qet.config.Budget``). Its tiles are spread over the
cores. Where cores outnumber the tiles, several cores have rows of one tile, each with all its
codebooks. They share what they read of memory.

``gemv`` is qet_dequant_gemv: it reads codebooks and rows again for each token, and takes the cycles
of ``golden.qet.timing``. ``decode`` reads them once per operation at the same pace, and the matrix
unit multiplies. The head and a router are FP16 words.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import ClassVar

from golden.config import Config, ConfigError, bounded, choice
from golden.qet.config import Budget, QetShape, Stage, TileShape
from golden.qet.format import ImageShape
from golden.qet.timing import gemv_fill, image_bound
from sim.constant import Interval
from sim.cost import Spent
from sim.matrix import CONSTANTS, MatrixEngine, MatrixSettings
from sim.model import Model
from sim.work import LINEAR, Pass, Work, matrices_of, works


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetSettings(MatrixSettings):
    """The quantization of matrices, and the engines, as the generators name them."""

    ratio: int = bounded(4, 1, 16, "FP16 bits over stored bits")
    levels: int = bounded(3, 0, 5, "compare-swaps of the first stage")
    group: int = 8  # columns of a codebook, 1..256
    entry_bits: int = 10  # of an element of an entry, 2..16; 0: FP16 words
    method: str = choice("gemv", ("gemv", "decode"), "what a core does")
    data_bits: int = 512  # of a core's words of memory, a power of two in 64..1,024
    ahead: int = bounded(64, 4, 256, "words in flight")

    def __post_init__(self) -> None:
        super().__post_init__()
        stages = self.stages
        QetShape(rows=1, columns=1, group=self.group, stages=stages, entry_bits=self.entry_bits)
        ImageShape(
            shape=TileShape(group=self.group, stages=stages, entry_bits=self.entry_bits),
            data_bits=self.data_bits,
        )

    @property
    def stages(self) -> tuple[Stage, Stage]:
        return Stage(levels=self.levels), Stage(levels=0)


@dataclasses.dataclass(frozen=True)
class _Matrix:
    """A matrix in memory, and the cycles of its busiest core for one token."""

    shape: QetShape
    image: ImageShape
    cycles: int
    fill: int

    @property
    def bytes(self) -> int:
        """Bytes of the matrix, in whole words of memory."""
        entries = sum(stage.entries for stage in self.shape.stages)
        words = self.image.book_words(entries) + self.image.row_words(self.shape.rows)
        return self.shape.tiles * words * self.image.word_bytes


@functools.lru_cache(256)
def _matrix(inputs: int, outputs: int, settings: QetSettings, memory: int) -> _Matrix:
    """ConfigError: the ratio leaves no entry, or a stage of the engine has too few."""
    asked = QetShape(
        rows=outputs, columns=inputs, element_bits=16, group=settings.group,
        stages=settings.stages, entry_bits=settings.entry_bits,
    )  # fmt: skip
    try:
        shape = Budget(ratio=Fraction(settings.ratio)).solve(asked)
        tile = TileShape(group=settings.group, stages=shape.stages, entry_bits=settings.entry_bits)
    except ConfigError as error:
        raise ConfigError(f"a matrix of {outputs} x {inputs}: {error}") from None
    image = ImageShape(shape=tile, data_bits=settings.data_bits)
    tiles = math.ceil(shape.tiles / settings.cores)
    ways = max(1, settings.cores // shape.tiles)
    mine = dataclasses.replace(shape, rows=math.ceil(outputs / ways), columns=tiles * shape.tile)
    words = tiles * image.row_words(mine.rows)
    fill = gemv_fill(memory, settings.ahead, words)
    return _Matrix(shape, image, image_bound(mine, image), fill)


class Qet(MatrixEngine):
    """A chip of engines that decode tiles, with a matrix unit for FP16 words."""

    name = "qet"
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {
        **CONSTANTS,
        "sram": ("pJ/bit", "of a bit of the codebooks on chip that is read or written"),
    }
    Settings: ClassVar[type[Config]] = QetSettings
    chip_fields: ClassVar[Collection[str]] = (
        *MatrixEngine.chip_fields,
        "ratio",
        "levels",
        "group",
        "entry_bits",
        "method",
        "data_bits",
        "ahead",
    )

    def matrix(self, inputs: int, outputs: int) -> _Matrix:
        return _matrix(inputs, outputs, self.settings, self.memory_cycles)

    def supports(self, model: Model) -> None:
        super().supports(model)
        self.weight_bytes(model)

    def weight_bytes(self, model: Model) -> float:
        """Codes, maps and codebooks of the layers; router, embeddings and head as words."""
        layers = model.stored(lambda *size: self.matrix(*size).bytes)
        words = model.router_weights + model.weights - model.layer_weights
        return layers + words * self.settings.weight_bytes

    def linear(self, model: Model, work: Work) -> Spent:
        found = [self.matrix(*size) for size in matrices_of(model, work)]
        if not found:
            return super().linear(model, work)
        experts = max(1, work.weights // (work.inputs * work.outputs))
        passes = experts
        limits = {}
        if self.settings.method == "gemv":
            passes = max(work.rows, experts)
        else:
            limits["matrix"] = self.product_seconds(work)
        limits["decode"] = passes * sum(each.cycles for each in found) / self.clock
        fill = sum(each.fill for each in found) / self.clock
        return self.roofline(
            work, limits, {"weights": float(passes * sum(each.bytes for each in found))}, fill
        )

    @property
    def area(self) -> Mapping[str, float]:
        """Unknown: the cores' figure is the paper's, without the engines of codes."""
        return {}

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        """Unknown: no formula has the codebooks of these engines."""
        return {}

    def on_chip(self, model: Model, step: Pass) -> Interval:
        return self.hardware.constants["sram"].interval * self._looked(model, step.tokens)

    @functools.lru_cache(1 << 12)  # noqa: B019, engines are few and kept anyway
    def _looked(self, model: Model, tokens: int) -> float:
        """Bytes of entries: each is written once, and each row reads one of each stage."""
        amount = 0.0
        for work in works(model, Pass.decode(tokens, 0)):
            if work.kind != LINEAR:
                continue
            experts = max(1, work.weights // (work.inputs * work.outputs))
            passes = max(work.rows, experts) if self.settings.method == "gemv" else experts
            for size in matrices_of(model, work):
                shape = self.matrix(*size).shape
                bits = sum(
                    (stage.entries + shape.rows) * shape.padded * shape.stored_entry_bits
                    for stage in shape.stages
                )
                amount += work.count * passes * bits / 8
        return amount
