"""A matrix for a core at full rate, all entries on chip. Before the simulation."""

import numpy as np
import torch

from golden.vqllm.cache import LookUps, Tiers
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.product import by_dequantizing, exact_sums
from golden.vqllm.vectors.matrices import code_beats, lane_beats, tile_jobs
from golden.words import layout_word
from tb.vqllm.support.codebooks import host_params, image, load


def look_cycles(config, matrix: VqMatrix, plan: Tiers | None = None) -> int:
    """Cycles of all look-ups of one pass."""
    cycles, plan = 0, plan or _most(config.cache)
    for tile in matrix.shape.tiles:
        code, use = code_beats(config, matrix, tile)
        looks = LookUps(torch.tensor(code), torch.tensor(use), config.cache.vq.stages)
        cycles += int(looks.cycles(plan).sum())
    return cycles


def core_params(
    config, rng, matrix: VqMatrix, x: np.ndarray, sink: str = "sum", plan: Tiers | None = None
) -> dict:
    """Sums of VqGemvCore, or with ``sink`` "y" the results of VqGemm without scales.

    plan: where entries lie, by default as many on chip as there is room for.
    x: (tokens, columns), a multiple of the batch. Without groups the weights pass again for each
    ``batch`` tokens; with groups they pass once.
    """
    cache, base, groups = config.cache, 0x10_0000, config.sums.groups
    space = -(-(cache.vq.stages * cache.vq.entries * cache.entry_bytes) // 4096) * 4096
    parts = [x] if groups > 1 else np.split(x, len(x) // config.batch)
    if len(parts) > 1 and len(matrix.shape.tiles) > 1:
        raise ValueError("tiles must be one, where the weights pass again")
    plan = plan or _most(cache)
    phases, words = [], {name: [] for name in ("code", "x", "job", sink)}
    for number, tile in enumerate(matrix.shape.tiles):
        code, use = code_beats(config, matrix, tile)
        looks = LookUps(torch.tensor(code), torch.tensor(use), cache.vq.stages)
        books, place = matrix.codebooks[number].numpy(), base + number * space
        counts = looks.counts(plan)
        loaded = books[:, : plan.shared].reshape(-1, cache.vq.size)
        phases.append({
            "loads": [load(cache, plan, place, loaded)],
            "base": place, "memory": image(cache, rng, books), "refused": [],
            "counts": {name: each * len(parts) for name, each in counts.items()},
        })  # fmt: skip
        masks = use.astype(int) @ (1 << np.arange(cache.lookups, dtype=object))
        for part in range(len(parts)):
            words["code"] += [
                layout_word(config.code_layout, code=row, use=int(mask),
                            switch=int(n == part == 0))
                for n, (row, mask) in enumerate(zip(code.tolist(), masks, strict=True))
            ]  # fmt: skip
    for part in parts:
        words["x"] += lane_beats(config, part)
        count = len(part) // config.batch
        jobs = tile_jobs(config, matrix)
        if groups > 1:
            jobs = [job | {"group": 0, "groups": count} for job in jobs]
        words["job"] += [layout_word(config.sums.job_layout, **job) for job in jobs]
        ends = np.cumsum([job["rows"] for job in jobs if job["final"]]) - 1
        words[sink] += _results(config, matrix, part, sink, ends)
    return {"words": words, "sink": sink, "phases": phases, "exponent": matrix.exponent,
            **host_params(cache)}  # fmt: skip


def _results(config, matrix: VqMatrix, x: np.ndarray, sink: str, ends) -> list[int]:
    rows, batch = matrix.shape.rows, config.batch
    if sink == "y":
        values = by_dequantizing(torch.tensor(x), matrix)[0].numpy()
        layout, name = config.finish.y_layout, "word"
    else:
        found = exact_sums(torch.tensor(x), matrix.dequantized()).integers()
        values = np.array(found, dtype=object).reshape(len(x), rows)
        layout, name = config.sums.sum_layout, "value"
    words = []
    for row in range(rows):
        for first in range(0, len(x), batch):
            is_end = first + batch == len(x)
            flags = {"last": int(row in ends and is_end)}
            if sink == "sum" and config.sums.groups > 1:
                flags["row_end"] = int(is_end)
            word = {name: values[first : first + batch, row].tolist()}
            words.append(layout_word(layout, **word, **flags))
    return words


def _most(cache) -> Tiers:
    return Tiers(cache.registers, cache.shared, cache.banks)
