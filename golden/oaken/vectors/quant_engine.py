"""Requests to the quantization engine and what golden answers: right ones and wrong ones."""

import dataclasses

import numpy as np
import torch

from golden.oaken import quantize
from golden.oaken.format import ScaleWord
from golden.oaken.vectors.kv_vectors import (
    BAD_THRESHOLDS,
    KINDS,
    beats,
    one_vector,
    spoil,
    vector_thresholds,
)
from golden.paging.format import Status
from golden.words import layout_words

FAULTS = (
    "special", "special_last", "special_first", "short", "short_special", "long", "long_special",
    "far_too_long", "no_blocks", "many_blocks", "most_blocks", "beyond_max", "thresholds",
    "thresholds_special", "thresholds_short", "thresholds_long",
)  # fmt: skip

_SHORTEST = 40  # vectors of one block in a row, more than any queue holds


@dataclasses.dataclass(frozen=True)
class Job:
    """One request: blocks and thresholds that it states, words that come, status expected."""

    blocks: int
    thresholds: tuple[int, ...]
    words: np.ndarray
    status: Status = Status.OK


def _good(rng, config, kind: str, blocks: int) -> Job:
    thresholds = vector_thresholds(rng)
    return Job(blocks, thresholds, one_vector(rng, kind, thresholds, blocks * config.block))


def _faulty(rng, config, fault: str, job: Job) -> Job:
    """``job`` with one fault, or two of which the first in Status' order counts."""
    lanes, words, blocks, status = config.lanes, job.words, job.blocks, Status.VECTOR_LENGTH
    thresholds = job.thresholds
    longest = config.elements_max // config.block

    def more(count: int) -> np.ndarray:
        return np.concatenate([words, one_vector(rng, "words", thresholds, count * lanes)])

    if fault == "far_too_long":  # so far that a counter of beats is where it was at the end
        period = 1 << (config.beats_max - 1).bit_length()
        words = more(-(-(2 * config.beats_max + 40) // period) * period)
    elif "long" in fault:
        words = more(int(rng.integers(1, 2 * config.block_beats + 2)))
    if "short" in fault:
        kept = len(words) // lanes - int(rng.integers(1, max(len(words) // lanes, 2)))
        if kept == 0:  # a vector of one beat cannot be shorter
            words, blocks = more(1), blocks + 2
        else:
            words = words[: kept * lanes]
    if fault == "no_blocks":
        blocks = 0
    if fault == "many_blocks":
        blocks = longest + int(rng.integers(1, 3))
    if fault == "most_blocks":
        blocks = (1 << config.request_layout["blocks"].width) - 1
    if fault == "beyond_max":  # as long as it says
        blocks = longest + 1
        words = one_vector(rng, "usual", thresholds, blocks * config.block)
    if "special" in fault:
        where = {"special_last": len(words) - 1, "special_first": 0}.get(fault)
        words = spoil(rng, words, where)
        status = Status.NONFINITE if len(words) == blocks * config.block else status
    if "thresholds" in fault:
        thresholds = BAD_THRESHOLDS[rng.integers(0, len(BAD_THRESHOLDS))]
        status = Status.THRESHOLDS
    return Job(blocks, thresholds, words, status)


def random_jobs(rng, config, count: int, faults=FAULTS, longest: int | None = None) -> list[Job]:
    """Every second one right, of every kind; those between with every fault in turn.

    First comes a run of the shortest: of one beat each, they fill the queues of scale words as
    nothing else does. Three right ones of the greatest length end it. The buffer is never fuller
    than after these.
    """
    most = config.elements_max // config.block
    longest = min(most, longest or most)
    kinds, wrong = list(rng.permutation(KINDS)), 0
    jobs = [_good(rng, config, "usual", 1) for _ in range(_SHORTEST)]
    for n in range(count):
        blocks = (1, longest)[n // 2 % 2] if n % 7 < 2 else int(rng.integers(1, longest + 1))
        job = _good(rng, config, kinds[n % len(kinds)], blocks)
        if n % 2 and faults:
            job = _faulty(rng, config, faults[wrong % len(faults)], job)
            wrong += 1
        jobs.append(job)
    return jobs + [_good(rng, config, "usual", longest) for _ in range(3)]


def engine_vectors(config, jobs: list[Job]) -> dict[str, np.ndarray]:
    """Packed words of request, i, header, dense and sparse, and running counts of the jobs."""
    words: dict[str, list] = {name: [] for name in ("request", "i", "header", "dense", "sparse")}
    counts = [[0, 0, 0, 0, 0]]
    for job in jobs:
        count = len(job.words) // config.lanes
        last = np.arange(count) == count - 1
        scale = np.zeros((1, len(ScaleWord)), dtype=np.int64)
        dense, sparse = [], []
        if job.status == Status.OK:
            x = torch.tensor(job.words.astype(np.int64))[None]
            encoded = quantize.encode(x, torch.tensor(job.thresholds), config.block)
            assert encoded.nonfinite is not None
            assert not bool(encoded.nonfinite.any())
            scale = encoded.scale.numpy()
            code = beats(encoded.code[0].numpy(), config.lanes)
            dense.append(layout_words(config.dense_layout, code=code, last=last))
            records = quantize.sparse_records(encoded, config.block, config.block)[0]
            padded = [list(record.ljust(config.block + 1, b"\0")) for record in records]
            used = np.array([len(record) for record in records])
            ends = np.arange(len(records)) == len(records) - 1
            sparse.append(layout_words(config.sparse_layout, data=padded, bytes=used, last=ends))
        words["request"].append(
            layout_words(config.request_layout, blocks=[job.blocks], thresholds=[job.thresholds])
        )
        elements = beats(job.words, config.lanes)
        words["i"].append(layout_words(config.i_layout, x=elements, last=last))
        words["header"].append(
            layout_words(config.header_layout, status=[int(job.status)], scale=scale)
        )
        words["dense"] += dense
        words["sparse"] += sparse
        counts.append([sum(map(len, words[name])) for name in words])
    return {name: np.concatenate(each) for name, each in words.items()} | {
        "counts": np.array(counts)
    }
