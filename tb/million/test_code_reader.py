"""MillionCodeReader against golden.million.records.code_beats: codes, answers and cycles.

Shown to fail:

- records without the bits that fill their last byte;
- codes at places of whole bytes;
- one bit of the answer;
- ``last`` or ``valid`` of full beats only;
- the same key in two slots;
- a beat taken while ``code`` stalls.
"""

import pytest

from golden.config import ConfigError
from golden.million.config import NAMED, PqShape, RateShape
from golden.million.vectors.code_reader import LONG, reader_vectors
from hdl.million.code_reader import MillionCodeReader, MillionCodeReaderConfig
from tb.simulate.run import simulate


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


@pytest.mark.telling("3b", "4b_one_word", "half_bytes", "odd")
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
