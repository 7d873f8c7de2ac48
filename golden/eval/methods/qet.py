"""Weights sorted by compare-swaps, clustered, and clustered again, after QET."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.eval.calibration import CalibrationData
from golden.eval.method import Method, Site, State
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index.lloyd import Training
from golden.qet.config import Budget, QetShape, Stage
from golden.qet.matrix import QetMatrix, quantize, seeds_for

__all__ = ["Qet"]

_ELEMENT_BITS = 16  # of a weight before
_SALTS = 16  # seeds of a layer, more than it has stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qet(Method):
    """``qet-8b``, ``qet-4b``, ``qet-3b``: weights with at most so many bits each, after QET.

    All bits count: maps, codes, codebooks, ranges, and columns that fill a tile. The weights are
    FP16 before. Each matrix has codebooks of its own, found without inputs of the model.

    rate: bits per weight
    levels, residual_levels: compare-swaps of the matrix, and of its residual
    stages: 1 or 2, without and with a residual
    share: of the bits that the maps leave, for the first of two stages
    group: columns of a codebook
    entry_bits: of an element of an entry, 0: 16
    by_group: each codebook has a range of its own, not each stage
    iterations: of k-means
    """

    pattern: ClassVar[str] = r"qet-(?P<rate>\d{1,2})b"
    spellings: ClassVar[tuple[str, ...]] = ("qet-8b", "qet-4b", "qet-3b")
    calibrated: ClassVar[bool] = True

    rate: int = 4
    levels: int = 3
    residual_levels: int = 0
    stages: int = 2
    share: float = 0.7
    group: int = 8
    entry_bits: int = 10
    by_group: bool = False
    iterations: int = 12

    def __post_init__(self) -> None:
        self._check_range("rate", 1, _ELEMENT_BITS)
        self._check_range("levels", 0, 5)
        self._check_range("residual_levels", 0, 5)
        self._check_range("stages", 1, 2)
        self._check_real("share", 0.01, 0.99)
        self._check_range("group", 1, 256)
        if self.entry_bits:
            self._check_range("entry_bits", 2, 16)
        self._check_bool("by_group")
        self._check_range("iterations", 0, 1 << 20)

    @property
    def replaces_weights(self) -> bool:
        return True

    def shape(self, rows: int, columns: int) -> QetShape:
        """Of a matrix, with the largest codebooks at the rate. ConfigError: none fits."""
        share = Fraction(self.share).limit_denominator(1000)
        levels = (self.levels, self.residual_levels)[: self.stages]
        asked = QetShape(
            rows=rows,
            columns=columns,
            element_bits=_ELEMENT_BITS,
            group=self.group,
            stages=tuple(Stage(levels=each) for each in levels),
            entry_bits=self.entry_bits,
            by_group=self.by_group,
        )
        shares = (share, 1 - share) if self.stages == 2 else (Fraction(1),)
        return Budget(ratio=Fraction(_ELEMENT_BITS, self.rate), shares=shares).solve(asked)

    def matrix(self, weight: Tensor, seed: int = 0) -> QetMatrix:
        """The weight (N, K) of a layer. ConfigError: its size does not reach the rate."""
        shape = self.shape(*weight.shape)
        seeds = seeds_for(max(stage.entries for stage in shape.stages))
        training = Training(seed=seed, seeds=seeds, iterations=self.iterations, few=True)
        return quantize(weight.float(), shape, training)

    def calibrate(self, data: CalibrationData) -> State:
        """Of each layer: words of the restored matrix, and the bits that it took."""
        state: State = {}
        for number, (name, linear) in enumerate(data.linears.items()):
            seed = data.seed_of(number * _SALTS)
            try:
                made = self.matrix(linear.weight.detach(), seed)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
            state[f"{name}.words"] = made.dequantized().to(torch.int16).cpu()
            state[f"{name}.bits"] = torch.tensor(made.shape.stored_bits)
        return state

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            words = state[f"{name}.words"].long() & 0xFFFF
            weight = float_from_bits(words, FP16).float()
            site.weight(name, weight.to(linear.weight.device))
            count = linear.weight.numel()
            site.bits.add("weights", name, count, int(state[f"{name}.bits"]) / count)
