"""KllmNormSums against golden.kllm.norms.exact_sums.

Shown to fail with:

- a reduction that ends before its last bin
- x2 without the shift of its square
- a refused job whose values are shown
- the next job taken a cycle later
- eight and more elements of one index in a beat counted without bit 3 (index 5 alone)
"""

import numpy as np
import pytest
import torch

from golden.fp16.ops import LIMB_BITS
from golden.kllm.format import Status
from golden.kllm.norms import exact_sums
from golden.words import layout_words, unpack_ints
from hdl.kllm.function.norm_sums import (
    NORM_SUMS,
    KllmNormSums,
    KllmNormSumsConfig,
    norm_token_layout,
)
from tb.kllm.support.norm_jobs import codebooks, jobs_of
from tb.simulate.run import simulate

CONFIGS = {
    "longest": KllmNormSumsConfig(),
    "three_bits": KllmNormSumsConfig(bits_a=3, elements=5, k_max=200),
    "two_bits": KllmNormSumsConfig(bits_a=2, elements=1, k_max=31),
}
PHASES = ("none", "trained", "short", "ones", "subnormal", "again")


def words_of(config, job, codebook, valid, of_mask) -> dict:
    """The words of one job on every stream."""
    told = KllmNormSums.OUTLIERS_OF_MASK if of_mask else job.told
    status = Status(job.golden(codebook, valid)[2]) & ~Status.OVERFLOW
    header = {"s": job.s, "epsilon": job.epsilon, "layer_norm": int(job.layer_norm)}
    values = []
    if not status:
        sums = exact_sums(job.token(), torch.tensor(codebook))
        exact = {name: int(getattr(sums, name)) for name in ("q", "a", "x1")}
        exact["x2"] = int(sums.x2_high) << LIMB_BITS | int(sums.x2)
        exact["length"] = job.length
        values = [
            config.value_layout.const({"value": exact[name], "sum": k}).as_bits()
            for k, name in enumerate(NORM_SUMS)
        ]
    beats = []
    if job.cut:
        ends = np.arange(job.cut) == job.cut - 1
        packed = layout_words(
            config.i_layout, index=job.beat_index, outlier=job.beat_mask, last=ends
        )
        beats = unpack_ints(packed)
    return {
        "job": [
            config.job_layout.const({"length": job.length, "outliers": told, **header}).as_bits()
        ],
        "i": beats,
        "x": [int(word) for word in job.words],
        "token": [norm_token_layout.const({**header, "status": int(status)}).as_bits()],
        "value": values,
    }


def bench_params(config, seed) -> dict:
    rng = np.random.default_rng([seed, 88])
    phases = []
    for name, (codebook, valid) in codebooks(rng, 2**config.bits_a).items():
        if name not in PHASES:
            continue
        jobs = jobs_of(rng, config, few=name != "trained")
        packet = [int(word) for word in codebook]
        if packet:
            packet[-1] |= 1 << 16
        of_mask = [job.clean and rng.random() < 0.3 for job in jobs]
        words = [
            words_of(config, job, codebook, valid, mask)
            for job, mask in zip(jobs, of_mask, strict=True)
        ]
        phases.append({"codebook": packet, "jobs": words, "of_mask": of_mask})
    return {"phases": phases}


@pytest.mark.telling("three_bits", "two_bits")
@pytest.mark.parametrize("name", CONFIGS)
def test_norm_sums(name, seed):
    config = CONFIGS[name]
    simulate(
        KllmNormSums(config), "tb.kllm.tb_norm_sums", params=bench_params(config, seed), seed=seed
    )
