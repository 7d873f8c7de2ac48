"""golden.million.records against Python's integers."""

import numpy as np
import pytest

from golden.million.config import NAMED, PqShape
from golden.million.records import code_beats

SHAPES = [
    PqShape(),
    NAMED["3b"],
    PqShape(head_dim=20, subspaces=4, bits=5),
    PqShape(head_dim=80, subspaces=16, bits=11),
    PqShape(head_dim=16, subspaces=4, bits=12),
]


def words_of(string: bytes, first: int, size: int, answers: dict[int, int]) -> list[tuple]:
    """Words of ``size`` bytes with ``string`` from byte ``first`` on, and junk around it."""
    padded = b"\xa5" * first + string
    padded += b"\x5a" * (-len(padded) % size)
    words, worst = [], 0
    for n in range(len(padded) // size):
        worst = max(worst, answers.get(n, 0))
        end = min(size, first + len(string) - n * size)
        data = int.from_bytes(padded[n * size : (n + 1) * size], "little")
        is_last = int((n + 1) * size >= first + len(string))
        words.append((data, first if n == 0 else 0, end, worst, is_last))
    return words


@pytest.mark.parametrize("pq", SHAPES, ids=lambda pq: f"{pq.subspaces}x{pq.bits}")
@pytest.mark.parametrize("keys", [1, 2, 4])
@pytest.mark.parametrize("size", [8, 32])
def test_code_beats(pq, keys, size):
    """A record is one integer, its codes from the lowest bit on."""
    rng = np.random.default_rng([pq.bits, keys, size])
    words, expected = [], []
    for count in (1, keys, keys + 1, 7):
        codes = rng.integers(0, 1 << pq.bits, (count, pq.subspaces)).tolist()
        records = [sum(code << pq.bits * m for m, code in enumerate(key)) for key in codes]
        string = b"".join(record.to_bytes(pq.record_bytes, "little") for record in records)
        first, bad = int(rng.integers(0, size)), int(rng.integers(0, 4))
        words += words_of(string, first, size, {bad: 2, bad + 1: 3})
        codes += [[0] * pq.subspaces] * (-count % keys)
        beats = len(codes) // keys
        for beat in range(beats):
            stop = min((beat + 1) * keys * pq.record_bytes, len(string))
            at = (first + stop - 1) // size  # the word of the beat's last byte
            answer = 0 if at < bad else 2 if at == bad else 3
            part = codes[beat * keys : (beat + 1) * keys]
            expected.append((part, answer, int(beat == beats - 1)))
    found = code_beats(words, pq, keys)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([(0, 0, 8, 0, 0)], "the last transfer has no end"),
        ([(0, 0, 7, 0, 1)], "a transfer must have records of 2 bytes, not 7 bytes"),
        ([(0, 3, 3, 0, 1)], "a transfer must have records of 2 bytes, not 0 bytes"),
    ],
)
def test_refuses(words, message):
    with pytest.raises(ValueError, match=message):
        code_beats(words, PqShape(head_dim=16, subspaces=4, bits=4), 1)
