"""KllmLaneFinish against golden.kllm.blocks.finish_job: outputs, statuses, and what a job takes.

Shown to fail:

- the dense sum of a direct job not replaced by 0;
- a refused job that leaves its scales;
- the faults of a job kept for the next;
- an infinite scale taken for finite;
- a status that overwrites one not yet taken.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.kllm.blocks import finish_job
from golden.kllm.format import NO_OUTPUT, Status
from golden.words import layout_words, pack
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.finish import KllmLaneFinish
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_lane_finish"].configs["small"]
CONFIGS = {
    "small": SMALL,
    "eight_columns": dataclasses.replace(SMALL, columns=8, outliers_max=1000),
    "two_columns": dataclasses.replace(SMALL, columns=2, outliers_max=1),
}
INF, NAN = FP16.infinity, FP16.canonical_nan
REFUSED = [each for each in Status if each & NO_OUTPUT]


@dataclasses.dataclass(frozen=True)
class Ended:
    """A word of ``job``; outputs: its columns."""

    outputs: int
    counted: bool = True
    direct: bool = False
    status: int = 0
    s_a: int = 0x3C00
    s_b: tuple[int, ...] = ()  # in place of random scales
    low: bool = False  # sums that stay finite with any finite scale

    def cycles(self, columns: int) -> int:
        return columns if self.counted else self.outputs


def nearly(word: int, otherwise: int, sum_bits: int, rng) -> int:
    """A sum that leaves only low bits of the dense one, so that y shows them; s_a is 1."""
    value = (1 << 23 | word & 0x7FFFFF) << 48 - 23  # of exponent 127, on the grid of 2**-48
    shift = (word >> 23 & 0xFF) - 127
    value = value << shift if shift > 0 else value >> -shift
    value = value if word >> 31 else -value
    value += int(rng.integers(-3, 4)) << int(rng.integers(0, 25))
    return value if abs(value) < 1 << sum_bits - 1 else otherwise


def finished(rng, config: KllmPeLaneConfig, jobs: list[Ended]) -> dict[str, np.ndarray]:
    """Words of every stream."""
    columns, sum_bits = config.columns, config.scaler_config.sum_bits
    words: dict[str, list] = {name: [] for name in ("dense", "sparse", "s_b", "y", "status")}
    y_last = []
    for job in jobs:
        sign, exponent = rng.integers(0, 2, columns), rng.integers(100, 140, columns)
        dense = sign << 31 | exponent << 23 | rng.integers(0, 1 << 23, columns)
        sparse = [
            int.from_bytes(rng.bytes(12), "little", signed=True) >> int(shift)
            for shift in rng.integers(97 - sum_bits, 96, columns)
        ]
        for n in np.flatnonzero(rng.random(columns) < 0.4):
            sparse[n] = nearly(int(dense[n]), sparse[n], sum_bits, rng)
        if job.low:
            dense = sign << 31 | rng.integers(100, 120, columns) << 23
            sparse = rng.integers(-1 << 40, 1 << 40, columns).tolist()
        s_b = rng.integers(0, 2, job.outputs) << 15 | rng.integers(0, 0x7C00, job.outputs)
        s_b = np.array(job.s_b or s_b, dtype=np.int64)
        y, status = finish_job(
            job.status,
            job.s_a,
            torch.as_tensor(dense * (not job.direct)),
            sparse if job.counted else [0] * columns,
            torch.as_tensor(s_b),
        )
        words["s_b"] += s_b.tolist()
        words["y"] += y.tolist()
        y_last += [n == len(y) - 1 for n in range(len(y))]
        words["status"].append(int(status))
        words["sparse"] += sparse if job.counted else []
        words["dense"] += dense.tolist() if job.counted and not job.direct else []
    fields = {
        "s_a": [job.s_a for job in jobs],
        "last_column": [job.outputs - 1 for job in jobs],
        "counted": [job.counted for job in jobs],
        "direct": [job.direct for job in jobs],
        "status": [job.status for job in jobs],
    }
    last = np.arange(len(words["sparse"])) % columns == columns - 1
    return {
        "job": layout_words(config.info_layout, **fields),
        "dense": pack((words["dense"], FP32.bits)),
        "sparse": layout_words(config.sparse_layout, sum=words["sparse"], last=last),
        "s_b": pack((words["s_b"], 16)),
        "y": layout_words(config.word_layout, word=words["y"], last=y_last),
        "status": pack((words["status"], len(Status))),
    }


def counts(config: KllmPeLaneConfig, jobs: list[Ended]) -> dict[str, list[int]]:
    """Words of each stream that are done after each job."""
    each = {
        "job": [1] * len(jobs),
        "dense": [config.columns * (j.counted and not j.direct) for j in jobs],
        "sparse": [config.columns * j.counted for j in jobs],
        "s_b": [j.outputs for j in jobs],
        "y": [j.outputs * (not j.status & NO_OUTPUT) for j in jobs],
        "status": [1] * len(jobs),
    }
    return {name: np.cumsum(n).tolist() for name, n in each.items()}


def some_jobs(rng, config: KllmPeLaneConfig) -> list[Ended]:
    """Jobs of two outputs or more: their statuses come at least two cycles apart."""
    columns = config.columns
    kinds = [
        Ended(columns), Ended(2), Ended(columns, direct=True), Ended(2, direct=True),
        Ended(2, counted=False, status=int(Status.LENGTH_ZERO)),
        Ended(columns, counted=False, status=int(Status.CODEBOOK_MISSING | Status.NONFINITE)),
        Ended(columns, status=int(Status.OUTLIER_COUNT)),
        Ended(2, direct=True, status=int(Status.LAST_MISPLACED)),
        Ended(2, s_a=0x7BFF, s_b=(0x7BFF, 0xFBFF)), Ended(2, s_b=(INF, 0x3C00)),
        Ended(2, s_b=(0x3C00, NAN)), Ended(2, s_b=(0xFC00, INF), low=True),
        Ended(2, s_b=(0x7BFF, INF), low=True),
        Ended(2, s_b=(NAN, INF), counted=False, status=int(Status.NONFINITE)),
    ]  # fmt: skip
    jobs = [kinds[n] for _ in range(3) for n in rng.permutation(len(kinds))]
    jobs += [Ended(2, counted=n % 2 == 0, status=int(each)) for n, each in enumerate(REFUSED)]
    return [*jobs, Ended(columns)]


def finish_vectors(config: KllmPeLaneConfig, seed):
    """(vectors, params): ``steady`` for the contract, ``short`` with jobs of one output."""
    rng = np.random.default_rng([seed, 33])
    steady = some_jobs(rng, config)
    refused = [Ended(1, counted=False, status=int(each)) for each in REFUSED]
    ones = [Ended(1), Ended(1, direct=True), Ended(1, status=int(Status.OUTLIER_COUNT))]
    mixed = [*refused, *steady[:20], *refused, *ones, *refused, *reversed(ones), *steady[:5]]
    vectors, params = {}, {}
    for phase, jobs in (("steady", steady), ("short", mixed)):
        for name, words in finished(rng, config, jobs).items():
            vectors[f"{phase}.{name}"] = words
        params[phase] = {"packets": counts(config, jobs)}
    starts = np.cumsum([0, *(job.outputs for job in steady)])
    params["steady"]["causes"] = [
        int(start) + n
        for start, job in zip(starts[:-1], steady, strict=True)
        for n in range(job.outputs if not job.status & NO_OUTPUT else 0)
    ]
    # The last scale of the last job is taken with its last column.
    params["steady"]["units"] = sum(job.cycles(config.columns) for job in steady)
    params["silent"] = [bool(job.status & NO_OUTPUT) for job in steady]
    return vectors, params


@pytest.mark.parametrize("name", CONFIGS)
def test_lane_finish(name, seed):
    config = CONFIGS[name]
    vectors, params = finish_vectors(config, seed)
    simulate(
        KllmLaneFinish(config), "tb.kllm.tb_lane_finish", vectors=vectors, params=params, seed=seed
    )
