"""The tiles of a matrix: loads, memory and codes of each, and faults. Before the simulation."""

import numpy as np
import torch

from golden.axi.format import RESP_DECERR, RESP_SLVERR
from golden.vqllm.cache import LookUps, Tiers
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.vectors.matrices import code_beats
from golden.words import layout_word
from tb.vqllm.support.codebooks import image, load


def phases_of(
    config, rng, matrix: VqMatrix, base: int, *, faults: bool
) -> tuple[list[dict], np.ndarray]:
    """A phase for each tile, and (rows,): rows that a wrong entry spoils, all of tile 0."""
    shape = matrix.shape
    cache = config.cache
    most = Tiers(cache.registers, cache.shared, cache.banks)
    least = Tiers(0, max(1, cache.shared // 3), cache.banks)
    space = -(-(cache.vq.stages * cache.vq.stored * cache.entry_bytes) // 4096) * 4096
    phases, spoilt = [], np.zeros(shape.rows, dtype=bool)
    for number, tile in enumerate(shape.tiles):
        plan = least if faults or number % 3 == 2 else most
        place = base + number * space
        phase, wrong = _phase_of(config, rng, matrix, number, plan, place, faults and number == 0)
        phases.append(phase)
        spoilt[tile.rows] |= wrong
    return phases, spoilt


def _phase_of(config, rng, matrix, number, plan, base, faults) -> tuple[dict, np.ndarray]:
    """A tile: its load, its memory, its look-ups; and its rows that a wrong entry spoils."""
    cache, tile = config.cache, matrix.shape.tiles[number]
    books = matrix.codebooks[number].numpy().copy()
    codes, use = code_beats(config, matrix, tile)
    code = codes >> cache.vq.point_bits
    looks = LookUps(torch.tensor(code), torch.tensor(use), cache.vq.stages)
    far = (looks.tier(plan) == 2).numpy()
    refused, spoilt, worst, bad = [], np.zeros(len(code), dtype=bool), 0, 0
    address = (looks.stage.numpy() * cache.vq.stored + code) * cache.entry_bytes + base
    if faults and far.any():
        places = np.argwhere(far)
        for response in (RESP_SLVERR, RESP_DECERR):
            at = address[tuple(places[rng.integers(len(places))])]
            word = int(at) - int(at) % (cache.data_bits // 8)
            refused.append((word, word + cache.data_bits // 8, response))
            spoilt |= (far & (address >= word) & (address < word + cache.data_bits // 8)).any(1)
        # A refused word hides a wrong entry.
        is_refused = np.any([(low <= address) & (address < high) for low, high, _ in refused], 0)
        places = np.argwhere(far & ~is_refused) if (far & ~is_refused).any() else places
        beat, lane = places[rng.integers(len(places))]
        stage, entry = lane % cache.vq.stages, code[beat, lane]
        books[stage, entry, rng.integers(cache.vq.size)] = rng.choice([0x3C01, 0x7C00, 0xFFFF])
        hit = far & (code == entry) & (looks.stage.numpy() == stage)
        spoilt |= hit.any(1)
        worst, bad = RESP_DECERR, int(not is_refused[beat, lane])
    sound = matrix.codebooks[number].numpy()[:, : plan.shared].reshape(-1, cache.vq.size)
    wrong = rng.random(len(code)) < 0.1 * faults
    spoilt |= wrong
    phase = {
        "loads": [load(cache, plan, base, sound)],
        "base": base, "memory": image(cache, rng, books), "refused": refused,
        "counts": looks.counts(plan), "cycles": looks.cycles(plan).tolist(), "held": config.pieces,
        "code": [
            layout_word(
                config.code_layout, code=row, use=int((used << np.arange(len(row))).sum()),
                switch=int(n == 0), wrong=int(wrong[n]),
            )
            for n, (row, used) in enumerate(zip(codes.tolist(), use.astype(int), strict=True))
        ],
    }  # fmt: skip
    rows = tile.rows.stop - tile.rows.start
    return phase | {"worst": worst, "bad": bad}, spoilt.reshape(rows, -1).any(1)
