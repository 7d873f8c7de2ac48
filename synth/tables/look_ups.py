"""Look-ups of a real matrix in the tiers of a codebook cache; loads torch."""

import dataclasses
from collections.abc import Iterator

import torch

from golden.index.lloyd import Training
from golden.llm.checkpoint import CheckpointError, load
from golden.vqllm.access import reordered
from golden.vqllm.cache import LookUps, Tiers
from golden.vqllm.config import NAMED, MatrixShape
from golden.vqllm.matrix import VqMatrix, quantize

_TRAINING = Training(iterations=5)


def look_beats(matrix: VqMatrix, lookups: int) -> Iterator[LookUps]:
    """The beats of each tile: ``lookups`` codes of a row at a time, as vq_gemv_core takes them."""
    stages = matrix.shape.vq.stages
    for tile in matrix.shape.tiles:
        codes = matrix.codes[tile.rows, tile.vectors].flatten(1)
        missing = -codes.shape[1] % lookups
        use = torch.ones_like(codes, dtype=torch.bool)
        code = torch.nn.functional.pad(codes, (0, missing)).reshape(-1, lookups)
        yield LookUps(code, torch.nn.functional.pad(use, (0, missing)).reshape(-1, lookups), stages)


@dataclasses.dataclass(frozen=True)
class Served:
    beats: int
    cycles: int
    conflicts: int
    share: float  # of the look-ups: by registers


def tiers(matrix: VqMatrix, lookups: int, registers: int, banks: int) -> Served:
    """All look-ups of a matrix whose entries are all on chip."""
    bounds = Tiers(registers, matrix.shape.vq.entries, banks)
    beats = cycles = conflicts = hot = every = 0
    for looks in look_beats(matrix, lookups):
        counts = looks.counts(bounds)
        beats += len(looks.code)
        cycles += int(looks.cycles(bounds).sum())
        conflicts += counts["conflicts"]
        hot += counts["registers"]
        every += counts["registers"] + counts["shared"]
    return Served(beats, cycles, conflicts, hot / every)


def up_projection(layer: int) -> torch.Tensor:
    """A weight of SmolLM2 as FP32. ValueError: the model cannot be loaded."""
    try:
        model = load().model
    except CheckpointError as error:
        raise ValueError(str(error)) from None
    return model.get_parameter(f"model.layers.{layer}.mlp.up_proj.weight").detach().float()


def real_matrix(name: str) -> VqMatrix:
    """Layer 0's up projection of SmolLM2, each codebook in the order of its look-ups."""
    weight = up_projection(0)
    shape = MatrixShape(rows=weight.shape[0], columns=weight.shape[1], vq=NAMED[name])
    return reordered(quantize(weight, shape, None, _TRAINING))
