"""Jobs of MillionDecodeKeys, with the scores of golden."""

import numpy as np
import torch

from golden.fp16.ops import is_special
from golden.million import timing
from golden.million.decode import decode_scores
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN
from golden.million.vectors.decode_jobs import Builder, Job, beats_of, shared_vectors
from golden.million.vectors.words import INFINITY, MINUS, MOST, NAN, ONE, finite, normal
from golden.words import layout_words

MOST_DISTANCE = 2**17 - 1


def scores_of(job: Job) -> torch.Tensor:
    tensors = {name: torch.tensor(job.given[name]) for name in ("q", "slope")}
    codebook, codes = torch.tensor(job.codebook), torch.tensor(job.codes)
    return decode_scores(
        codebook=codebook, codes=codes, exponent=int(job.given["exponent"]),
        distance=int(job.given["distance"]), **tensors,
    )  # fmt: skip


def key_jobs(rng, config) -> list[Job]:
    queries, head_dim = config.rate.queries, config.pq.head_dim

    def more(keys):
        return {
            "q": normal(rng, queries, head_dim, width=0.3),
            "slope": normal(rng, queries, width=0.1),
            "exponent": rng.integers(EXPONENT_MIN, EXPONENT_MAX + 1),
            "distance": rng.integers(max(keys - 1, 0), max(keys, 40)),
        }

    def even(word):
        return np.full((queries, head_dim), word)

    def slopes(word):
        return np.full(queries, word)

    build = Builder(rng, config, more)
    build.usual()
    # queries without scores
    for word in (INFINITY, MINUS | INFINITY, NAN):
        q, slope = more(1)["q"], more(1)["slope"]
        q[rng.integers(queries), rng.integers(head_dim)] = word
        slope[rng.integers(queries)] = word
        build.add(3, q=q)
        build.add(2, slope=slope)
        build.add(1)
    # the ends of the sums
    build.add(2, build.even(ONE, MINUS | ONE, 1, MINUS | 1))
    for word in (MOST, MINUS | MOST, 1, MINUS | 1, 0, MINUS, 0x3FF, 0x400, 0x3FFF, 0xBFFF):
        codes = np.repeat(np.arange(4), config.pq.subspaces).reshape(4, -1)
        for slope in (0, word, word ^ MINUS, 1):
            given = {"q": even(word), "slope": slopes(slope)}
            for exponent in (EXPONENT_MIN, 0, EXPONENT_MAX):
                distance = int(rng.choice([3, 4, MOST_DISTANCE]))
                build.add(4, codes=codes, exponent=exponent, distance=distance, **given)
    build.add(20, q=even(MOST), slope=slopes(0))
    # ties of the rounding: 1 + k / 2**11, and a unit of the grid from it
    for exponent in (EXPONENT_MIN, 0, EXPONENT_MAX):
        for unit in (0, 1, MINUS | 1):
            q = even(0)
            q[:, :4] = ONE, ONE, 0x1800, unit  # times 1, +-2**-11, 0 or 2, and 2**-24
            words = np.zeros((8, head_dim), dtype=np.int64)
            words[:, 0], words[:, 1] = ONE, [0x1000, MINUS | 0x1000] * 4
            words[:, 2], words[:, 3] = [0, 0, 0x3800, 0x3800] * 2, 1
            book = words.reshape(8, config.pq.subspaces, config.pq.sub).transpose(1, 0, 2)
            codes = np.arange(8)[:, None].repeat(config.pq.subspaces, 1)
            build.add(8, book, codes, q=q, slope=slopes(0), exponent=exponent)
    for _ in range(12):
        span = sorted(int(each) for each in rng.integers(0, MOST, 2))
        q = finite(rng, queries, head_dim, low=span[0], top=span[1])
        slope = finite(rng, queries, top=0x5000)
        build.add(int(rng.integers(0, 9)), build.codebook(5), q=q, slope=slope)
    # a score of few products takes every binade
    for _ in range(4):
        q = finite(rng, queries, head_dim) * (rng.random((queries, head_dim)) < 1.5 / head_dim)
        build.add(24, build.codebook(8), q=q, slope=slopes(0))
    for _ in range(4):  # one half of the vector cancels the other, but for a subspace
        half, subspaces = head_dim // 2, config.pq.subspaces
        q = finite(rng, queries, head_dim)
        q[:, half:] = q[:, :half] ^ MINUS
        book = build.codebook(8)
        book[subspaces // 2 :] = book[: subspaces // 2]
        codes = rng.integers(0, 8, (24, subspaces))
        codes[:, subspaces // 2 :] = codes[:, : subspaces // 2]
        codes[np.arange(24), rng.integers(0, subspaces, 24)] = rng.integers(0, 8, 24)
        build.add(24, book, codes, q=q, slope=slopes(0))
    build.longest(300)
    keys = min(config.max_keys, 200)
    build.add(keys, slope=slopes(0xB800), distance=keys - 1)
    return build.jobs


def key_vectors(config, seed):
    """Vectors; what tb_decode knows of the jobs."""
    rng = np.random.default_rng([seed, 142])
    jobs, keys, queries = key_jobs(rng, config), config.rate.keys, config.rate.queries
    vectors, counts = shared_vectors(rng, config, jobs)
    assert all((job.codes < 1 << config.pq.bits).all() for job in jobs)

    def nothing(count):
        return np.zeros((count, queries), dtype=np.int64)

    scores = [beats_of(scores_of(job).numpy(), keys, nothing) for job in jobs]
    last = np.concatenate([np.arange(n) == n - 1 for n in counts["code"]])
    q = np.stack([job.given["q"] for job in jobs]).reshape(-1, config.rate.lanes)
    beats = queries * config.query_beats
    bad = [
        is_special(torch.tensor(np.c_[job.given["q"], job.given["slope"]])).any(1).numpy()
        for job in jobs
    ]
    scalars = {
        name: np.array([int(job.given[name]) for job in jobs]) for name in ("exponent", "distance")
    }
    vectors |= {
        "q": layout_words(
            config.q_layout, word=q, last=np.arange(len(q)) % beats == beats - 1
        ),
        "job": layout_words(
            config.job_layout,
            keys=np.array([len(job.codes) for job in jobs]),
            entries=np.array([job.entries for job in jobs]),
            switch=np.array([job.switch for job in jobs]),
            slope=np.stack([job.given["slope"] for job in jobs]),
            **scalars,
        ),
        "score": layout_words(config.score_layout, word=np.concatenate(scores), last=last),
        "end": layout_words(
            config.end_layout,
            bad_code=np.array([job.bad_code for job in jobs]),
            bad=(np.stack(bad) << np.arange(queries)).sum(1),
        ),
    }
    latency = timing.decode_keys(config.pq.head_dim).latency
    counts |= {"q": [beats] * len(jobs)}
    return vectors, {"prefix": "", "counts": counts, "sums": 0, "latency": latency}
