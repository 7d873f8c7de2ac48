"""KllmLaneControl against golden.kllm.lane: the steps of each job, and what became of it.

Shown to fail:

- inliers of a beat counted with each of its outliers;
- x taken without a word left;
- ``last`` of w ignored;
- ``info`` of a job with the status of the job before;
- ``x`` of a refused job taken as often as the low twelve bits of ``outliers`` say;
- one bit of ``loaded`` ignored: a job without a codebook;
- a state of packets that turns into that of drained jobs and back in each cycle.
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.format import Status
from golden.kllm.lane import JobHeader, header_status, job_status, job_steps
from golden.kllm.vectors.jobs import phase_vectors, random_codebook, random_job
from golden.kllm.vectors.pe_lane import faulty_jobs, good_jobs
from golden.words import layout_word, unpack_ints
from hdl.kllm.lane.config import KllmPeLaneConfig, Loaded
from hdl.kllm.lane.control import KllmLaneControl
from tb.kllm.test_pe_lane import CONFIGS
from tb.simulate.run import simulate

CASES = ["flipflop", "select_odd", "select_wide", "one_column_no_integer"]


class Words:
    """The words of a stream, by the fields of its layout."""

    def __init__(self, layout, words: np.ndarray):
        self.layout, self.left = layout, unpack_ints(words)[::-1]

    def take(self) -> dict[str, int]:
        word = self.left.pop()
        return {name: word >> f.offset & (1 << f.width) - 1 for name, f in self.layout}

    def packet(self) -> list[dict[str, int]]:
        found = [self.take()]
        while not found[-1]["last"]:
            found.append(self.take())
        return found


def as_bytes(layout, words: list[int]) -> np.ndarray:
    size = -(-layout.size // 8)
    rows = [np.frombuffer(word.to_bytes(size, "little"), np.uint8) for word in words]
    return np.stack(rows) if rows else np.zeros((0, size), np.uint8)


def expected(
    config: KllmPeLaneConfig, words: dict, loaded: Loaded
) -> tuple[list[int], list[int], list]:
    """(words of step, words of info, steps of each job) of the jobs in ``words``."""
    job, a, w = (Words(getattr(config, f"{n}_layout"), words[n]) for n in ("job", "a", "w"))
    x = Words(config.value_layout, words["x"])
    steps, infos, counts = [], [], []
    while job.left:
        fields = job.take()
        direct = fields["outliers"] == fields["length"] and not fields["integer"]
        header = JobHeader(**fields | {"integer": bool(fields["integer"])})
        of_header = header_status(
            header, columns=config.columns, k_max=config.k_max,
            outliers_max=config.outliers_max,
            has_codebook=loaded == (Loaded.INTEGER if header.integer else Loaded.KMEANS),
        )  # fmt: skip
        beats_a, beats_w = (a.packet(), w.packet()) if header.length else ([], [])
        taken_x = [x.take()["word"] for _ in range(header.outliers)]
        mask = [[b["outlier"] >> e & 1 for e in range(config.elements)] for b in beats_a]
        ends = {"mask": mask, "last_a": len(beats_a) - 1, "last_w": len(beats_w) - 1}
        status = of_header or job_status(header, of_header, x=taken_x, **ends)
        x_at, of_job = iter(taken_x), job_steps(header, of_header, **ends)
        for step in of_job:
            beat = beats_a[step.beat]
            present = max(0, min(config.elements, header.length - step.beat * config.elements))
            inlier = ~beat["outlier"] & (1 << present) - 1 if step.is_first else 0
            tag = layout_word(
                config.outlier_tag, present=step.present, element=step.element, direct=direct,
                x=next(x_at) if step.present else 0,
            )  # fmt: skip
            steps.append(
                layout_word(
                    config.step_layout, value=beat["value"], inlier=inlier, tag=tag,
                    index=beats_w[step.beat]["index"], last=step.is_last,
                )
            )  # fmt: skip
        infos.append(
            layout_word(
                config.info_layout, s_a=header.s_a, last_column=header.last_column,
                counted=not of_header, direct=direct, status=int(status),
            )
        )  # fmt: skip
        counts.append((len(of_job), int(status)))
    assert not a.left + w.left + x.left
    return steps, infos, counts


def control_vectors(config: KllmPeLaneConfig, seed):
    rng = np.random.default_rng([seed, 36])
    jobs = [random_job(rng, config, config.k_max, outliers=2), *good_jobs(rng, config)]
    for n in range(24):  # any scale, in every place of the queues
        length = int(rng.integers(1, min(9, config.k_max + 1)))
        outliers = min(length if n % 2 else 0, config.outliers_max)
        scale = int(rng.integers(1 << 16)) & ~(1 << int(rng.integers(10, 15)))
        jobs.append(
            dataclasses.replace(random_job(rng, config, length, outliers=outliers), s_a=scale)
        )
    jobs += faulty_jobs(rng, config)
    books = random_codebook(rng, config.bits_a), random_codebook(rng, config.bits_b)
    # Every bit of a count: a refused job has its words of x taken all the same.
    bits = (1 << config.job_layout["outliers"].width) - 1
    refused = random_job(rng, config, config.k_max, outliers=1)
    long = [dataclasses.replace(refused, outliers=n) for n in (bits // 3, bits - bits // 3)]
    long.append(random_job(rng, config, 1, outliers=1))
    vectors = {}
    parts = {"long_": (long, Loaded.KMEANS), "nothing_": (jobs[:20], Loaded.NOTHING),
             "integer_": (jobs[:20], Loaded.INTEGER), "": (jobs, Loaded.KMEANS)}  # fmt: skip
    for prefix, (part, loaded) in parts.items():
        words = phase_vectors(config, part, books)
        steps, infos, counts = expected(config, words, loaded)
        vectors |= {prefix + name: words[name] for name in ("job", "a", "w", "x")}
        vectors[f"{prefix}step"] = as_bytes(config.step_layout, steps)
        vectors[f"{prefix}info"] = as_bytes(config.info_layout, infos)
    vectors["codebook"] = as_bytes(config.word_layout, [*range(9), 1 << 16])
    clean = next(n for n, (_, status) in enumerate(counts) if status)
    params = {
        "loaded": {prefix: loaded.value for prefix, (_, loaded) in parts.items()},
        "clean_steps": sum(count for count, _ in counts[:clean]),
        "first_steps": counts[0][0],
        "first_beats": -(-config.k_max // config.elements),
    }
    assert len({status for _, status in counts}) > len(Status)
    return vectors, params


@pytest.mark.telling("flipflop", "one_column_no_integer")
@pytest.mark.parametrize("name", CASES)
def test_lane_control(name, seed):
    config = CONFIGS[name]
    vectors, params = control_vectors(config, seed)
    simulate(
        KllmLaneControl(config), "tb.kllm.tb_lane_control", vectors=vectors, params=params,
        seed=seed,
    )  # fmt: skip
