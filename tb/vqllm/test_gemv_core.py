"""VqGemvCore against golden.vqllm.product.exact_sums: tiles, stages, tiers, faults.

Shown to fail with:

- a refused entry, or a wrong one, not reported; the latest response in place of the worst
- ``wrong`` of the first job of a row lost, or kept for the next row
- the entries of another stage; a cycle without reads between two beats
- the signs and shifts of a lattice not given to the dequantizer
- a latency of a core with an exchange that counts the words of the last beat
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.vqllm.config import NAMED, MatrixShape, VqShape
from golden.vqllm.product import exact_sums
from golden.vqllm.vectors.matrices import is_nonfinite, lane_beats, random_matrix, tile_jobs
from golden.words import layout_word
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.core import VqGemvCore, VqGemvCoreConfig
from tb.simulate.run import simulate
from tb.vqllm.support.codebooks import host_params
from tb.vqllm.support.phases import phases_of


def gemv(vq, lookups, columns, rows, *, batch=1, fusion="none", need=0, **cache):
    return VqGemvCoreConfig(
        cache=VqCodebookCacheConfig(vq=vq, lookups=lookups, **cache),
        columns=columns, rows=rows, batch=batch, fusion=fusion, need=need,
    )  # fmt: skip


# Configuration; rows and columns of its matrices
CONFIGS = {
    "two_stages": (
        gemv(VqShape(entries=256), 8, 96, 40, registers=8, shared=64, banks=8),
        [(40, 96), (7, 72), (1, 8)],
    ),
    "tiles": (
        gemv(
            VqShape(size=4, entries=64, stages=1, tile_rows=16, tile_columns=32), 8, 96, 16,
            batch=2, registers=4, shared=64, banks=4,
        ),
        [(40, 80), (16, 32), (17, 36)],
    ),
    "three": (
        gemv(
            VqShape(size=2, entries=16, stages=3), 6, 24, 20, batch=3,
            registers=2, shared=11, banks=2, beats=8, data_bits=64,
        ),
        [(20, 24), (5, 22)],
    ),
    "four": (
        gemv(
            VqShape(size=3, entries=32, stages=4, tile_columns=12), 16, 60, 9,
            registers=0, shared=32, banks=16,
        ),
        [(9, 60), (3, 57)],
    ),
    "quip4": (
        gemv(NAMED["quip4"], 4, 48, 12, batch=2, registers=4, shared=150, banks=4),
        [(12, 48), (3, 40)],
    ),
    "exchange": (  # the last beat of a row is not full
        gemv(
            VqShape(entries=64), 8, 96, 20, batch=2, fusion="exchange", need=2,
            registers=4, shared=64, banks=8,
        ),
        [(20, 96), (9, 72), (3, 8)],
    ),
    "buffer": (
        gemv(
            VqShape(size=4, entries=64, stages=1, tile_rows=16, tile_columns=32), 8, 96, 16,
            fusion="buffer", need=1, registers=4, shared=64, banks=4,
        ),
        [(40, 80), (16, 32), (17, 36)],
    ),
    "quip4_exchange": (  # signs and shifts before the exchange
        gemv(
            NAMED["quip4"], 4, 48, 12, batch=2, fusion="exchange", need=4,
            registers=4, shared=150, banks=4,
        ),
        [(12, 48), (3, 40)],
    ),
    "one_lane": (
        gemv(VqShape(size=1, entries=4, stages=1), 1, 9, 3, registers=1, shared=4, banks=1),
        [(3, 9), (1, 1)],
    ),
}  # fmt: skip


def matrix_params(
    config, rng, rows: int, columns: int, base: int, *, faults: bool = False, alike: bool = False
) -> dict:
    """alike: all codes are 0, so that none waits for a bank."""
    shape = MatrixShape(rows=rows, columns=columns, vq=config.cache.vq)
    matrix = random_matrix(rng, shape, 0, scaled=False)
    if alike:
        matrix = dataclasses.replace(matrix, codes=torch.zeros_like(matrix.codes))
    phases, spoilt = phases_of(config, rng, matrix, base, faults=faults)
    vectors = int(rng.integers(1, config.batch + 1))
    x = rng.normal(0, 1, (vectors, columns)).astype(np.float16).view(np.uint16).astype(np.int64)
    if rng.random() < 0.3 and not faults:  # it would hide the rows of wrong entries
        x[rng.integers(vectors), rng.integers(columns)] = 0x7C00
    sums = np.array(exact_sums(torch.tensor(x), matrix.dequantized()).integers(), dtype=object)
    values = np.full((rows, config.batch), 0, dtype=object)
    values[:, :vectors] = sums.reshape(vectors, rows).T
    bad = np.zeros((rows, config.batch), dtype=bool)
    bad[:, :vectors] = is_nonfinite(x).any(1)
    bad |= spoilt[:, None]
    # Vectors that are not there multiply what the buffer had; their sums are not compared.
    known = np.where(bad, 0, -1)
    known[:, vectors:] = 0
    jobs = tile_jobs(config, matrix)
    ends = np.cumsum([job["rows"] for job in jobs if job["final"]]) - 1
    layout, places = config.sums.sum_layout, 1 << np.arange(config.batch)
    found = {
        "code": [word for phase in phases for word in phase.pop("code")],
        "x": lane_beats(config, x),
        "job": [layout_word(config.sums.job_layout, **job) for job in jobs],
        "sum": [layout_word(layout, value=row.tolist(), bad=int(flags @ places),
                            last=int(n in ends))
                for n, (row, flags) in enumerate(zip(values, bad, strict=True))],
    }  # fmt: skip
    return {
        "phases": phases, "words": found,
        "masks": [layout_word(layout, value=row, bad=(1 << vectors) - 1, last=1)
                  for row in known.tolist()],
        "worst": max(phase["worst"] for phase in phases),
        "bad": max(phase["bad"] for phase in phases),
    }  # fmt: skip


@pytest.mark.telling("two_stages", "exchange", "buffer", "one_lane")
@pytest.mark.parametrize("name", CONFIGS)
def test_gemv_core(name, seed):
    config, shapes = CONFIGS[name]
    rng = np.random.default_rng([seed, 164])
    sizes = [*shapes, shapes[0]]
    matrices = [
        matrix_params(config, rng, *size, 0x10_0000 + (n << 22), faults=n == len(shapes))
        for n, size in enumerate(sizes)
    ]
    block = VqGemvCore(config)
    base = 0x10_0000 + (len(sizes) << 22)
    params = {
        "matrices": matrices, "latency": block.timing.latency,
        "alone": matrix_params(
            config, rng, min(12, config.rows), config.cache.vq.size, base, alike=True
        ),
        **host_params(config.cache),
    }  # fmt: skip
    simulate(block, "tb.vqllm.tb_gemv_core", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"columns": 100}, "VqRowSumsConfig.columns must be a multiple of macs = 32, not 100"),
        ({"need": 2}, "VqGemvCoreConfig.need must be 0 without fusion, not 2"),
        ({"fusion": "buffer"}, "ExchangeShape.need must be 1..8, not 0"),
        (
            {"fusion": "exchange", "need": 3},
            "ExchangeShape.need must be size = 8 divided by a power of two from 2 on, not 3",
        ),
        (
            {"fusion": "exchange", "need": 4, "columns": 16 * 5},
            "VqGemvCoreConfig.columns must be a multiple of 32, the elements of a beat, not 80",
        ),
        ({"batch": 65}, "VqRowSumsConfig.batch must be 1..64, not 65"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqGemvCoreConfig(**wrong)
    assert str(error.value) == message
