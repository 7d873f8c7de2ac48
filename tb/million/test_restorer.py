"""MillionRestorer against golden.million.records.passed_words: words, sizes, jobs and cycles.

Shown to fail:

- sizes of the other side; ``last`` of the encoder with words of the host; data of the other side;
- discarded words that are given, that wait for ``w``, or that wait for sizes;
- a job that ends before its sizes or its words, after one head less, or whose heads do not wrap;
- counts that stay from job to job; a size that is counted while it stalls;
- sizes of the encoder that are taken by a job of the host; words of the next job.
"""

import numpy as np
import pytest

from golden.million.config import NAMED, PqShape
from golden.million.records import passed_words
from golden.words import layout_words
from hdl.million.record_writer import MillionRecordWriterConfig
from hdl.million.restorer import RESTORE_LAYOUT, MillionRestorer, MillionRestorerConfig
from tb.simulate.run import simulate

SMALL = PqShape(head_dim=16, subspaces=4, bits=4)


def restorer(pq, heads, data_bits=256):
    writer = MillionRecordWriterConfig(pq=pq, data_bits=data_bits)
    return MillionRestorerConfig(writer=writer, heads=heads)


CONFIGS = {
    "default": MillionRestorerConfig(),
    "smollm2": restorer(NAMED["4b_64"], 3),
    "small": restorer(SMALL, 2, 64),
    "one_word": restorer(SMALL, 1, 64),
    "odd": restorer(PqShape(head_dim=80, subspaces=16, bits=11), 3, 64),  # 3 words per record
    "longest": restorer(PqShape(head_dim=256, subspaces=128, bits=12), 5, 64),
}
KINDS = [(0, 0), (1, 0), (1, 1)]  # restored, discard


def restorer_vectors(block, seed):
    """Each kind of job after each other, then random ones; words and sizes of any value."""
    config = block.config
    rng = np.random.default_rng([seed, 151])
    count = config.heads * config.writer.words
    pairs = [kind for first in KINDS for second in KINDS for kind in (first, second)]
    jobs = [*pairs, *(KINDS[n] for n in rng.integers(0, 3, 20))]
    encoded, passed, discarded = (jobs.count(kind) * count for kind in KINDS)
    size = config.writer.data_bits // 8
    encoder, host = (
        [int.from_bytes(rng.bytes(size), "little") for _ in range(length)]
        for length in (encoded, passed + discarded)
    )
    given = passed_words(jobs, encoder, host, count)
    assert len(given) == encoded + passed
    own = rng.integers(0, 1 << 12, encoded // config.writer.words).tolist()
    sizes = iter(own)
    records = [
        config.writer.pq.record_bytes if restored else next(sizes)
        for restored, discard in jobs if not discard for _ in range(config.heads)
    ]  # fmt: skip
    vectors = {
        "job": layout_words(
            RESTORE_LAYOUT, restored=[a for a, _ in jobs], discard=[b for _, b in jobs]
        ),
        "encoded_record": layout_words(config.writer.record_layout, bytes=own),
        "encoded_w": words_of(config, encoder),
        "restored": layout_words(config.restored_layout, data=host),
        "record": layout_words(config.writer.record_layout, bytes=records),
        "w": words_of(config, given),
    }
    return vectors, packets_and_cycles(jobs, block)


def words_of(config, words):
    """``last`` ends each record."""
    count = config.writer.words
    last = [int(n % count == count - 1) for n in range(len(words))]
    return layout_words(config.writer.w_layout, data=words, last=last)


def packets_and_cycles(jobs, block):
    """One job after another; each word and each size moves through in one cycle."""
    config, timing = block.config, block.timing
    heads, count = config.heads, config.heads * config.writer.words
    names = ("job", "encoded_record", "encoded_w", "restored", "record", "w")
    packets, cycles = {name: [] for name in names}, {name: [] for name in names}
    at = 0
    for restored, discard in jobs:
        words, sizes = range(at, at + count), range(at, at + heads)
        cycles["restored" if restored else "encoded_w"] += words
        if not restored:
            cycles["encoded_record"] += sizes
        if not discard:
            cycles["record"] += sizes
            cycles["w"] += words
        at += count - 1 + timing.delay("from the last word of an APPEND to its job")
        cycles["job"].append(at)
        at += 1
        for name in names:
            packets[name].append(len(cycles[name]))
    assert at == timing.interval * count * len(jobs)
    return {"packets": packets, "cycles": cycles}


@pytest.mark.parametrize("name", CONFIGS)
def test_restorer(name, seed):
    block = MillionRestorer(CONFIGS[name])
    vectors, params = restorer_vectors(block, seed)
    simulate(block, "tb.million.tb_restorer", vectors=vectors, params=params, seed=seed)
