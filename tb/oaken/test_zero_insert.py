"""OakenZeroInsert against golden.oaken.dequantize.insert_zeros: sound and damaged records.

Shown to fail:

- without each of the checks (count, order, entries left over);
- an error a byte early;
- a word after a discarded transfer cut short;
- the next transfer let in too early;
- the next transfer let in a cycle late (full_rate);
- bit 10 of the tokens that are left stuck at 0.
"""

import numpy as np
import pytest

from golden.oaken.vectors.zero_insert import Job, mixed, records
from hdl.oaken.zero_insert import OakenZeroInsert, OakenZeroInsertConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenZeroInsertConfig(),
    "eight": OakenZeroInsertConfig(lanes=8, block=16, data_bits=64, blocks_max=5),
    "whole_block": OakenZeroInsertConfig(lanes=64, block=64, data_bits=1024, blocks_max=2),
    "narrow_words": OakenZeroInsertConfig(lanes=64, block=64, data_bits=64, blocks_max=1),
    "half": OakenZeroInsertConfig(lanes=16, block=32, data_bits=256, blocks_max=64),
    "same": OakenZeroInsertConfig(lanes=16, block=16, data_bits=128, blocks_max=3),
}


def skipped(config, rng) -> tuple[Job, int]:
    """One long skip with a tenth outliers, and the cycles that it may take.

    A block takes the longer of two times: its outliers at ``lanes`` per cycle, at least one cycle,
    and its bytes at ``chunk_bytes`` per cycle. Then come the beats of the blocks that are shown,
    and 12 cycles of pipeline.
    """
    job = Job(config, rng)
    blocks, skip = min(config.blocks_max, 2), 40
    data = records(rng, (skip + 1) * blocks, config.block, 0.1)
    job.add(data, 1, skip, blocks)
    counts, at = [], 0
    while at < len(data):
        counts.append(data[at])
        at += 1 + data[at]
    skipping = sum(
        max(-(-count // config.lanes), 1, -(-(1 + count) // config.chunk_bytes))
        for count in counts[: skip * blocks]
    )
    shown = sum(-(-(1 + count) // config.chunk_bytes) for count in counts[skip * blocks :])
    return job, skipping + max(shown, blocks * config.block_beats) + 12


def long(config, rng) -> Job:
    """Many tokens, shown or skipped, of few outliers: bits 0 to 11 as 0 and as 1."""
    job = Job(config, rng)
    for tokens, skip in ((1365, 2), (2730, 0), (1, 1365), (2, 2730)):
        data = records(rng, tokens + skip, config.block, 0.01)
        job.add(data, tokens, skip, 1, first=0)
    return job


def full(config, rng) -> Job:
    job = Job(config, rng)
    for density in (1.0, 0.1, 0.0, 1.0, 0.5):
        tokens, blocks = int(rng.integers(1, 4)), min(config.blocks_max, 2)
        job.add(records(rng, tokens * blocks, config.block, density), tokens, 0, blocks, first=0)
        job.add(records(rng, blocks, config.block, density), 1, 0, blocks, first=0)
    return job


@pytest.mark.telling("default", "whole_block", "half")
@pytest.mark.parametrize("name", CONFIGS)
def test_zero_insert(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 43])
    vectors = mixed(config, rng).vectors("mixed")
    job, limit = skipped(config, rng)
    vectors |= job.vectors("skip")
    phases = ["mixed", "skip"]
    if config.block_beats == 1:
        vectors |= long(config, rng).vectors("long")
        phases.append("long")
    if config.chunk_bytes > config.lanes:  # a word or a part of it feeds every beat
        vectors |= full(config, rng).vectors("full")
        phases.append("full")
    simulate(
        OakenZeroInsert(config),
        "tb.oaken.tb_zero_insert",
        vectors=vectors,
        params={"phases": phases, "skip_limit": limit},
        seed=seed,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 4}, "lanes must be a power of two in 8..64, not 4"),
        ({"lanes": 64, "block": 32}, "lanes must be a power of two in 8..32, not 64"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenZeroInsertConfig(**wrong)
    assert str(error.value) == f"OakenZeroInsertConfig.{message}"
