"""Phases of jobs for KllmPeLane: sound jobs, every fault, and jobs whose cycles are known."""

import dataclasses
import itertools

import numpy as np

from golden.kllm.isa import MatmulMode
from golden.kllm.timing import lane_steps
from golden.kllm.vectors.jobs import (
    books_of,
    codebook_packet,
    integer_packet,
    packet_stream,
    packet_words,
    phase_vectors,
    random_job,
    weight_codebook,
)

INF, NAN = 0x7C00, 0x7E01


def good_jobs(rng, config) -> list:
    """Corners and random jobs that have outputs."""
    k, most = config.k_max, config.outliers_max
    jobs = [
        random_job(rng, config, 1),
        random_job(rng, config, 1, outliers=1),
        random_job(rng, config, k, outliers=min(most, k), columns=1),
        random_job(rng, config, k, index=0),
        random_job(rng, config, k, index=2**config.bits_a - 1),
        # outliers only: a block with as many as fit
        random_job(rng, config, min(most, k), outliers=min(most, k)),
    ]
    for n in range(16):
        length = int(rng.integers(1, k + 1))
        if n % 4 == 3:  # direct products, which pass the counters by, between the others
            length = min(length, most)
            jobs.append(random_job(rng, config, length, outliers=length))
        jobs.append(
            random_job(
                rng, config, length,
                outliers=int(rng.integers(0, min(most, length) + 1)),
                columns=int(rng.integers(1, config.columns + 1)),
            )
        )  # fmt: skip
    # extreme operands: everything largest, everything subnormal, overflow, infinite scale
    largest = random_job(rng, config, k, outliers=min(most, k), index=2**config.bits_b - 1)
    largest.x[:], largest.s_a, largest.s_b[:] = 0x7BFF, 0x7BFF, 0x7BFF
    smallest = random_job(rng, config, k, outliers=min(most, k))
    smallest.x[:], smallest.s_a, smallest.s_b[:] = 0x8001, 0x0001, 0x0001
    zero_scale = random_job(rng, config, k)
    zero_scale.s_a = 0
    bad_scale = random_job(rng, config, min(k, 9))
    bad_scale.s_b[0] = INF
    bad_scale.s_b[-1] = NAN
    return [*jobs, largest, smallest, zero_scale, bad_scale]


def faulty_jobs(rng, config) -> list:
    """Every fault, each followed by a job that must come out right."""
    k, e = config.k_max, config.elements
    beats = -(-k // e)

    def job(length=k, **options):
        return random_job(rng, config, length, **options)

    def replaced(base, **fields):
        return dataclasses.replace(base, **fields)

    outlier_nan, outlier_inf, s_nan = job(outliers=2), job(outliers=1), job()
    outlier_nan.x[np.flatnonzero(outlier_nan.outlier)[-1]] = NAN
    outlier_inf.x[:] = INF | 0x8000
    s_nan.s_a = NAN
    faults = [
        replaced(job(0), s_b=np.zeros(1, dtype=np.int64)),
        job(k + 1, outliers=1),
        replaced(job(), length=2**16 - 1),
        s_nan,
        outlier_nan,
        outlier_inf,
        replaced(job(min(k, config.outliers_max), outliers=1), outliers=2),
        replaced(job(outliers=min(k, 3)), outliers=0),
        replaced(job(outliers=1), outliers=config.outliers_max + 1),
    ]
    # A header that promises outliers only, and a mask that does not keep it.
    direct = min(k, config.outliers_max)
    faults.append(replaced(job(direct, outliers=direct // 2), outliers=direct))
    early = job(direct, outliers=direct)
    faults.append(replaced(early, last_a=-(-direct // e)))
    for last_a, last_w in (
        (0, beats - 1), (beats - 1, 0), (0, 0), (beats + 2, beats - 1), (beats - 1, beats + 3),
        (beats + 1, beats + 1), (0, beats + 2),
    ):  # fmt: skip
        if (last_a, last_w) != (beats - 1, beats - 1):
            faults.append(replaced(job(), last_a=last_a, last_w=last_w))
    jobs = []
    for faulty in faults:
        jobs += [faulty, job(int(rng.integers(1, k + 1)), outliers=1)]
    if config.columns & (config.columns - 1) or config.columns == 1:  # the header can say more
        beyond = job(outliers=1)
        beyond.s_b = np.resize(beyond.s_b, config.columns + 1)
        jobs += [beyond, job()]
    if config.integer_bits:
        jobs += [replaced(job(5, integer=True), missing_codebook=True), job()]
    for faulty in coinciding_faults(rng, config):
        jobs += [faulty, job(3, outliers=1)]
    return jobs


def coinciding_faults(rng, config) -> list:
    """Every pair of header faults, all of them at once, and beats with several faults."""
    k, most = config.k_max, config.outliers_max

    def of_header(*kinds):
        length = 0 if "zero" in kinds else k + 1 if "long" in kinds else min(5, k)
        faulty = random_job(rng, config, length, integer="codebook" in kinds)
        faulty.missing_codebook = "codebook" in kinds
        if "scale" in kinds:
            faulty.s_a = NAN
        if "outliers" in kinds:
            faulty.outliers = most + 1
        if "column" in kinds:
            faulty.s_b = np.resize(faulty.s_b, config.columns + 1)
        return faulty

    kinds = ["zero", "long", "scale", "outliers"]
    if config.columns & (config.columns - 1) or config.columns == 1:  # the header can say more
        kinds.append("column")
    if config.integer_bits:
        kinds.append("codebook")
    chosen: list = [pair for pair in itertools.combinations(kinds, 2) if pair != ("zero", "long")]
    chosen += [[kind for kind in kinds if kind != other] for other in ("zero", "long")]
    jobs = [of_header(*each) for each in chosen]
    for x, last, outliers, s_a in (
        (NAN, 0, None, 0x3C00),  # misplaced, outliers left over, one of them taken and a NaN
        (0x3C00, 0, None, 0x3C00),  # misplaced, outliers left over
        (INF, None, 1, 0x3C00),  # too few outliers, and an infinity
        (NAN, 0, 1, NAN),  # a fault of the header hides those of the beats
    ):
        length = min(k, config.elements + 3)
        faulty = random_job(rng, config, length, outliers=length if length < most else most)
        faulty.x[:], faulty.s_a = x, s_a
        jobs.append(dataclasses.replace(faulty, last_a=last, last_w=last, outliers=outliers))
    return jobs


def integer_jobs(rng, config) -> list:
    k = config.k_max
    jobs = [random_job(rng, config, int(n), integer=True) for n in (1, k, *rng.integers(1, k, 6))]
    full = random_job(rng, config, k, integer=True, index=2**config.integer_bits - 1)
    kmeans = dataclasses.replace(random_job(rng, config, 5), missing_codebook=True)
    # Outliers in the header, in the mask, and in both.
    header = dataclasses.replace(random_job(rng, config, 5, integer=True), outliers=1)
    mask = dataclasses.replace(random_job(rng, config, 5, integer=True, outliers=1), outliers=0)
    both = random_job(rng, config, 5, integer=True, outliers=1)
    return [*jobs, full, kmeans, jobs[0], header, jobs[1], mask, jobs[2], both, jobs[3]]


def lane_vectors(config, seed):
    """(vectors, params) of all phases."""
    rng = np.random.default_rng([seed, 7])
    vectors: dict[str, np.ndarray] = {}
    params: dict = {"phases": [], "rates": {}}

    def phase(name, jobs, codebooks, packet, in_turn=True):
        if in_turn:
            params["phases"].append(name)
        for stream, words in phase_vectors(config, jobs, codebooks).items():
            vectors[f"{name}.{stream}"] = words
        vectors[f"{name}.codebook"] = packet

    def kmeans(name, make, ends=True, **options):
        books = books_of(rng, config, ends=ends)
        phase(name, make(rng, config), books, codebook_packet(config, *books), **options)

    def missing(_rng, _config, count=2):
        return [
            dataclasses.replace(random_job(rng, config, 7), missing_codebook=True)
            for _ in range(count)
        ]

    kmeans("good", good_jobs)
    kmeans("faults", faulty_jobs)
    if config.integer_bits:
        book = weight_codebook(rng, config)
        phase("integer", integer_jobs(rng, config), (book,), integer_packet(config, book))
    # Packets of a wrong length or with an entry out of range leave the buffer empty.
    books = books_of(rng, config)
    packet = codebook_packet(config, *books)
    words = packet_words(config, *books)
    too_large, nan = words.copy(), words.copy()
    too_large[3] = 0x3C01 if config.product == "rounded" else 0x4001
    nan[-1] = 0x7E00
    faults = {"long": np.concatenate([words, words]), "too_large": too_large, "nan": nan}
    if config.packet_words == 1:
        faults = {"short": words[1:]} | faults | {"one_word": words[-1:]}
    elif len(packet) > 2:  # a packet of one row is one of integers
        faults = {"short": words[config.packet_words :]} | faults
    for name, bad in faults.items():
        phase(name, missing(rng, config), None, packet_stream(config, bad))
    kmeans("good_again", good_jobs, ends=False)
    kmeans("one_job", lambda r, c: [random_job(r, c, c.k_max, outliers=2)], in_turn=False)
    kmeans("after", lambda r, c: [random_job(r, c, 9, outliers=1)] * 3, in_turn=False)
    params["codebook_race"] = ("one_job", "after")
    phase("missing", missing(rng, config), None, packet, in_turn=False)
    params["missing"] = "missing"
    for length, jobs in ((config.k_max, 1), (config.k_max, 4), (1, 3)):
        name = f"rate_{length}_{jobs}"
        kmeans(
            name,
            lambda r, c, length=length, jobs=jobs: [random_job(r, c, length) for _ in range(jobs)],
            in_turn=False,
        )
        # pipeline, a cycle per job
        params["rates"][name] = (config.bound(length, jobs), 8 + config.scaler_stages + jobs)
    direct, jobs = min(config.k_max, config.outliers_max), 4
    kmeans(
        "rate_direct",
        lambda r, c: [random_job(r, c, direct, outliers=direct) for _ in range(jobs)],
        in_turn=False,
    )
    enters = direct * config.outlier_parts
    further = max(enters, config.columns)
    if config.outlier_parts > 1:
        further = enters + config.columns + 1
    bound = (jobs - 1) * further + enters + config.columns
    params["rates"]["rate_direct"] = (bound, 10 + config.scaler_stages + jobs)
    for name, count, made in cycle_jobs(rng, config):
        fields = cycle_fields(config, made, count)
        if made.integer:
            book = weight_codebook(rng, config)
            phase(name, [made] * count, (book,), integer_packet(config, book), in_turn=False)
        else:
            kmeans(name, lambda r, c, made=made, count=count: [made] * count, in_turn=False)
        params.setdefault("cycles", {})[name] = fields
    return vectors, params


def cycle_jobs(rng, config):
    """(name, how many, job): runs of equal jobs whose cycles golden.kllm.timing counts exactly."""
    k, few = config.k_max, max(1, config.columns // 2)
    outliers = min(k, config.outliers_max)
    for count in (1, 4):
        yield f"cycles_long_{count}", count, random_job(rng, config, k)
        yield f"cycles_short_{count}", count, random_job(rng, config, 1, columns=few)
        yield f"cycles_outliers_{count}", count, random_job(rng, config, k, outliers=outliers // 2)
        direct = random_job(rng, config, outliers, outliers=outliers, columns=few)
        yield f"cycles_direct_{count}", count, direct
        one = random_job(rng, config, 1, outliers=1)
        yield f"cycles_one_outlier_{count}", count, one
        if config.integer_bits:
            yield f"cycles_integer_{count}", count, random_job(rng, config, k, integer=True)


def cycle_fields(config, job, jobs: int) -> dict:
    """LaneJob of a job, and how many there are."""
    length, outliers = len(job.values), np.flatnonzero(job.outlier)
    direct = MatmulMode.DIRECT if len(outliers) == length else MatmulMode.KMEANS
    return {
        "steps": lane_steps(
            length, config.elements, outliers.tolist(), config.outlier_parts
        ),
        "outputs": len(job.s_b),
        "mode": MatmulMode.INTEGER if job.integer else direct,
        "before": _steps_before(config, outliers.tolist()),
        "ends": bool(job.outlier[(length - 1) // config.elements * config.elements :].any()),
        "jobs": jobs,
    }


def _steps_before(config, outliers: list[int]) -> int | None:
    """The steps of the beats before the first outlier."""
    return outliers[0] // config.elements if outliers else None
