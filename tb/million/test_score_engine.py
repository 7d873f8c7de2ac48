"""MillionScoreEngine against golden.million.scores.past_scores: exact sums, one rounding, cycles.

Shown to fail:

- the distance's term late by a cycle;
- a complemented term without its one; the sum of one group a bit short;
- both buffers of tables in one half of the banks; a buffer freed before its last look-up;
- ``dead`` ignored for bad codes, or for scores; ``beyond`` with > for >=;
- ``found`` kept for the next job; ``bad`` of the table in filling;
- one bit of one code in one slot not compared with the entries (each bit where a beat has few);
- the queue of scores one place short; jobs with a pause between them.
"""

import pytest

from golden.million.config import NAMED, PqShape, RateShape
from golden.million.vectors.score_engine import engine_vectors
from hdl.million.score_engine import MillionScoreEngine, MillionScoreEngineConfig
from tb.simulate.run import simulate


def engine(pq, rate, max_keys):
    return MillionScoreEngineConfig(pq=pq, rate=rate, max_keys=max_keys)


_SMALL_RATE = {"window_macs": 8, "lanes": 8}
CONFIGS = {
    "small": engine(
        PqShape(head_dim=16, subspaces=4, bits=4),
        RateShape(macs=8, keys=2, queries=2, **_SMALL_RATE), 64,
    ),
    "one_query": engine(
        PqShape(head_dim=16, subspaces=16, bits=5),
        RateShape(macs=4, keys=1, queries=1, **_SMALL_RATE), 33,
    ),
    "four_keys": engine(
        PqShape(head_dim=64, subspaces=8, bits=4),
        RateShape(macs=16, keys=4, queries=8, lanes=16, window_macs=16), 50,
    ),
    "three_parts": engine(
        PqShape(head_dim=96, subspaces=48, bits=4),
        RateShape(macs=32, keys=1, queries=3, lanes=16), 50,
    ),
    "smollm2": engine(NAMED["4b_64"], RateShape(queries=3), 1000),
    "128_subspaces": engine(
        PqShape(head_dim=256, subspaces=128, bits=4), RateShape(macs=256, queries=1), 40
    ),
    "default": engine(PqShape(), RateShape(), 32768),
}  # fmt: skip


@pytest.mark.telling("small", "one_query", "three_parts")
@pytest.mark.parametrize("name", CONFIGS)
def test_score_engine(name, seed):
    config = CONFIGS[name]
    vectors, params = engine_vectors(config, seed)
    block = MillionScoreEngine(config)
    simulate(block, "tb.million.tb_score_engine", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"rate": RateShape(macs=256)},
            "RateShape.macs must be a divisor of head_dim = 128, not 256",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        MillionScoreEngineConfig(**wrong)
    assert str(error.value) == message
