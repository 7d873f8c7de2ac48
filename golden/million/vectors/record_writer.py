"""Codes for MillionRecordWriter, with the records of golden."""

import numpy as np
import torch

from golden.index.codes import pack
from golden.words import layout_words


def record_vectors(block, seed):
    config = block.config
    rng = np.random.default_rng([seed, 142])
    pq, size = config.pq, config.data_bits // 8
    codes = rng.integers(0, pq.entries, (120, pq.subspaces))
    codes[:3] = [[0], [pq.entries - 1], [1]]
    for n in range(3, 12):  # one code alone, the first and the last among them
        codes[n] = 0
        codes[n, (0, -1, rng.integers(pq.subspaces))[n % 3]] = rng.integers(1, pq.entries)
    records = pack(torch.tensor(codes), pq.bits).numpy()
    assert records.shape[1] == pq.record_bytes
    string = np.zeros((len(codes), config.words * size), dtype=np.uint8)
    string[:, : pq.record_bytes] = records
    words = [int.from_bytes(w.tobytes(), "little") for w in string.reshape(-1, size)]
    last = np.arange(len(words)) % config.words == config.words - 1
    counts = np.full(len(codes), pq.record_bytes)
    vectors = {
        "code": layout_words(config.code_layout, code=codes),
        "record": layout_words(config.record_layout, bytes=counts),
        "w": layout_words(config.w_layout, data=words, last=last.astype(int)),
    }
    ends = list(range(1, len(codes) + 1))
    packets = {"code": ends, "record": ends, "w": [n * config.words for n in ends]}
    interval, latency = block.timing.interval, block.timing.latency
    starts = [int(n * interval) for n in range(len(codes))]
    cycles = {
        "code": starts,
        "record": [start + latency for start in starts],
        "w": [start + latency + n for start in starts for n in range(config.words)],
    }
    return vectors, {"packets": packets, "cycles": cycles}
