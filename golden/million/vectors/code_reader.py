"""Transfers of records for MillionCodeReader, with the codes of golden."""

import numpy as np

from golden.million.records import code_beats
from golden.stream.repack_cycles import completes_first, model_cycles
from golden.words import layout_word, layout_words

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
    for byte in (0x00, 0xFF):
        memory.add(keys, record=byte)
    for part in range(config.pq.record_bytes):  # one bit after another
        if part < 16:
            record = np.zeros(config.pq.record_bytes, dtype=np.int64)
            record[-1 - part] = 1 << int(rng.integers(0, 8))
            memory.add(1, record=record)
    for some in (((0, 2),), ((0, 3),), ((1, 2), (2, 3)), ((2, 3),), ((1, 3), (2, 2))):
        memory.add(int(rng.integers(2 * keys, 4 * keys + 4)), errors=some)
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
