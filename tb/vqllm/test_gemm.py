"""VqGemm against golden.vqllm.product.by_dequantizing: tokens, dataflows, named shapes, faults.

Shown to fail with:

- ``clear`` that the core does not see; all groups pass, whatever the job says
- partial sums that the groups of a row share; a scale taken for each group
- a wrong beat that spoils the last group alone; a NaN of group 0 that spoils all groups
- a wrong entry that ``bad`` does not report
- vectors not compared with the first one of their buffer, or with the job; ``uneven`` for ever
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.vqllm.config import NAMED, MatrixShape, VqShape
from golden.vqllm.product import by_dequantizing
from golden.vqllm.vectors.matrices import (
    UNEVEN,
    is_nonfinite,
    lane_beats,
    random_matrix,
    tile_jobs,
    uneven_x,
)
from golden.words import layout_word
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.gemm import VqGemm, VqGemmConfig
from tb.simulate.run import simulate
from tb.vqllm.support.codebooks import host_params
from tb.vqllm.support.phases import phases_of


@dataclasses.dataclass(frozen=True)
class Work:
    """A matrix, its tokens, and the dataflow: weights streamed again for each group, or not."""

    rows: int
    columns: int
    tokens: int
    streamed: bool = False
    faults: bool = False
    is_long: bool = False
    uneven: str = ""  # what is wrong with the length or the number of the tokens


def gemm(
    vq, lookups, columns, rows, batch, tokens, *, scaled=False, fusion="none", need=0, **cache
):
    return VqGemmConfig(
        cache=VqCodebookCacheConfig(vq=vq, lookups=lookups, **cache),
        columns=columns, rows=rows, batch=batch, tokens=tokens, scaled=scaled,
        fusion=fusion, need=need,
    )  # fmt: skip


SMALL = VqShape(size=2, entries=16, stages=3)
TILES = VqShape(size=4, entries=64, stages=1, tile_rows=16, tile_columns=32)
CONFIGS = {
    "small": (
        gemm(
            SMALL, 6, 24, 20, 3, 12, scaled=True, registers=2, shared=11, banks=2, beats=8,
            data_bits=64,
        ),
        [Work(9, 24, 11), Work(5, 22, 1), Work(4, 24, 8, streamed=True),
         Work(6, 24, 12, faults=True),
         *(Work(3, 12, 7, uneven=kind) for kind in UNEVEN), Work(5, 24, 12)],
    ),
    "tiles": (
        gemm(TILES, 8, 96, 16, 1, 4, registers=4, shared=64, banks=4),
        [Work(17, 68, 3), Work(20, 36, 4, streamed=True), Work(16, 64, 4, faults=True),
         Work(1, 4, 1), Work(17, 68, 4, uneven="longest"), Work(17, 68, 3)],
    ),
    "aqlm2x8": (
        gemm(NAMED["aqlm2x8"], 8, 128, 16, 2, 16, registers=8, shared=256, banks=8),
        [Work(4, 96, 7), Work(3, 72, 5, streamed=True),
         Work(12, 128, 16, faults=True, is_long=True)],
    ),
    "exchange": (
        gemm(
            TILES, 8, 96, 16, 2, 8, fusion="exchange", need=1, registers=4, shared=64, banks=4
        ),
        [Work(17, 68, 5), Work(20, 36, 8, streamed=True), Work(16, 64, 8, faults=True),
         Work(1, 4, 1), Work(17, 68, 8, uneven="short"), Work(16, 96, 7, is_long=True)],
    ),
    "aqlm3": (
        gemm(NAMED["aqlm3"], 4, 64, 16, 1, 8, registers=32, shared=512, banks=4),
        [Work(3, 64, 5), Work(16, 64, 8, faults=True, is_long=True)],
    ),
    "gptvq2": (
        gemm(NAMED["gptvq2"], 16, 512, 256, 2, 4, registers=32, shared=256, banks=16),
        [Work(5, 64, 3), Work(258, 264, 3, is_long=True)],
    ),
}  # fmt: skip


def passes(config, work: Work) -> list[range]:
    """Groups of the jobs of each pass over the weights."""
    groups = -(-work.tokens // config.batch)
    return [range(g, g + 1) for g in range(groups)] if work.streamed else [range(groups)]


def matrix_params(config, rng, work: Work, base: int) -> dict:
    shape = MatrixShape(rows=work.rows, columns=work.columns, vq=config.cache.vq)
    matrix = random_matrix(rng, shape, int(rng.integers(-3, 4)), config.scaled)
    phases, spoilt = phases_of(config, rng, matrix, base, faults=work.faults)
    x = rng.normal(0, 1, (work.tokens, work.columns)).astype(np.float16)
    x = x.view(np.uint16).astype(np.int64)
    if work.tokens > 1:
        x[rng.integers(work.tokens), rng.integers(work.columns)] = rng.choice([0x7C00, 0xFE01])
    y, bad = by_dequantizing(torch.tensor(x), matrix)
    assert bad.tolist() == is_nonfinite(x).any(1).tolist()
    y = y.numpy()
    y[:, spoilt] = FP16.canonical_nan
    layout, batch = config.finish.y_layout, config.batch
    words = {name: [] for name in ("code", "x", "job", "y")}
    scale_words, masks, all_phases = [], [], []
    words["x"] = lane_beats(config, x)
    if work.uneven:
        words["x"] = uneven_x(rng, config.sums, words["x"], work.tokens, work.uneven)
        y[:] = FP16.canonical_nan
    for number, groups in enumerate(passes(config, work)):
        jobs = tile_jobs(config, matrix)
        for job in jobs:
            job |= {"group": groups.start, "groups": len(groups)}
            job["next_x"] &= number == 0
        words["job"] += [layout_word(config.sums.job_layout, **job) for job in jobs]
        for phase in phases:
            again = number > 0 and len(phases) == 1  # the codebook is there
            loads = [] if again else phase["loads"]
            all_phases.append(phase | {"loads": loads, "held": len(groups) * config.pieces})
            code = all_phases[-1].pop("code")
            words["code"] += [_without_switch(config, code[0]) if again else code[0], *code[1:]]
        ends = set(np.cumsum([job["rows"] for job in jobs if job["final"]]) - 1)
        for row in range(work.rows):
            for group in groups:
                some = y[group * batch : (group + 1) * batch, row].tolist()
                lacks = [0] * (batch - len(some))
                last = row in ends and group == groups[-1]
                words["y"].append(layout_word(layout, word=some + lacks, last=int(last)))
                # Tokens that are not there multiply what the buffer had.
                known = [0xFFFF] * len(some) + lacks
                masks.append(layout_word(layout, word=known, last=1))
        if config.scaled:
            scale = matrix.scales.tolist()
            scale_words += [layout_word(config.finish.scale_layout, word=word) for word in scale]
    if config.scaled:
        words["scale"] = scale_words
    return {
        "phases": all_phases, "exponent": matrix.exponent, "words": words, "masks": masks,
        "worst": max(phase["worst"] for phase in phases),
        "bad": max(phase["bad"] for phase in phases), "is_long": work.is_long,
        "uneven": int(bool(work.uneven)),
    }  # fmt: skip


def _without_switch(config, word: int) -> int:
    return word & ~(1 << config.core.code_layout["switch"].offset)


@pytest.mark.telling("small", "exchange")
@pytest.mark.parametrize("name", CONFIGS)
def test_gemm(name, seed):
    config, works = CONFIGS[name]
    rng = np.random.default_rng([seed, 165])
    matrices = [
        matrix_params(config, rng, work, 0x10_0000 + (n << 22)) for n, work in enumerate(works)
    ]
    block = VqGemm(config)
    params = {"matrices": matrices, "latency": block.timing.latency, **host_params(config.cache)}
    simulate(block, "tb.vqllm.tb_gemm", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"batch": 3, "tokens": 9},
            "VqGemmConfig.tokens must be batch = 3 times a power of two in 2..64, not 9",
        ),
        ({"columns": 100}, "VqRowSumsConfig.columns must be a multiple of macs = 32, not 100"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqGemmConfig(**wrong)
    assert str(error.value) == message
