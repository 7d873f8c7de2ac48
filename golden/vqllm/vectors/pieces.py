"""Beats of vectors and the beats of their pieces, for the exchange and for the buffer."""

import itertools

import numpy as np

from golden.vqllm.exchange import exchanged
from golden.words import layout_words

_BEATS = 40


def beats_of(config, rng) -> tuple[dict[str, np.ndarray], dict]:
    """Words of both streams, and the parameters of tb_exchange: beats of each beat of vectors.

    No two elements of a beat are equal, as far as 16 bits can say.
    """
    shape, variable = config.shape, getattr(config, "variable", False)
    most = shape.pieces.bit_length() - 1
    count = shape.lanes * shape.size
    words = np.stack([rng.permutation(1 << 16)[:count] for _ in range(_BEATS)])
    words = words.reshape(-1, shape.lanes, shape.size)
    last = rng.integers(0, 2, _BEATS)
    halvings = rng.integers(0, most + 1, _BEATS) if variable else np.full(_BEATS, most)
    halvings[: _BEATS // 4] = most
    given, lasts = [], []
    for beat, ends, h in zip(words.tolist(), last, halvings, strict=True):
        vectors = [vector[: shape.need << h] for vector in beat]
        given += exchanged(vectors, shape.need) if h else [vectors]
        lasts += [0] * ((1 << h) - 1) + [ends]
    fields = {"halvings": halvings} if variable else {}
    pieces = [1 << int(h) for h in halvings]
    return (
        {
            "i": layout_words(config.i_layout, **fields, word=words, last=last),
            "o": layout_words(config.o_layout, word=np.array(given), last=np.array(lasts)),
        },
        {"pieces": pieces, "ends": list(itertools.accumulate(pieces))},
    )
