"""KllmNormStats against golden.kllm.norms.norm_statistics.

Shown to fail:

- any exact sum one bit short;
- without the sign of an outlier;
- a subnormal one taken as normal;
- a sum that is not cleared;
- padding counted or its mask bits counted;
- a reduction that ends before its last term;
- a token handed over before its last beat or while the floating-point part is busy;
- a variance that is not clamped or a mean that is added;
- NaN epsilon let through;
- ``last`` checked on one side only;
- faults of a refused job shown;
- k_max itself refused;
- a mask count that wraps at k_max;
- codebooks above 1, too long, or never taken.
"""

import numpy as np
import pytest

from golden.fp16.format import FP16
from golden.kllm.format import Status
from golden.words import layout_words, pack
from hdl.kllm.function.norm_stats import KllmNormStats, KllmNormStatsConfig
from tb.kllm.support.norm_jobs import codebooks, jobs_of
from tb.simulate.run import simulate

CONFIGS = {
    "longest": KllmNormStatsConfig(),
    "three_bits": KllmNormStatsConfig(
        bits_a=3, elements=5, k_max=200, convert_stages=1, fma_stages=1, divide_stages=1,
        rsqrt_stages=1,
    ),
    "two_bits": KllmNormStatsConfig(
        bits_a=2, elements=1, k_max=31, fma_stages=4, divide_stages=5, rsqrt_stages=9
    ),
}  # fmt: skip


def norm_vectors(config, seed):
    """(vectors, params): per phase the packet, the jobs, their beats, outliers and results."""
    rng = np.random.default_rng([seed, 42])
    vectors, phases = {}, {}
    seen = Status(0)
    for name, (codebook, valid) in codebooks(rng, 2**config.bits_a).items():
        jobs = jobs_of(rng, config, few=not valid or name in ("again", "random"))
        mean, reciprocal, status = np.array([j.golden(codebook, valid) for j in jobs]).T
        seen |= Status(int(np.bitwise_or.reduce(status)))
        if len(codebook):
            last = np.arange(len(codebook)) == len(codebook) - 1
            layout = config.codebook_layout
            vectors[f"{name}.codebook"] = layout_words(layout, word=codebook, last=last)
        column = {
            field: np.array([getattr(j, field) for j in jobs])
            for field in ("length", "s", "epsilon", "layer_norm", "told", "cut")
        }
        # Some jobs leave the number of outliers to the mask.
        of_mask = np.array([j.clean for j in jobs]) & (rng.random(len(jobs)) < 0.4)
        header_told = np.where(of_mask, KllmNormStats.OUTLIERS_OF_MASK, column["told"])
        header = {field: column[field] for field in ("length", "s", "epsilon", "layer_norm")}
        vectors[f"{name}.job"] = layout_words(config.job_layout, **header, outliers=header_told)
        last = np.concatenate([np.arange(n) == n - 1 for n in column["cut"]])
        vectors[f"{name}.i"] = layout_words(
            config.i_layout,
            index=np.concatenate([j.beat_index for j in jobs]),
            outlier=np.concatenate([j.beat_mask for j in jobs]),
            last=last,
        )
        vectors[f"{name}.x"] = pack((np.concatenate([j.words for j in jobs]), 16))
        vectors[f"{name}.o"] = pack((mean, 32), (reciprocal, 32), (status, len(Status)))
        # What full_rate foresees: no faults, no outliers that wait for their mask.
        regular = [
            j.clean and s in (0, int(Status.OVERFLOW)) and not late
            for j, s, late in zip(jobs, status.tolist(), of_mask, strict=True)
        ]
        phases[name] = [
            (j.cut, j.told, j.layer_norm, bool(each)) for j, each in zip(jobs, regular, strict=True)
        ]
    assert seen == Status.LENGTH_ZERO | Status.LENGTH_TOO_LONG | Status.CODEBOOK_MISSING | (
        Status.NONFINITE | Status.LAST_MISPLACED | Status.OUTLIER_COUNT | Status.OVERFLOW
    )
    return vectors, {"phases": phases}


@pytest.mark.telling("three_bits", "two_bits")
@pytest.mark.parametrize("name", CONFIGS)
def test_norm_stats(name, seed):
    config = CONFIGS[name]
    vectors, params = norm_vectors(config, seed)
    simulate(
        KllmNormStats(config), "tb.kllm.tb_norm_stats", vectors=vectors, params=params, seed=seed
    )


def test_sums_hold_the_largest_values():
    """The widths of the exact sums, at k_max elements of the largest magnitude."""
    for config in CONFIGS.values():
        largest = 65504 * 2**-FP16.grid_exponent
        assert config.k_max * 2**24 < 2 ** (config.a_bits - 1)
        assert config.k_max * 2**48 < 2**config.q_bits
        assert config.k_max * largest < 2 ** (config.x1_bits - 1)
        assert config.k_max * largest**2 < 2**config.x2_bits
