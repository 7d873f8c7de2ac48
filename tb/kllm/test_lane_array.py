"""KllmLaneArray against golden: lanes with weights of their own on shared activations.

Every lane gives the y and status that KllmPeLane gives alone, however the lanes drift. A fault of
one lane's weights affects that lane only.

Shown to fail:

- every lane on the weights of lane 0;
- a codebook that does not wait for a job that has reached some lanes only.
"""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Value
from amaranth.lib.wiring import In

from hdl.kllm.lane.array import KllmLaneArray, KllmLaneArrayConfig
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.room import BLOCKS
from tb.kllm.support.jobs import (
    Job,
    codebook_packet,
    integer_packet,
    phase_vectors,
    random_codebook,
    random_job,
)
from tb.kllm.test_pe_lane import (
    cycle_fields,
    cycle_jobs,
    faulty_jobs,
    good_jobs,
    integer_jobs,
)
from tb.run import ROOT, simulate

CONFIGS = {
    "small": BLOCKS["kllm_lane_array"].configs["small"],
    "three_lanes": KllmLaneArrayConfig(
        lanes=3,
        lane=KllmPeLaneConfig(
            bits_a=2, bits_b=2, elements=2, columns=2, k_max=30, integer_bits=0,
            counter="two_level", macs=4, outliers_max=5, weight_buffer_beats=3,
        ),
    ),
}  # fmt: skip


def lane_job(rng, config, job: Job, lane: int) -> Job:
    """What lane ``lane`` is given of a job: lane 0 the job itself, others their own weights."""
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
        bits = lane_config.bits_a, lane_config.bits_b
        books = [random_codebook(rng, n, ends=ends) for n in bits]
        phase(name, jobs, books, codebook_packet(lane_config, *books), **options)

    def job(length=lane_config.k_max, **options):
        return random_job(rng, lane_config, length, **options)

    kmeans("good", good_jobs(rng, lane_config))
    kmeans("faults", faulty_jobs(rng, lane_config), ends=False)
    if lane_config.integer_bits:
        book = random_codebook(rng, lane_config.bits_b)
        phase("integer", integer_jobs(rng, lane_config), (book,), integer_packet(book))
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
            book = random_codebook(rng, lane_config.bits_b)
            phase(name, [made] * count, (book,), integer_packet(book), in_turn=False)
        else:
            kmeans(name, [made] * count, **off)
    return vectors, params


@pytest.mark.parametrize("name", CONFIGS)
def test_lane_array(name, seed):
    config = CONFIGS[name]
    vectors, params = array_vectors(config, seed)
    simulate(
        KllmLaneArray(config), "tb.kllm.tb_lane_array", vectors=vectors, params=params, seed=seed
    )


def test_most_lanes():
    """The page's table is that of ``lanes_max``, and so many lanes fit into 65,535 input bits.

    Shown to fail: with 16 bits more per lane in place of 64.
    """
    page = (ROOT / "docs" / "blocks" / "kllm_lane_array.md").read_text()
    rows = page.partition("| most lanes |\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert len(rows) >= 6
    for row in rows:
        columns, elements, bits_b, most = (int(cell.split()[0]) for cell in row.split("|")[1:-1])
        lane = KllmPeLaneConfig(columns=columns, elements=elements, bits_b=bits_b)
        config = KllmLaneArrayConfig(lanes=most, lane=lane)
        assert config.lanes_max == most
        array = KllmLaneArray(config)
        array._MustUse__silence = True  # its ports are counted, nothing is elaborated
        ports = array.signature.flatten(array)
        inputs = [value for _, member, value in ports if member.flow == In]
        clock_and_reset = 2
        bits = clock_and_reset + sum(len(Value.cast(value)) for value in inputs)
        assert bits < 1 << 16, f"{row}: {bits} input bits"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 0}, "lanes must be 1..64, not 0"),
        ({"lanes": 65}, "lanes must be 1..64, not 65"),
        ({"lanes": 40}, "lanes must be 1..31 at this width, not 40"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmLaneArrayConfig(**wrong)
    assert str(error.value) == f"KllmLaneArrayConfig.{message}"
