"""Cycles that no engine for a quantized matrix and one vector can beat.

``bound = max(memory, look-ups, products, reduction)``: each resource works at its full rate, and
all of them overlap. The fill of the engine comes on top.
"""

import dataclasses
import math

import torch
from torch import Tensor

from golden.config import Config, bounded
from golden.vqllm.config import MatrixShape
from golden.vqllm.format import ImageShape, Plan, layout
from golden.vqllm.image import part_look_ups, tiers
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.timing import PartWork, read_once


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineShape(Config):
    """The work that an engine does in a cycle, and the places of entries."""

    lookups: int = bounded(16, 1, 64, "codes of a beat")
    banks: int = bounded(16, 1, 64, "SRAM banks, entry j in bank j % banks")
    registers: int = bounded(
        0, 0, 1 << 16, "n_reg: hottest entries in registers, which any number may read at once"
    )
    macs: int = bounded(64, 1, 4096, "products per cycle")
    lanes: int = bounded(16, 1, 4096, "partial sums added per cycle")
    port_bits: int = bounded(256, 8, 4096, "W: bits of the memory port per cycle")
    split: int = bounded(1, 1, 1024, "partial sums of each output")


def bank_cycles(codes: Tensor, engine: EngineShape) -> int:
    """Cycles of the look-ups: over beats, the most reads of one bank.

    codes: (n,) of one codebook in the order of their use; ``lookups`` of them are a beat. A beat
    whose entries all lie in registers takes one cycle. Equal codes of a beat take a cycle each.
    """
    count = len(codes)
    beats = math.ceil(count / engine.lookups)
    if not beats:
        return 0
    bank = torch.where(codes < engine.registers, engine.banks, codes % engine.banks)
    beat = torch.arange(count, device=codes.device) // engine.lookups
    loads = torch.bincount(beat * (engine.banks + 1) + bank, minlength=beats * (engine.banks + 1))
    fullest = loads.unflatten(0, (beats, engine.banks + 1))[:, : engine.banks].amax(1)
    return int(fullest.clamp(min=1).sum())


def bounds(shape: MatrixShape, engine: EngineShape, switches: int | None = None) -> dict[str, int]:
    """Cycles by resource, look-ups without conflicts; ``bank_cycles`` counts them from codes.

    switches: codebooks that are loaded, by default each once.
    """
    tiles = math.prod(shape.grid)
    loaded = (tiles if switches is None else switches) * shape.vq.codebook_bits
    codes = shape.rows * shape.vectors * shape.vq.stages
    return {
        "memory": math.ceil((shape.code_bits + loaded) / engine.port_bits),
        "look-ups": math.ceil(codes / engine.lookups),
        "products": math.ceil(shape.rows * shape.columns / engine.macs),
        "reduction": math.ceil(engine.split * shape.rows / engine.lanes),
    }


def part_work(matrix: VqMatrix, shape: ImageShape, plan: Plan, banks: int) -> list[list[PartWork]]:
    """Returns the work of each core of an engine for each of its parts, counted from the codes."""
    where = tiers(plan, banks)
    found = layout(matrix.shape, shape, plan)
    cores: list[list[PartWork]] = []
    for core in range(shape.cores):
        parts = []
        for part in found.of_core(core):
            if not part.beats:
                parts.append(PartWork(len(part.rows)))
                continue
            looks = part_look_ups(matrix, part, shape)
            far = looks.counts(where)["memory"]
            parts.append(
                PartWork(
                    cycles=int(looks.cycles(where).sum()),
                    words=part.code_bytes(shape) // shape.word_bytes + far,
                    load=plan.shared * shape.vq.stages * part.load,
                    load_beats=shape.load_beats(plan.shared, banks) * part.load,
                    load_words=shape.load_words(plan.shared) * part.load,
                    far=far,
                    products=len(part.rows) * part.beats * shape.beat_words,
                    book=part.tile,
                )
            )
        cores.append(parts)
    return cores


def job_bounds(
    matrix: VqMatrix, shape: ImageShape, plan: Plan, banks: int, lanes: int
) -> dict[str, int]:
    """Cycles of a job of vq_gemv by resource, without the fill.

    | resource | cycles |
    |---|---|
    | memory | codes and loaded entries by the width, and a word for each look-up in memory |
    | look-ups | of the core with most: sum over its beats of the fullest bank |
    | products | elements of the matrix by those that all cores multiply |
    | reduction | rows, each max(1, split / lanes) |

    Entries that several cores load at a time count once.
    """
    cores, vq = part_work(matrix, shape, plan, banks), shape.vq
    parts = [part for core in cores for part in core]
    loaded = read_once(cores, lambda part: part.load) * 16 * vq.size
    far = sum(part.far for part in parts)
    macs = shape.cores * shape.beat_vectors * (shape.need or vq.size)
    return {
        "memory": math.ceil((matrix.shape.code_bits + loaded) / shape.data_bits) + int(far),
        "look-ups": max(int(sum(part.cycles for part in core)) for core in cores),
        "products": math.ceil(matrix.shape.rows * matrix.shape.columns / macs),
        "reduction": matrix.shape.rows * max(1, -(-plan.split // lanes)),
    }
