"""KllmWeightSupply against golden.kllm.image.supply: from weight images to every lane.

Shown to fail:

- a word too many asked of a port, or a read of none;
- groups that are not replayed;
- reads at address 0;
- factors that are not kept for the second group;
- ``error`` of one port only;
- a refused job that does not take its factors, or that counts none of them;
- a job that is done before its lanes, or with the first of them;
- a token's factor given to the next token; a lane that is told twice;
- several tokens refused at the most beats that are kept; an error of a refused job;
- a bit of the token's number stuck at 0;
- ``come`` of a job with an error, of the job after the eldest, or with the first port's words;
- bit 8 of the number of groups, or of the beats of all lanes, stuck at 0 (``many_groups`` alone).
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.config import LaneShape, PortShape
from golden.kllm.format import beats, groups
from golden.kllm.vectors.weight_supply import Job, supply_words
from golden.words import alternating
from hdl.kllm.room import BLOCKS
from hdl.kllm.weights.supply import KllmWeightSupply, KllmWeightSupplyConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": BLOCKS["kllm_weight_supply"].configs["small"],
    # two words per beat, more slots than ports, as in Table I
    "fewer_ports": KllmWeightSupplyConfig(
        lane=LaneShape(lanes=4, columns=4, elements=4, bits_b=4),
        ports=PortShape(ports=6, bits=32), buffer_beats=8, length_bits=6,
    ),
    "more_ports": KllmWeightSupplyConfig(
        lane=LaneShape(lanes=2, columns=2, elements=4, bits_b=4),
        ports=PortShape(ports=5, bits=32), buffer_beats=6, length_bits=6,
    ),
    "far_more_ports": KllmWeightSupplyConfig(
        lane=LaneShape(lanes=1, columns=2, elements=2, bits_b=2),
        ports=PortShape(ports=7, bits=16), buffer_beats=4, length_bits=5,
    ),
    "equal": KllmWeightSupplyConfig(
        lane=LaneShape(lanes=3, columns=2, elements=2, bits_b=3),
        ports=PortShape(ports=3, bits=32), buffer_beats=5, length_bits=5,
    ),
    "four_scale_beats": KllmWeightSupplyConfig(
        lane=LaneShape(lanes=1, columns=16, elements=1, bits_b=4),
        ports=PortShape(ports=1, bits=64), buffer_beats=40, length_bits=6,
    ),
    "one_port": KllmWeightSupplyConfig(
        lane=LaneShape(lanes=2, columns=2, elements=3, bits_b=4),
        ports=PortShape(ports=1, bits=8), buffer_beats=4, length_bits=5,
    ),
}  # fmt: skip
CONFIGS["come"] = dataclasses.replace(CONFIGS["small"], come=True)
MOST_GROUPS = (1 << 9) - 1
MANY_LANES = LaneShape(lanes=64)


def random_jobs(rng, config, count):
    width = config.lane.group_outputs
    kept = config.buffer_beats * config.lane.elements
    longest = min(2 * config.buffer_beats, (1 << config.length_bits) - 1) * config.lane.elements
    jobs = [
        Job(kept, 2 * width, 3, True),
        Job(longest, width + 1, 1, False),
        Job(1, 1, 2, True),
        Job(kept + 1, width, 2, True, refused=True),
        Job(1, 5 * width, 1, False, faulty=(config.ports.ports - 1,)),
        Job(kept, width, 1, True),
        Job(1, width, 255, True),  # every bit of the number of tokens
    ]
    for _ in range(count):
        tokens = int(rng.integers(1, 4))
        most = longest if tokens == 1 else kept
        length, outputs = int(rng.integers(1, most + 1)), int(rng.integers(1, 3 * width + 1))
        fold = bool(rng.integers(0, 2))
        faulty = (int(rng.integers(0, config.ports.ports)),) if rng.integers(0, 2) else ()
        jobs.append(Job(length, outputs, tokens, fold, faulty=faulty))
    # Images have gaps between them and an order of their own, from address 3 on.
    for job, place in zip(jobs, rng.permutation(len(jobs)), strict=True):
        job.address = 3 + 4096 * int(place)
    return jobs


def rate_jobs(config):
    """Jobs whose cycles are compared with the bound: long, replayed, short."""
    width = config.lane.group_outputs
    kept = config.buffer_beats * config.lane.elements
    return [
        Job(kept, 8 * width, 1, False, 5),
        Job(max(config.lane.elements, kept // 2), 6 * width, 3, True, 5),
        Job(config.lane.elements, 8 * width, 1, False, 5),
    ]


def pair_of_jobs(config):
    """A group that is replayed and leaves half of the buffer free, then a job."""
    width = config.lane.group_outputs
    length = config.buffer_beats // 2 * config.lane.elements
    return [Job(length, width, 40, True, 5), Job(length, width, 1, False, 4096)]


def jobs_of_many_groups(config):
    width = config.lane.group_outputs
    return [
        Job(1, count * width, 1, False, 4096 * n)
        for n, count in enumerate(alternating(MOST_GROUPS))
    ]


@pytest.mark.telling("small", "more_ports", "equal", "come", "four_scale_beats")
@pytest.mark.parametrize("name", CONFIGS)
def test_weight_supply(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 42])
    jobs = random_jobs(rng, config, 10)
    params = {
        "case": supply_words(config, jobs, rng),
        "refused": supply_words(config, jobs[3:4], rng),
        "pair": supply_words(config, pair_of_jobs(config), rng),
        "rates": [
            (beats(job.length, config.lane.elements),
             groups(job.outputs, config.lane.group_outputs), job.tokens,
             *supply_words(config, [job], rng))
            for job in rate_jobs(config)
        ],
    }  # fmt: skip
    if name == "small":
        params["many_groups"] = supply_words(config, jobs_of_many_groups(config), rng)
    done = params["case"][0]["done"]
    assert {0, 1, 2} <= set(done)
    assert len(done) == len(jobs)
    simulate(KllmWeightSupply(config), "tb.kllm.tb_weight_supply", params=params, seed=seed)


def test_every_weight_is_supplied_once():
    """The rates' jobs read each image word once, whatever the tokens."""
    config = CONFIGS["fewer_ports"]
    for job in rate_jobs(config):
        words, memory = supply_words(config, [job], np.random.default_rng(5))
        asked = [words[f"read_{p}"][0] >> config.address_bits for p in range(config.ports.ports)]
        assert asked == [len(held) for held in memory]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"lane": MANY_LANES, "ports": PortShape(bits=64)},
            f"lane.lanes must be at most 32 at ports of 64 bits, not {MANY_LANES.lanes}",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmWeightSupplyConfig(**wrong)
    assert str(error.value) == f"KllmWeightSupplyConfig.{message}"
