"""MillionRecordWriter against golden.index.codes.pack: words, sizes and cycles.

Shown to fail:

- the size of whole words; a size that repeats, or that waits for the last word;
- ``last`` a word early; a place that does not return to 0;
- the same word again, or a shift while ``w`` stalls;
- a vector taken while its size or its words wait, or only after the last word;
- codes from the last subspace on, in whole bytes, or with a bit lost.
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.index.codes import pack
from golden.million.config import NAMED, PqShape
from hdl.million.record_writer import MillionRecordWriter, MillionRecordWriterConfig
from tb.run import simulate
from tb.words import layout_words


def writer(pq, data_bits=256):
    return MillionRecordWriterConfig(pq=pq, data_bits=data_bits)


CONFIGS = {
    "4b": writer(PqShape()),
    "3b": writer(NAMED["3b"]),  # one and a half words
    "4b_64": writer(NAMED["4b_64"]),  # one whole word
    "small": writer(PqShape(head_dim=16, subspaces=4, bits=4), data_bits=64),
    "half_bytes": writer(PqShape(head_dim=20, subspaces=4, bits=5), data_bits=64),
    "odd": writer(PqShape(head_dim=80, subspaces=16, bits=11), data_bits=64),
    "longest": writer(PqShape(head_dim=256, subspaces=128, bits=12), data_bits=64),
    "wide_word": writer(NAMED["3b_64"], data_bits=1024),
}


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


@pytest.mark.parametrize("name", CONFIGS)
def test_record_writer(name, seed):
    block = MillionRecordWriter(CONFIGS[name])
    vectors, params = record_vectors(block, seed)
    simulate(block, "tb.million.tb_record_writer", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pq": None}, "pq must be a PqShape, not None"),
        ({"data_bits": 32}, "data_bits must be a power of two in 64..1024, not 32"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        MillionRecordWriterConfig(**wrong)
    assert str(error.value) == f"MillionRecordWriterConfig.{message}"
