"""OakenQuantEngine against golden.oaken.quantize: headers, dense codes, sparse bytes, faults.

Shown to fail:

- the middle group's step over 15 and its minimum at its lowest element;
- without the write row set back after a refused vector (wrong codes; nothing more after a reset);
- NaN in a vector's last beat overlooked;
- without a limit of blocks (dense words beyond the expected);
- beats beyond a vector's length written (nothing goes on);
- a row lost where a refused vector is forgotten (nothing goes on);
- scales taken by a refused vector (nothing goes on);
- a request noted twice (nothing goes on);
- a NaN that spoils the next vector;
- positions without the beat's;
- beats given twice to dense or sparse while the other waits;
- a counter of beats that wraps to the end of a vector far too long;
- a buffer 8 rows shorter (full_rate alone; 6 fewer are enough for 8 lanes);
- outlier scales in a queue of 2 words, where a vector is one beat (full_rate alone).
"""

import numpy as np
import pytest

from golden.oaken.vectors.quant_engine import FAULTS, engine_vectors, random_jobs
from golden.paging.format import Status
from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": OakenQuantEngineConfig(lanes=8, block=16, elements_max=80),
    "usual": OakenQuantEngineConfig(),
    "block_of_a_beat": OakenQuantEngineConfig(lanes=16, block=16, elements_max=144),
    "blocks_of_32": OakenQuantEngineConfig(lanes=8, block=32, elements_max=1024),
}
JOBS = {"small": 240, "usual": 60, "block_of_a_beat": 200, "blocks_of_32": 64}


@pytest.mark.telling("small", "block_of_a_beat")
@pytest.mark.parametrize("name", CONFIGS)
def test_quant_engine(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 68])
    jobs = random_jobs(rng, config, JOBS[name])
    assert {job.status for job in jobs} == {
        Status.OK, Status.THRESHOLDS, Status.VECTOR_LENGTH, Status.NONFINITE,
    }  # fmt: skip
    assert len(jobs) >= 2 * len(FAULTS)
    block = OakenQuantEngine(config)
    header_latency = block.timing.delay("from a vector's last beat to its header")
    params = {"header_latency": header_latency, "dense_latency": block.timing.latency}
    vectors = engine_vectors(config, jobs)
    simulate(block, "tb.oaken.tb_quant_engine", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 64, "block": 32}, "lanes must be at most block = 32, not 64"),
        ({"elements_max": 96}, "elements_max must be a multiple of block = 64, not 96"),
        ({"elements_max": 131136}, "elements_max must be 64..131072, not 131136"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenQuantEngineConfig(**wrong)
    assert str(error.value) == f"OakenQuantEngineConfig.{message}"
