"""QetDequantGemv against golden.qet.product: images, tiles, batches, faults, cycles.

Shown to fail with:

- codes before maps in a row; numbers of the first stage alone checked
- a last word of memory that is always whole, or without bytes where it is; asked without reset
- refused left over from the codebooks before; a refused row that makes its tile wrong
- the first row wrong as the tile before; rows that do not wait for the verdict
- vectors kept for the next job; NONFINITE by the last word of x alone
- CODE of any wrong row; CODEBOOK of codebooks that memory refused; faults that stay
- a wrong row known by its words alone
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.qet.timing import gemv_fill, image_bound
from golden.qet.vectors.gemv import SPOILS, bad_jobs, gemv_job, random_matrix
from golden.vqllm.vectors.engine import random_x
from hdl.qet.dequant_gemv import QetDequantGemv
from hdl.qet.gemv_config import QetDequantGemvConfig
from tb.qet.test_decoder import tile
from tb.simulate.run import simulate

LATENCY = 20  # of the memory, for the rate

# Configuration; rows and columns of its matrices, the last of them of a long one for the rate
CONFIGS = {
    # Fewer words in flight than cycles of latency would bound the rate.
    "two stages": (
        QetDequantGemvConfig(
            shape=tile((3, 24), (0, 7), group=4), columns=96, rows=40, data_bits=256, ahead=64
        ),
        [(40, 96), (7, 70), (1, 31), (2, 33)], (40, 96), (20, 6),
    ),
    "words": (
        QetDequantGemvConfig(
            shape=tile((1, 9), (1, 4), (0, 3), entry_bits=0, group=3), columns=30, rows=30,
            data_bits=64, ahead=8, batch=2,
        ),
        [(30, 30), (5, 13), (1, 6), (3, 1)], None, None,
    ),
    "product quantization": (
        QetDequantGemvConfig(
            shape=tile((0, 16), entry_bits=0, group=8), columns=64, rows=64, data_bits=128, ahead=16
        ),
        [(64, 64), (1, 8), (33, 9)], (64, 64), (16,),
    ),
    "large codebooks": (
        QetDequantGemvConfig(
            shape=tile((2, 200), (1, 30), group=4, entry_bits=7), columns=64, rows=50,
            data_bits=1024, ahead=16,
        ),
        [(50, 64), (2, 16)], (50, 64), (200, 30),
    ),
}  # fmt: skip


def most_cycles(config, matrix) -> int:
    """1.05 x the bound, and the fill."""
    shape = matrix.shape
    words = shape.tiles * config.image.row_words(shape.rows)
    bound = image_bound(shape, config.image)
    return int(1.05 * bound) + gemv_fill(LATENCY, config.ahead, words)


@pytest.mark.telling("two stages", "words")
@pytest.mark.parametrize("name", CONFIGS)
def test_dequant_gemv(name, seed):
    config, shapes, long, entries = CONFIGS[name]
    rng = np.random.default_rng([seed, 224])
    jobs, base = [], 0
    for spoil in (None, *SPOILS, None):
        for rows, columns in shapes:
            x = random_x(rng, int(rng.integers(1, config.batch + 1)), columns)
            if rng.random() < 0.1:
                x[0, rng.integers(columns)] = rng.choice([0x7C00, 0xFE01])
            matrix = random_matrix(config.shape, rng, rows, columns)
            job = gemv_job(config, matrix, x, base)
            if spoil and spoil(job, rng) is False:
                continue
            jobs.append(job)
            base = job.end()
    small = min(shapes)
    job = gemv_job(
        config, random_matrix(config.shape, rng, *small), random_x(rng, 1, small[1]), base
    )
    rng.shuffle(jobs)
    jobs = [*jobs[:1], *bad_jobs(job), *jobs[1:]]
    rates = []
    if long:
        matrix = random_matrix(config.shape, rng, *long, entries)
        rate = gemv_job(config, matrix, random_x(rng, config.batch, long[1]))
        rates.append(rate.params() | {"most": most_cycles(config, matrix)})
    simulate(
        QetDequantGemv(config),
        "tb.vqllm.tb_gemv",
        vectors={},
        params={"jobs": [job.params() for job in jobs], "rates": rates, "latency": LATENCY},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"shape": tile((5, 9), group=16)},
            "QetDequantGemvConfig.shape must be of tiles of at most 256 columns, not ",
        ),
        (
            {"shape": tile((5, 9), group=8, entry_bits=9)},
            (
                "QetDequantGemvConfig.shape must have entries of at most 256 bytes side by side, "
                "not 288"
            ),
        ),
        ({"columns": 100}, "VqRowSumsConfig.columns must be a multiple of macs = 64, not 100"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        QetDequantGemvConfig(**wrong)
    assert str(error.value).startswith(message)
