"""MillionEncodeControl against golden.million.encode: APPENDs, rows, statuses, and their cycles.

Shown to fail:

- a side that has codes appended again, both sides discarded, an APPEND of a discarded side;
- a restored token that ends with K, or with a failure of K; rows or codes requested for it;
- fields of ``restore``; ``restore`` that repeats, stays, or is not waited for;
- progress kept by a job with ``discard``; a failure after which an encoding job goes on;
- the place in the ring that stays or does not wrap; a row without the sinks; the slot of head 0;
- the exponent of K for V; ``clear`` ignored; a token that counts with its K; one token too many;
- a bit of the tokens of one of several sequences above 127;
- a status that stays from the job before, an unknown failure as OK; ``idle`` with ``done``.
"""

import numpy as np
import pytest

from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, WindowShape
from golden.million.encode import Encoding, Job
from golden.paging.format import Op
from golden.words import layout_word
from hdl.million.encode_control import (
    MillionEncodeControl,
    MillionEncodeControlConfig,
    row_layout,
)
from hdl.million.restorer import RESTORE_LAYOUT
from hdl.paging.layouts import REQUEST_LAYOUT, STATUS_LAYOUT
from tb.simulate.run import simulate

SMALL = PqShape(head_dim=16, subspaces=4, bits=4)
FAILURES = (1, 3, 5, 6, 11, 12, 13, 15)


def control(pq, heads, window, **cache):
    sinks, keep, block = window
    return MillionEncodeControlConfig(
        cache=MillionConfig(
            pq=pq, head=HeadShape(heads=heads),
            window=WindowShape(sinks=sinks, keep=keep, block=block), **cache,
        )
    )  # fmt: skip


CONFIGS = {
    "default": MillionEncodeControlConfig(),
    "smollm2": control(NAMED["4b_64"], 3, (4, 0, 32), layers=3),
    "small": control(SMALL, 2, (2, 1, 2), sequences=2, layers=2),
    "one_vector": control(SMALL, 1, (0, 0, 0), layers=1),
    "many": control(SMALL, 5, (64, 256, 256), sequences=256, layers=3),
}


def jobs_of(rng, config):
    """Cleared sequences, then jobs that fail at any APPEND, have nothing to do, or begin anew."""
    vectors = sorted({0, config.vectors - 1, *rng.integers(0, config.vectors, 2).tolist()})
    jobs = [(Job(vector=vector, clear=True), 0) for vector in vectors]
    until = dict.fromkeys(vectors, 0)
    for n in range(50):
        vector = int(rng.choice(vectors))
        kind = rng.random()
        if kind < 0.25:
            discard = rng.random() < 0.4
            jobs.append((Job(vector=vector, until=int(rng.integers(60)), restored=True,
                             discard=discard), rng.random()))  # fmt: skip
            continue
        if kind < 0.3 and n > 8:
            jobs.append((Job(vector=vector, clear=True), 0))
            until[vector] = 0
            continue
        until[vector] += int(rng.integers(0, 4))
        jobs.append((Job(vector=vector, until=until[vector]), 0.2 if rng.random() < 0.5 else 0))
    if config.vectors <= 4:  # so many tokens take little time
        longest = vectors if config.cache.head.heads < 3 else vectors[:1]
        for tokens in (4095, 4099):  # all bits of a count, and the one above
            jobs += [(Job(vector=vector, until=tokens), 0) for vector in longest]
            jobs.append((Job(vector=vectors[-1], until=until[vectors[-1]]), 0))
    return jobs


def run_jobs(rng, config):
    """(job, what it does, the statuses of its APPENDs) of each job; after a restore, the truth."""
    found, golden = [], Encoding()
    for job, chance in jobs_of(rng, config):
        count = 99 if chance else max(99, 2 * job.until)
        answers = [int(rng.choice(FAILURES)) if rng.random() < chance else 0 for _ in range(count)]
        done = golden.run(job, answers)
        found.append((job, done, answers[: len(done.appends)]))
    return found


def encode_vectors(block, seed):
    config = block.config
    cache = config.cache
    heads, places = cache.head.heads, cache.window.places
    rng = np.random.default_rng([seed, 147])
    runs = run_jobs(rng, config)
    assert {take for _, done, _ in runs for take in done.takes} == {False, True}
    assert any(done.status and done.appends[-1][0] for _, done, _ in runs)  # V alone has failed
    names = ["job", "fetch", "encode", "append", "ended", "done", "restore"]
    words = {name: [] for name in names}
    packets = {name: [] for name in names}
    for job, done, answers in runs:
        sequence, layer = int(rng.integers(256)), int(rng.integers(256))
        slot = int(rng.integers(config.vectors)) * heads
        entries, exponents = int(rng.integers(1 << 13)), rng.integers(-16, 16, 2).tolist()
        words["job"].append(
            layout_word(
                config.job_layout, vector=job.vector, sequence=sequence, layer=layer, slot=slot,
                until=job.until, clear=int(job.clear), entries=entries, exponent_k=exponents[0],
                exponent_v=exponents[1], restored=int(job.restored), discard=int(job.discard),
            )
        )  # fmt: skip
        for (kv, token), answer in zip(done.appends, answers, strict=True):
            words["append"].append(
                layout_word(
                    REQUEST_LAYOUT, op=Op.APPEND, tag=kv, sequence=sequence, layer=layer, kv=kv,
                    token=token,
                )
            )  # fmt: skip
            junk = {name: int(rng.integers(256)) for name in ("tag", "sequence")}
            words["ended"].append(layout_word(STATUS_LAYOUT, **junk, op=1, status=answer))
            for head in range(heads * (not job.restored)):
                row = cache.window.sinks + token % places
                words["fetch"].append(
                    layout_word(row_layout(cache), slot=slot + head, row=row, kv=kv)
                )
                words["encode"].append(
                    layout_word(
                        config.encode_layout, kv=kv, head=head, entries=entries,
                        exponent=exponents[kv],
                    )
                )  # fmt: skip
        for take in done.takes if job.restored else [False] * len(done.appends):
            words["restore"].append(
                layout_word(RESTORE_LAYOUT, restored=int(job.restored), discard=int(take))
            )
        words["done"].append(int(done.status))
        for name in names:
            packets[name].append(len(words[name]))
    vectors = {
        name: np.array([list(word.to_bytes(64, "little")) for word in found], dtype=np.uint8)
        for name, found in words.items()
    }
    return vectors, {"packets": packets, "cycles": cycles(block.timing, names, heads, runs)}


def cycles(timing, names, heads, runs):
    """A step per cycle: APPEND, a head per cycle, its answer; or APPEND, codes, answer."""
    found = {name: [] for name in names}
    at = 0
    for job, done, _ in runs:
        found["job"].append(at)
        appends = len(done.appends)
        if job.clear:
            at += timing.delay("from job to done with clear")
        elif job.restored:
            at += 1 if job.discard else timing.latency
            for discard in done.takes:
                found["restore"].append(at + 1)
                if discard:
                    at += timing.delay("per side that is discarded")
                else:
                    found["append"].append(at)
                    found["ended"].append(at + 2)
                    at += timing.delay("per side of a restored token")
            at += 1 if job.discard else 2
            assert not job.discard or at - found["job"][-1] == timing.delay(
                "from job to done with discard"
            )
        else:
            at += timing.latency
            for _ in range(appends):
                found["append"].append(at)
                found["restore"].append(at + 1)
                for name in ("fetch", "encode"):
                    found[name] += range(at + 1, at + 1 + heads)
                at += heads + 1
                found["ended"].append(at)
                at += 1
            at += timing.delay("from the last status of a job to done") - 1
            at -= int(bool(done.status))
        found["done"].append(at)
        at += 1
    return found


@pytest.mark.telling("one_vector", "many", "default")
@pytest.mark.parametrize("name", CONFIGS)
def test_encode_control(name, seed):
    block = MillionEncodeControl(CONFIGS[name])
    vectors, params = encode_vectors(block, seed)
    assert block.timing.interval == 2 * (CONFIGS[name].cache.head.heads + 2)
    simulate(block, "tb.million.tb_encode_control", vectors=vectors, params=params, seed=seed)
