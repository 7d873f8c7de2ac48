"""MillionRecordWriter against golden.index.codes.pack: words, sizes and cycles.

Shown to fail:

- the size of whole words; a size that repeats, or that waits for the last word;
- ``last`` a word early; a place that does not return to 0;
- the same word again, or a shift while ``w`` stalls;
- a vector taken while its size or its words wait, or only after the last word;
- codes from the last subspace on, in whole bytes, or with a bit lost.
"""

import pytest

from golden.million.config import NAMED, PqShape
from golden.million.vectors.record_writer import record_vectors
from hdl.million.record_writer import MillionRecordWriter, MillionRecordWriterConfig
from tb.simulate.run import simulate


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


@pytest.mark.parametrize("name", CONFIGS)
def test_record_writer(name, seed):
    block = MillionRecordWriter(CONFIGS[name])
    vectors, params = record_vectors(block, seed)
    simulate(block, "tb.million.tb_record_writer", vectors=vectors, params=params, seed=seed)
