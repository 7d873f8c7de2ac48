"""MillionValueEngine against golden.million.value: sums, ends, cycles, reads of the store.

Shown to fail:

- slots beyond the keys that count;
- the beats of a job one too many, or not counted anew;
- a job without keys that waits for beats, or stays;
- ``weight`` taken without ``code``;
- a code beyond the entries counted, or not flagged;
- ``end`` that waits for the sums;
- codebook words not kept, or replaced, while ``sum`` stalls;
- the book of no job, or the codebook's rows and parts exchanged;
- weights or bins of another query, codes or bins of another subspace;
- a sum one bit short, a sign or a shift ignored, a sum not begun anew;
- a sum replaced before it is taken;
- ``last`` on each query's final sum;
- the codebook read once more, once only, or not in each cycle (full_rate alone).
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.index.store import store_addresses, store_words
from golden.million.config import PqShape, RateShape
from golden.million.value import value_sums
from golden.million.vectors.decode_jobs import beyond_by_one_bit
from golden.million.vectors.words import MINUS, NAN, ONE
from golden.words import layout_words
from hdl.million.layouts import code_layout, score_layout
from hdl.million.room import BLOCKS
from hdl.million.value_engine import MillionValueEngine, MillionValueEngineConfig
from hdl.million.value_finish import value_sum_layout
from tb.simulate.run import simulate

PQ = PqShape(head_dim=16, subspaces=4, bits=4)


def of(pq=PQ, max_keys=64, books=1, **rate):
    others = {"window_macs": 4, "lanes": 4}
    return MillionValueEngineConfig(
        pq=pq, rate=RateShape(**others, **rate), max_keys=max_keys, books=books
    )


CONFIGS = {
    "small": BLOCKS["million_value_engine"].configs["small"],
    "smollm2": BLOCKS["million_value_engine"].configs["smollm2"],
    "default": MillionValueEngineConfig(),
    "one_query": of(macs=16, keys=1, queries=1, books=3, max_keys=99),
    "four_keys": of(macs=4, keys=4, queries=3, max_keys=61),
    "one_element": of(PqShape(head_dim=32, subspaces=32, bits=4), macs=8, keys=4, queries=2),
    "three_parts": of(PqShape(head_dim=48, subspaces=12, bits=4), macs=16, keys=2, queries=3),
    "longest": of(max_keys=32768, macs=16, keys=4, queries=1),
}


@dataclasses.dataclass
class Job:
    entries: int
    book: int
    weight: np.ndarray  # (L, keys) words
    code: np.ndarray  # (keys, M)


class Jobs:
    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.jobs: list[Job] = []
        pq = config.pq
        shape = (config.books, pq.subspaces, pq.entries, pq.sub)
        words = rng.integers(0, ONE + 1, shape)
        words = np.where(rng.random(shape) < 0.3, rng.choice([0, 1, 0x3FF, ONE], shape), words)
        self.codebook = words | rng.integers(0, 2, shape) << 15
        self.codebook[:, :, 0] = ONE  # the largest sums of both signs
        self.codebook[:, :, -1] = ONE | MINUS

    def add(self, keys, entries=None, *, weight=None, code=None, beyond=0.0):
        """Random weights and codes, or those given to all; beyond: share beyond the entries."""
        config, rng = self.config, self.rng
        most = config.pq.entries
        entries = most if entries is None else entries
        weights = rng.integers(0, ONE + 1, (config.rate.queries, keys))
        weights = np.where(rng.random(weights.shape) < 0.2, rng.integers(0, 1024), weights)
        if weight is not None:
            weights[:] = weight
        codes = rng.integers(0, entries, (keys, config.pq.subspaces))
        if code is not None:
            codes[:] = code
        if entries < most:
            wrong = rng.integers(entries, most, codes.shape)
            codes = np.where(rng.random(codes.shape) < beyond, wrong, codes)
        self.jobs.append(Job(entries, int(rng.integers(config.books)), weights, codes))


def value_jobs(rng, config) -> tuple[Jobs, int]:
    """All jobs, and how many of them the runs with idle and stall cycles move."""
    jobs = Jobs(config, rng)
    keys, most, pq = config.rate.keys, config.pq.entries, config.pq
    large = most * pq.subspaces > 1000
    few = most // 16 if large else most // 2 - 1
    top = min(config.max_keys, 99)
    jobs.add(keys + 1, few)
    jobs.add(0, few)
    jobs.add(5 * keys - 1, few, beyond=0.3)
    jobs.add(top, few, weight=ONE, code=0)
    some = 4
    for codes in beyond_by_one_bit(rng, pq, config.rate):
        jobs.add(len(codes), 1, code=codes)
    if not large:
        jobs.add(top, weight=ONE, code=most - 1)
        for count in range(1, 2 * keys + 2):
            jobs.add(count, few)
        for _ in range(4):  # more jobs than wait anywhere, without a beat
            jobs.add(0, 1)
        for _ in range(4):
            jobs.add(1, 1, code=0)
        jobs.add(top, weight=0)
        jobs.add(top, 1, code=0)
        for _ in range(6):
            jobs.add(int(rng.integers(0, top + 1)), int(rng.integers(1, most + 1)))
        some = len(jobs.jobs)
        for _ in range(3):  # counting takes longer than the finish, and about as long
            jobs.add(config.max_keys if config.max_keys < 1000 else 999, 2)
        for beats in range(-2, 6):
            finish = few * config.finish.parts * config.rate.queries
            jobs.add(max(0, min(config.max_keys, (finish + beats) * keys)), few)
        for subspace in range(pq.subspaces):  # one code alone lies beyond the entries
            jobs.add(2 * keys, few)
            jobs.jobs[-1].code[rng.integers(2 * keys), subspace] = few
    if config.max_keys > 1000 and not large:
        jobs.add(config.max_keys, weight=ONE, code=0)
        jobs.add(config.max_keys, weight=ONE, code=most - 1)
    jobs.add(3)
    return jobs, some


def beat_words(config, layouts, job: Job, rng) -> tuple[np.ndarray, np.ndarray]:
    """Words of weight and of code; junk in the slots beyond the keys."""
    keys, count = config.rate.keys, job.code.shape[0]
    beats = -(-count // keys)
    missing = beats * keys - count
    junk = rng.choice([NAN, ONE, 0xFFFF], (missing, config.rate.queries))
    weight = np.concatenate([job.weight.T, junk]).reshape(beats, keys, -1)
    junk = rng.integers(0, config.pq.entries, (missing, config.pq.subspaces))
    code = np.concatenate([job.code, junk]).reshape(beats, keys, -1)
    last = np.arange(beats) == beats - 1
    return (
        layout_words(layouts["weight"], word=weight, last=last),
        layout_words(layouts["code"], code=code, last=last),
    )


def sum_words(config, layout, job: Job, codebook) -> np.ndarray:
    """Transfers of ``sum``: for each part, for each query."""
    words = torch.tensor(codebook[job.book][:, : job.entries])
    sums = value_sums(torch.tensor(job.weight), torch.tensor(job.code), words)
    rows = np.array(sums.integers(), dtype=object).reshape(config.rate.queries, -1)
    macs = config.rate.macs
    values = [
        row[part * macs : (part + 1) * macs].tolist()
        for part in range(config.finish.parts)
        for row in rows
    ]
    last = np.arange(len(values)) == len(values) - 1
    return layout_words(layout, value=values, last=last)


def engine_vectors(config, seed):
    rng = np.random.default_rng([seed, 73])
    jobs, some = value_jobs(rng, config)
    layouts = {
        "job": config.job_layout,
        "weight": score_layout(config.rate),
        "code": code_layout(config.pq, config.rate),
        "sum": value_sum_layout(config.rate.macs),
        "end": config.finish.end_layout,
    }
    vectors = {name: [] for name in layouts}
    sizes = []
    for job in jobs.jobs:
        count = len(job.code)
        info = {"keys": count, "entries": job.entries, "book": job.book}
        info = {name: np.array([value]) for name, value in info.items()}
        vectors["job"].append(layout_words(layouts["job"], **info))
        if count:
            weight, code = beat_words(config, layouts, job, rng)
            vectors["weight"].append(weight)
            vectors["code"].append(code)
        vectors["sum"].append(sum_words(config, layouts["sum"], job, jobs.codebook))
        bad = np.array([bool((job.code >= job.entries).any())])
        vectors["end"].append(layout_words(layouts["end"], bad_code=bad))
        sizes.append((-(-count // config.rate.keys), job.entries))
    memory = store_words(torch.tensor(jobs.codebook), config.rate.macs)
    entries = config.pq.entries
    places = store_addresses(config.books, entries, entries, config.finish.parts)
    assert places.tolist() == list(range(len(memory)))
    words = {name: np.concatenate(each) for name, each in vectors.items()}
    words["memory"] = memory.numpy().astype("<u2").view(np.uint8).reshape(len(memory), -1)
    return words, {"sizes": sizes, "some": some}


@pytest.mark.telling("small", "one_query", "three_parts")
@pytest.mark.parametrize("name", CONFIGS)
def test_value_engine(name, seed):
    config = CONFIGS[name]
    vectors, params = engine_vectors(config, seed)
    simulate(
        MillionValueEngine(config),
        "tb.million.tb_value_engine",
        vectors=vectors,
        params=params,
        seed=seed,
    )


def test_the_vectors_reach_the_largest_sums():
    """2**63 of both signs, and 40 bits of a bin."""
    config = CONFIGS["longest"]
    jobs, _ = value_jobs(np.random.default_rng([1, 73]), config)
    sums = [
        value_sums(
            torch.tensor(job.weight),
            torch.tensor(job.code),
            torch.tensor(jobs.codebook[job.book][:, : job.entries]),
        ).integers()
        for job in jobs.jobs[-3:]
    ]
    assert {2**63, -(2**63)} <= {value for each in sums for value in each}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"rate": RateShape(macs=256)},
            "RateShape.macs must be a divisor of head_dim = 128, not 256",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        MillionValueEngineConfig(**wrong)
    assert str(error.value) == message
