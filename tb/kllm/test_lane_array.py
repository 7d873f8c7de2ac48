"""KllmLaneArray against golden: lanes with weights of their own on shared activations.

Every lane gives the y and status that KllmPeLane gives alone, however the lanes drift. A fault of
one lane's weights affects that lane only.

Shown to fail:

- every lane on the weights of lane 0;
- a codebook that does not wait for a job that has reached some lanes only.
"""

import dataclasses
import re

import numpy as np
import pytest

from golden.kllm.vectors.jobs import (
    Job,
    books_of,
    codebook_packet,
    integer_packet,
    phase_vectors,
    random_codebook,
    random_job,
    weight_codebook,
)
from golden.kllm.vectors.pe_lane import (
    cycle_fields,
    cycle_jobs,
    faulty_jobs,
    good_jobs,
    integer_jobs,
)
from hdl.back.emit import module_name
from hdl.back.verilog import convert
from hdl.kllm.lane.array import KllmLaneArray, KllmLaneArrayConfig
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.engine import KllmPeLane
from hdl.kllm.room import BLOCKS
from tb.simulate.run import simulate

CONFIGS = {
    "small": BLOCKS["kllm_lane_array"].configs["small"],
    "three_lanes": KllmLaneArrayConfig(
        lanes=3,
        lane=KllmPeLaneConfig(
            bits_a=2, bits_b=2, elements=2, columns=2, k_max=30, integer_bits=0,
            counter="flipflop", macs=4, outliers_max=5, weight_buffer_beats=3,
        ),
    ),
    "rows": KllmLaneArrayConfig(
        lanes=3,
        lane=KllmPeLaneConfig(
            bits_a=2, bits_b=3, elements=2, columns=2, k_max=30, integer_bits=4, outliers_max=5,
            weight_buffer_beats=3, packet_words=16,
        ),
    ),
    "antisymmetric": KllmLaneArrayConfig(
        lanes=2,
        lane=KllmPeLaneConfig(
            bits_a=2, bits_b=3, elements=2, columns=2, k_max=30, integer_bits=4,
            product="fixed16", antisymmetric=True, outliers_max=5, weight_buffer_beats=3,
        ),
    ),
    "fixed16": KllmLaneArrayConfig(
        lanes=2,
        lane=KllmPeLaneConfig(
            bits_a=2, bits_b=2, elements=2, columns=2, k_max=30, integer_bits=4,
            product="fixed16", outliers_max=5, weight_buffer_beats=3,
        ),
    ),
}  # fmt: skip


def lane_job(rng, config, job: Job, lane: int) -> Job:
    """The share of a job that lane ``lane`` is given: lane 0 the job itself, others own weights."""
    if lane == 0:
        return job
    index_b = rng.integers(0, 2**config.bits_b, job.index_b.shape)
    s_b = rng.integers(0, 2, len(job.s_b)) << 15 | rng.integers(0, 0x4000, len(job.s_b))
    own = dataclasses.replace(job, index_b=index_b, s_b=s_b)
    beats = -(-len(job.values) // config.elements)
    if job.last_w is not None and job.last_a in (None, beats - 1):
        # only the weights of lane 0 end in the wrong place
        own = dataclasses.replace(own, last_w=None, last_a=None)
    return own


def array_vectors(config, seed):
    """(vectors, params) of all phases."""
    rng = np.random.default_rng([seed, 16])
    lane_config = config.lane
    vectors, params = {}, {"phases": [], "rates": {}}

    def phase(name, jobs, codebooks, packet, in_turn=True):
        if in_turn:
            params["phases"].append(name)
        vectors[f"{name}.codebook"] = packet
        for lane in range(config.lanes):
            own = [lane_job(rng, lane_config, job, lane) for job in jobs]
            for stream, words in phase_vectors(lane_config, own, codebooks).items():
                if stream not in ("job", "a", "x"):
                    vectors[f"{name}.{stream}_{lane}"] = words
                elif lane == 0:
                    vectors[f"{name}.{stream}"] = words
                else:
                    assert np.array_equal(vectors[f"{name}.{stream}"], words)

    def kmeans(name, jobs, ends=True, **options):
        books = books_of(rng, lane_config, ends=ends)
        phase(name, jobs, books, codebook_packet(lane_config, *books), **options)

    def job(length=lane_config.k_max, **options):
        return random_job(rng, lane_config, length, **options)

    kmeans("good", good_jobs(rng, lane_config))
    kmeans("faults", faulty_jobs(rng, lane_config), ends=False)
    if lane_config.integer_bits:
        book = weight_codebook(rng, lane_config)
        phase("integer", integer_jobs(rng, lane_config), (book,), integer_packet(lane_config, book))
    off = {"in_turn": False}
    lengths = (1, 9, lane_config.k_max, 3, 20, lane_config.k_max, 1, 12)
    kmeans("drift", [job(n, outliers=n % 2) for n in lengths], **off)
    missing = [dataclasses.replace(job(7), missing_codebook=True)] * 2
    phase("missing", missing, None, vectors["drift.codebook"], **off)
    kmeans("two_jobs", [job(outliers=2), job()], **off)
    kmeans("after", [job(9, outliers=1)] * 3, **off)
    params["codebook_race"] = ("two_jobs", "after")
    for length, jobs in ((lane_config.k_max, 1), (lane_config.k_max, 4), (1, 3)):
        name = f"rate_{length}_{jobs}"
        kmeans(name, [job(length) for _ in range(jobs)], **off)
        # pipeline, and a cycle per job
        params["rates"][name] = (lane_config.bound(length, jobs), 15 + jobs)
    params["cycles"] = {}
    for name, count, made in cycle_jobs(rng, lane_config):
        params["cycles"][name] = cycle_fields(lane_config, made, count)
        if made.integer:
            book = weight_codebook(rng, lane_config)
            phase(name, [made] * count, (book,), integer_packet(lane_config, book), in_turn=False)
        else:
            kmeans(name, [made] * count, **off)
    return vectors, params


@pytest.mark.telling("small", "three_lanes", "fixed16")
@pytest.mark.parametrize("name", CONFIGS)
def test_lane_array(name, seed):
    config = CONFIGS[name]
    vectors, params = array_vectors(config, seed)
    simulate(
        KllmLaneArray(config), "tb.kllm.tb_lane_array", vectors=vectors, params=params, seed=seed
    )


@pytest.mark.telling
def test_64_lanes(seed):
    """An array with the most lanes that a configuration admits, narrow ones, runs jobs twice."""
    lane = KllmPeLaneConfig(
        bits_a=2, bits_b=2, elements=1, columns=1, k_max=12, integer_bits=0, outliers_max=2,
        weight_buffer_beats=3,
    )  # fmt: skip
    config = KllmLaneArrayConfig(lanes=64, lane=lane)
    rng = np.random.default_rng([seed, 35])
    jobs = [random_job(rng, lane, n, outliers=n % 3) for n in (12, 1, 7, 2)]
    jobs += [dataclasses.replace(random_job(rng, lane, 5), last_w=2), random_job(rng, lane, 13)]
    jobs.append(random_job(rng, lane, 6, outliers=1))
    vectors = {}
    phases = {"kmeans": jobs, "two_jobs": [random_job(rng, lane, n, outliers=1) for n in (9, 12)]}
    for name, given in phases.items():
        books = [random_codebook(rng, bits) for bits in (lane.bits_a, lane.bits_b)]
        vectors[f"{name}.codebook"] = codebook_packet(lane, *books)
        for number in range(config.lanes):
            own = [lane_job(rng, lane, job, number) for job in given]
            for stream, words in phase_vectors(lane, own, books).items():
                shared = stream in ("job", "a", "x")
                vectors[f"{name}.{stream}" if shared else f"{name}.{stream}_{number}"] = words
    # The second packet comes after jobs.
    params = {"phases": ["kmeans", "kmeans"], "codebook_race": ["two_jobs", "kmeans"]}
    block = KllmLaneArray(config)
    simulate(block, "tb.kllm.tb_phases", vectors=vectors, params=params, seed=seed)
    for case in ("job_waits_in_a_gap_of_the_packet", "codebook_waits_for_the_jobs_before_it"):
        simulate(
            block, "tb.kllm.tb_lane_array", vectors=vectors, params=params, seed=seed,
            testcase=case,
        )  # fmt: skip


@pytest.mark.telling
def test_64_lanes_at_the_width_of_table_1():
    """The Verilog of 64 lanes with 131,136 bits of weights: every port, and one lane module.

    Shown to fail: without ``hdl.back.emit._wide_nets``.
    """
    config = KllmLaneArrayConfig(lanes=64)
    design = convert(KllmLaneArray(config), "array")
    weights = [port for port in design.description["ports"] if port["name"].startswith("w_")]
    payloads = [port["width"] for port in weights if port["name"].endswith("__payload")]
    assert payloads == [config.lane.w_layout.size] * 64
    assert sum(payloads) > 1 << 16
    one = KllmPeLane(config.lane)
    one._MustUse__silence = True  # its name alone is of interest
    lane = module_name(one)
    assert len(re.findall(rf"^module {lane}\b", design.verilog, re.M)) == 1
    array = design.verilog.partition("\nmodule array")[2]
    assert len(re.findall(rf"^  {lane} ", array, re.M)) == 64
