"""KllmWeightBuffer against golden.kllm.image.replay: groups kept, replayed, scales folded.

Shown to fail:

- a group that is freed by a replay without ``release``;
- a replay that starts at the row after the last one read;
- room for one beat more than the RAM has;
- scales of the set that is filled next;
- scales that ignore ``fold``;
- bit 9 of the length of a group lost in one place of a queue;
- ``done`` as soon as the weights are handed over.
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.image import replay
from golden.words import join
from hdl.kllm.room import BLOCKS
from hdl.kllm.weights.buffer import KllmWeightBuffer, KllmWeightBufferConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": BLOCKS["kllm_weight_buffer"].configs["small"],
    "one_word": KllmWeightBufferConfig(
        columns=2, elements=2, bits_b=4, port_bits=40, buffer_beats=8, length_bits=5, word_depth=2
    ),
    "scales_are_wider": KllmWeightBufferConfig(
        columns=5, elements=1, bits_b=2, port_bits=8, buffer_beats=2, length_bits=4, word_depth=1
    ),
    "one_column": KllmWeightBufferConfig(
        columns=1, elements=16, bits_b=3, port_bits=24, buffer_beats=7, length_bits=14, word_depth=3
    ),
}


@dataclasses.dataclass
class Job:
    beats: int
    groups: int
    tokens: int
    fold: bool


def random_jobs(rng, config, count):
    """Some replayed, some too long for the buffer and sent once."""
    longest = min(3 * config.buffer_beats, (1 << config.length_bits) - 1)
    jobs = [
        Job(config.buffer_beats, 2, 3, True),
        Job(longest, 2, 1, False),
        Job(1, 3, 2, True),
        Job(1, 5, 1, False),
    ]
    for _ in range(count):
        tokens = int(rng.integers(1, 4))
        most = longest if tokens == 1 else config.buffer_beats
        jobs.append(
            Job(
                int(rng.integers(1, most + 1)),
                int(rng.integers(1, 4)),
                tokens,
                bool(rng.integers(0, 2)),
            )
        )
    return jobs


def long_jobs(config) -> list[Job]:
    """Every bit of a length as 0 and as 1, in each place of a queue of two."""
    most = (1 << config.length_bits) - 1
    third, others = most // 3, most - most // 3
    return [Job(beats, 1, 1, True) for beats in (third, others, others, third)]


def buffer_words(config, jobs, rng):
    """Words of every stream."""
    words = {f"word_{k}": [] for k in range(config.lane_words)}
    words |= {name: [] for name in ("job", "replay", "w", "s_b", "done")}
    port_mask = (1 << config.port_bits) - 1
    for job in jobs:
        beats = [
            [int.from_bytes(rng.bytes(-(-config.beat_bits // 8)), "little")
             % (1 << config.beat_bits) for _ in range(job.beats)]
            for _ in range(job.groups)
        ]  # fmt: skip
        scale = rng.integers(0, 1 << 16, (job.groups, config.columns))
        near_one = rng.integers(0x3D000000, 0x41000000, job.tokens)
        rms = np.where(rng.random(job.tokens) < 0.8, near_one, rng.integers(0, 1 << 32, job.tokens))
        # Some products are ties of the rounding, or ties but for one bit of the reciprocal.
        one_bit = np.where(rng.random(job.tokens) < 0.5, 0, 1 << rng.integers(0, 12, job.tokens))
        near_tie = near_one & ~0x1FFF | 0x1000 | one_bit
        rms = np.where(rng.random(job.tokens) < 0.5, near_tie, rms)
        power_of_two = rng.integers(8, 22, scale.shape) << 10
        scale = np.where(rng.random(scale.shape) < 0.3, power_of_two, scale)
        words["job"].append(join((job.beats, config.length_bits), (job.groups, 16)))
        for group in range(job.groups):
            scales = join(*((word, 16) for word in scale[group]))
            wide = config.lane_words * config.port_bits
            ends = [scales >> n * wide & (1 << wide) - 1 for n in range(config.scale_beats)]
            for beat in (*beats[group], *ends):
                for k in range(config.lane_words):
                    word = beat >> k * config.port_bits & port_mask
                    words[f"word_{k}"].append(word)
            for token in range(job.tokens):
                release = token == job.tokens - 1
                end = release and group == job.groups - 1
                fields = (job.beats, config.length_bits), (rms[token], 32)
                flags = (job.fold, 1), (release, 1), (end, 1)
                words["replay"].append(join(*fields, *flags))
        given, scales = replay(beats, scale, job.tokens, rms if job.fold else None)
        words["w"] += [join((beat, config.beat_bits), (last, 1)) for beat, last in given]
        words["s_b"] += scales.tolist()
        words["done"].append(1)
    return words


@pytest.mark.parametrize("name", CONFIGS)
def test_weight_buffer(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 41])
    beats = config.buffer_beats
    rates = [Job(beats, 4, 1, False), Job(beats, 3, 3, True)]
    # Short enough that the next group comes while one is replayed.
    rates.append(Job(max(1, beats // 2), 6, 4, True))
    params = {
        "words": buffer_words(config, random_jobs(rng, config, 12), rng),
        "long": buffer_words(config, long_jobs(config), rng),
        "rates": [(dataclasses.astuple(job), buffer_words(config, [job], rng)) for job in rates],
    }
    simulate(KllmWeightBuffer(config), "tb.kllm.tb_weight_buffer", params=params, seed=seed)
