"""MillionCodeReader against golden.million.records.code_beats: codes, answers and cycles.

Shown to fail:

- records without the bits that fill their last byte;
- codes at places of whole bytes;
- one bit of the answer;
- ``last`` or ``valid`` of full beats only;
- the same key in two slots;
- a beat taken while ``code`` stalls.
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.million.config import NAMED, PqShape, RateShape
from golden.million.records import code_beats
from hdl.million.code_reader import MillionCodeReader, MillionCodeReaderConfig
from tb.run import simulate
from tb.stream.test_repack import completes_first, model_cycles
from tb.words import layout_word, layout_words


def reader(pq, keys=1, data_bits=256):
    return MillionCodeReaderConfig(pq=pq, rate=RateShape(keys=keys), data_bits=data_bits)


CONFIGS = {
    "4b": reader(PqShape()),
    "3b": reader(NAMED["3b"]),  # 48 bytes of records in words of 32
    "4b_one_word": reader(NAMED["4b_64"]),
    "3b_four_keys": reader(NAMED["3b_64"], keys=4, data_bits=128),
    "half_bytes": reader(PqShape(head_dim=20, subspaces=4, bits=5), keys=2, data_bits=64),
    "odd": reader(PqShape(head_dim=80, subspaces=16, bits=11), keys=2, data_bits=64),
    "narrow_records": reader(PqShape(head_dim=16, subspaces=4, bits=7), keys=4, data_bits=1024),
    "widest": reader(PqShape(head_dim=256, subspaces=128, bits=8), keys=2, data_bits=128),
}
LONG = 60  # keys of the transfer that shows the rate


class Memory:
    """Transfers of random bytes; the bytes of their words that do not count are junk."""

    def __init__(self, rng, config):
        self.rng, self.config = rng, config
        self.size = config.data_bits // 8
        self.words, self.ends = [], []  # words of golden, and how many up to the end of each

    def add(self, keys, first=None, errors=(), record=None):
        """errors: (word, answer); the answer holds from that word on. record: all its bytes."""
        rng, size = self.rng, self.size
        first = int(rng.integers(0, size)) if first is None else first
        count = keys * self.config.pq.record_bytes
        total = first + count
        string = rng.integers(0, 256, -(-total // size) * size)
        if record is not None:
            string[first:total] = record
        worst, answers = 0, dict(errors)
        for n, at in enumerate(range(0, total, size)):
            worst = max(worst, answers.get(n, 0))
            data = int.from_bytes(bytes(string[at : at + size].tolist()), "little")
            end = min(size, total - at)
            self.words.append((data, first if n == 0 else 0, end, worst, int(at + size >= total)))
        self.ends.append(len(self.words))


def transfers(rng, config) -> Memory:
    memory = Memory(rng, config)
    size, keys = memory.size, config.rate.keys
    for count in (1, 1, 2, keys + 1, 3, 1, 1, 1, 7):
        memory.add(count)
    for first in {0, 1, size - 1}:
        memory.add(2 * keys, first=first)
        memory.add(2 * keys - 1, first=first)
    for record in (0x00, 0xFF):
        memory.add(keys, record=record)
    for part in range(config.pq.record_bytes):  # one bit after another
        if part < 16:
            record = np.zeros(config.pq.record_bytes, dtype=np.int64)
            record[-1 - part] = 1 << int(rng.integers(0, 8))
            memory.add(1, record=record)
    for errors in (((0, 2),), ((0, 3),), ((1, 2), (2, 3)), ((2, 3),), ((1, 3), (2, 2))):
        memory.add(int(rng.integers(2 * keys, 4 * keys + 4)), errors=errors)
        memory.add(1)
    for _ in range(40):
        errors = [(int(rng.integers(0, 5)), int(rng.integers(2, 4)))] if rng.random() < 0.5 else []
        memory.add(int(rng.integers(1, 5 * keys)), errors=errors)
    memory.add(LONG, first=0)
    return memory


def reader_vectors(config, seed):
    rng = np.random.default_rng([seed, 140])
    memory = transfers(rng, config)
    codes, error, last = code_beats(memory.words, config.pq, config.rate.keys)
    names = ("data", "first", "end", "error", "last")
    layout = config.word_layout
    words = [layout_word(layout, **dict(zip(names, w, strict=True))) for w in memory.words]
    assert int(error.max()) == 3
    assert {0, 2} <= set(error.tolist())
    size = 1 + layout.size // 8
    vectors = {
        "word": np.array([list(w.to_bytes(size, "little")) for w in words], dtype=np.uint8),
        "code": layout_words(config.code_layout, code=codes, error=error, last=last),
    }
    word_cycles, beat_cycles = model_cycles(memory.words, memory.size, config.beat_bytes)
    ends = np.flatnonzero(last.numpy()) + 1
    params = {
        "words": memory.ends, "beats": ends.tolist(),
        "word_cycles": word_cycles, "beat_cycles": beat_cycles,
        "completing": completes_first(memory.words, memory.size, config.beat_bytes),
    }  # fmt: skip
    return vectors, params


@pytest.mark.parametrize("name", CONFIGS)
def test_code_reader(name, seed):
    config = CONFIGS[name]
    vectors, params = reader_vectors(config, seed)
    block = MillionCodeReader(config)
    beats = params["beat_cycles"][-(LONG // config.rate.keys) + 2 : -2]
    rate = (beats[-1] - beats[0]) / (len(beats) - 1)
    assert abs(rate - block.timing.interval) < 0.05
    simulate(block, "tb.million.tb_code_reader", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pq": None}, "pq must be a PqShape, not None"),
        ({"data_bits": 96}, "data_bits must be a power of two in 64..1024, not 96"),
        (
            {"pq": NAMED["3b"], "rate": RateShape(keys=4), "data_bits": 2048},
            "data_bits must be a power of two in 64..1024, not 2048",
        ),
        (
            {"pq": PqShape(subspaces=128), "rate": RateShape(keys=4)},
            "rate.keys must be at most 2, as a record has 128 bytes, not 4",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        MillionCodeReaderConfig(**wrong)
    assert str(error.value) == f"MillionCodeReaderConfig.{message}"
