"""OakenSparseChunks against golden.oaken.dequantize.sparse_chunks.

Shown to fail:

- a piece shifted by the word's ``first`` although it is not the word's first piece;
- bytes above ``bytes`` left as they come;
- a word without bytes that gives no chunk;
- the word after a dropped transfer cut short (dropped_transfers);
- a cycle lost after each word (full_rate).
"""

import itertools

import numpy as np
import pytest

from golden.oaken.dequantize import SparseWord, sparse_chunks
from golden.oaken.vectors.dequant_tokens import as_bytes
from golden.words import layout_word
from hdl.oaken.sparse_chunks import OakenSparseChunks, OakenSparseChunksConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenSparseChunksConfig(),
    "one_piece": OakenSparseChunksConfig(data_bits=64, chunk_bytes=8),
    "eight_pieces": OakenSparseChunksConfig(data_bits=512, chunk_bytes=8),
}


def some_transfers(rng, word_bytes: int, count: int) -> list[list[SparseWord]]:
    """Transfers of one to five words that start and end anywhere; some words have no bytes."""
    found = []
    for n in range(count):
        words = int(rng.integers(1, 6))
        transfer = []
        for k in range(words):
            first = int(rng.integers(0, word_bytes)) if k == 0 else 0
            end = int(rng.integers(first, word_bytes + 1)) if k == words - 1 else word_bytes
            end = first if n % 7 == 3 and k == words - 1 else end
            error = int(rng.choice([0, 0, 0, 2, 3]))
            transfer.append(SparseWord(rng.bytes(word_bytes), first, end, error, k == words - 1))
        found.append(transfer)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_sparse_chunks(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 72])
    words, chunks, counts = [], [], []
    for transfer in some_transfers(rng, config.data_bits // 8, 300):
        golden = sparse_chunks(transfer, config.chunk_bytes)
        counts.append((len(transfer), len(golden)))
        for word in transfer:
            fields = word._asdict() | {"data": int.from_bytes(word.data, "little")}
            words.append(layout_word(config.i_layout, **fields))
        for chunk in golden:
            data, size = int.from_bytes(chunk.data, "little"), len(chunk.data)
            fields = chunk._asdict() | {"data": data, "bytes": size}
            chunks.append(layout_word(config.o_layout, **fields))
    ends = [list(itertools.accumulate(each)) for each in zip(*counts, strict=True)]
    simulate(
        OakenSparseChunks(config),
        "tb.oaken.tb_sparse_chunks",
        vectors={
            "i": as_bytes(words, config.i_layout.size), "o": as_bytes(chunks, config.o_layout.size)
        },
        params={"ends": dict(zip("io", ends, strict=True))},
        seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"data_bits": 64, "chunk_bytes": 16},
            "chunk_bytes must be at most data_bits / 8 = 8, not 16",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenSparseChunksConfig(**wrong)
    assert str(error.value) == f"OakenSparseChunksConfig.{message}"
