"""VqGemv against golden.vqllm.product.by_dequantizing: images, cores, splits, plans, faults.

Shown to fail with 21 faults of descriptors, loads, codes, readers and rows, and with:

- the length of x not told, or also told of a job that is void; ``words`` of a job not checked
- of a word of a codebook: its first part for all parts; a word too many for a stage
- a core with a job that has no row in the first stripe; an exponent that is not checked
- entries of memory taken only once all of their beat are requested: 16 of a beat, 8 in flight
- the order of x as without exchange; beats of codes compared with words of x
- 64 bursts in flight at the port of four cores that read 64 far entries each

Two are worth a word:

- a load told at the command of its last stage: with many words of a stage, the reader of
  codebooks waits for ever;
- codebooks taken as loaded after a wrong descriptor: the next part of the tile is refused.
"""

import functools

import numpy as np
import pytest

from golden.config import ConfigError
from golden.vqllm.bounds import job_bounds, part_work
from golden.vqllm.config import NAMED, VqShape
from golden.vqllm.vectors.gemv import jobs_of
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.core import VqGemvCoreConfig
from hdl.vqllm.gemv.gemv import VqGemv
from tb.simulate.run import simulate
from tb.vqllm.support.fill import fill_of, path_of

LATENCY = 20  # of the memory, for the rate
LATENCIES = {"far_entries": 100}


def engine(
    vq, lookups, columns, rows, *, batch=1, cores=1, lanes=1, scaled=False, ahead=16, far=8,
    fusion="none", need=0, **cache,
):  # fmt: skip
    core = VqGemvCoreConfig(
        cache=VqCodebookCacheConfig(vq=vq, lookups=lookups, **cache),
        columns=columns, rows=rows, batch=batch, fusion=fusion, need=need,
    )  # fmt: skip
    return VqGemvConfig(
        core=core, cores=cores, lanes=lanes, scaled=scaled, ahead=ahead, far=far
    )  # fmt: skip


# Configuration; rows and columns of its matrices, the last of them of a long one for the rate
CONFIGS = {
    "two_stages": (
        engine(VqShape(entries=64), 8, 96, 24, registers=8, shared=32, banks=8),
        [(40, 96), (7, 72), (1, 8)], (400, 96),
    ),
    "tiles": (
        engine(
            VqShape(size=4, entries=64, stages=1, tile_rows=16, tile_columns=32), 8, 96, 16,
            batch=2, cores=4, lanes=2, registers=4, shared=64, banks=4,
        ),
        [(40, 80), (16, 32), (17, 36), (2, 96)], None,
    ),
    "scaled": (  # a tile has several stripes
        engine(
            VqShape(size=2, entries=16, stages=3, tile_rows=15), 6, 24, 5, batch=2, cores=2,
            scaled=True, registers=2, shared=11, banks=2, beats=8, data_bits=64,
        ),
        [(33, 24), (5, 22)], None,
    ),
    "quip4": (  # a stage has more words than a reader of codebooks requests at a time
        engine(
            NAMED["quip4"], 4, 96, 12, registers=4, shared=144, banks=4, scaled=True,
            data_bits=128,
        ),
        [(9, 96), (3, 40)], None,
    ),
    "rate": (
        engine(
            VqShape(size=4, entries=16, stages=1, tile_rows=64, tile_columns=64), 8, 256, 64,
            cores=4, lanes=2, registers=4, shared=16, banks=8,
        ),
        [(9, 128)], (512, 256),
    ),
    # Four cores read seven of eight entries one by one: the port has as many words in flight.
    "far_entries": (
        engine(
            VqShape(size=4, entries=64, stages=1), 8, 64, 32,
            cores=4, lanes=4, far=64, registers=2, shared=8, banks=4, data_bits=128,
        ),
        [(9, 64)], (320, 64),
    ),
    # Columns are cut between beats, whose words of x stay together; the last beat is not full.
    "exchange": (
        engine(
            VqShape(size=4, entries=64, stages=2), 16, 128, 24, batch=2, cores=4, lanes=2,
            fusion="exchange", need=1, registers=4, shared=64, banks=16,
        ),
        [(29, 100), (16, 128), (3, 36)], (512, 128),
    ),
    "buffer": (
        engine(
            VqShape(size=4, entries=16, stages=1, tile_rows=64, tile_columns=64), 8, 256, 64,
            scaled=True, fusion="buffer", need=2, registers=4, shared=16, banks=8,
        ),
        [(70, 96), (9, 128)], (256, 256),
    ),
    # A stripe must divide the rows of a tile: 1 of 17, 3 of 9, for four cores. Then a whole one.
    "stripe_of_one": (
        engine(
            VqShape(size=4, entries=16, stages=1, tile_rows=17), 4, 32, 4,
            batch=2, cores=4, lanes=4, registers=2, shared=16, banks=2, data_bits=64,
        ),
        [(34, 32), (16, 20), (18, 32), (3, 8)], None,
    ),
    "stripe_of_three": (
        engine(
            VqShape(size=2, entries=16, stages=2, tile_rows=9, tile_columns=8), 4, 24, 2,
            cores=4, lanes=2, registers=2, shared=9, banks=2, data_bits=64,
        ),
        [(18, 24), (7, 24), (27, 16), (2, 8)], None,
    ),
}  # fmt: skip


def most_cycles(job, latency: int) -> float:
    """1.05 x the bound and the fill; or the round trips of entries in memory, ``far`` at a time."""
    config, plan = job.config, job.plan
    bound = job_bounds(job.matrix, config.image, plan, config.core.cache.banks, config.lanes)
    fill = fill_of(config, plan.shared, latency)
    work = part_work(job.matrix, config.image, plan, config.core.cache.banks)
    far = max(sum(part.far for part in parts) for parts in work)
    return 1.05 * (max(*bound.values(), path_of(config, latency).trips(far)) + fill)


@pytest.mark.telling("exchange", "buffer")
@pytest.mark.parametrize("name", CONFIGS)
def test_gemv(name, seed):
    config, shapes, long = CONFIGS[name]
    latency = LATENCIES.get(name, LATENCY)
    jobs, rates = jobs_of(
        config, np.random.default_rng([seed, 165]), shapes, long,
        functools.partial(most_cycles, latency=latency),
    )  # fmt: skip
    params = {"jobs": jobs, "rates": rates, "latency": latency}
    simulate(VqGemv(config), "tb.vqllm.tb_gemv", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cores": 3}, "VqFetchConfig.cores must be a power of two in 1..16, not 3"),
        ({"lanes": 2}, "VqReduceConfig.lanes must be a power of two in 1..1, not 2"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqGemvConfig(**wrong)
    assert str(error.value) == message
