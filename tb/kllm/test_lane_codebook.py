"""KllmLaneCodebook against golden.kllm.lane.codebook_mode: packets of every length and fault.

Shown to fail with:

- a word of 1.0 out of range, or one of -1.0005 within it
- one bit left out of the comparison with 1.0
- a fault of one packet that refuses the next
- a packet of a word too many that is loaded
- what a former packet loaded kept while the next one comes
- products of the centroids that follow them
- antisymmetric: the upper half without its signs, or in the order of the lower
- in fixed point: C_V judged on the grid of products, or C_B as a fixed word
"""

import numpy as np
import pytest

from golden.kllm.format import integer_packet_length
from golden.kllm.lane import codebook_mode
from hdl.kllm.lane.codebook import KllmLaneCodebook
from hdl.kllm.lane.config import Loaded
from tb.kllm.test_pe_lane import CONFIGS
from tb.simulate.run import simulate

PACKETS = 60
CASES = [
    "flipflop", "select_wide", "one_column_no_integer", "fixed16", "fixed16_wide", "fixed12",
    "antisymmetric", "antisymmetric_rounded",
]  # fmt: skip
LARGEST = (0x3C00, 0xBC00, 0x8000)


def words_beyond(grid: int | None) -> list[int]:
    """Words one bit above 1 in magnitude, each bit, of FP16 or on 2**grid; the farthest."""
    if grid is None:
        near = [0x3C00 | 1 << bit for bit in range(10)]
        return [word | n % 2 << 15 for n, word in enumerate([*near, 0x7C00, 0x7C00, 0xFE00])]
    one = 1 << -grid
    near = [one + (1 << bit) for bit in range(15) if one + (1 << bit) < 1 << 15]
    words = [*near, *(-word for word in near), (1 << 15) - 1, -1 << 15]
    return [word & 0xFFFF for word in words]


def last_within(rng, grid: int | None) -> int:
    """A word of FP16, or on 2**grid, at the end of -1..1."""
    if grid is None:
        return int(rng.choice(LARGEST))
    one = 1 << -grid
    return int(rng.choice([one, -one, one - 1, 1 - one])) & 0xFFFF


def word_grids(config, length: int) -> list[int | None]:
    """The grid of each word of a packet of ``length`` words; None: FP16.

    An Integer packet has another grid. C_B of a K-Means packet is FP16.
    """
    shape = config.select_config
    if not shape.is_fixed:
        return [None] * length
    is_integer = length == integer_packet_length(config.packet_bits_b)
    grid = shape.integer_grid if is_integer else shape.grid
    fixed = min(length, config.bins)
    return [grid] * fixed + [None] * (length - fixed)


def words_within(rng, grids: list[int | None]) -> list[int]:
    """Random words in -1..1."""
    words = []
    for grid in grids:
        if grid is None:
            words.append(int(rng.integers(0, 0x3C01)) | int(rng.integers(0, 2)) << 15)
        else:
            words.append(int(rng.integers(-1 << -grid, (1 << -grid) + 1)) & 0xFFFF)
    return words


def random_packet(rng, config) -> list[int]:
    """Draws a packet of a mode's length, or near it; within -1..1, or with one word beyond."""
    whole, short = config.codebook_words, integer_packet_length(config.packet_bits_b)
    near = [whole - 1, whole + 1, whole + 4, short - 1, short + 1, 1]
    length = int(rng.choice([whole] * 4 + [short] * 3 + near))
    grids = word_grids(config, length)
    words = words_within(rng, grids)
    at = int(rng.integers(length))
    words[at] = last_within(rng, grids[at])
    if rng.random() < 0.3:
        at = int(rng.choice([0, length - 1, int(rng.integers(length))]))
        words[at] = int(rng.choice(words_beyond(grids[at])))
    return words


def packets_beyond(rng, config) -> list[list[int]]:
    """Makes per mode and grid a packet with each of ``words_beyond``, in any place of that grid."""
    found = []
    short = integer_packet_length(config.packet_bits_b) if config.integer_bits else 0
    for length in filter(None, (config.codebook_words, short)):
        grids = word_grids(config, length)
        for grid in dict.fromkeys(grids):
            places = [n for n, each in enumerate(grids) if each == grid]
            for word in words_beyond(grid):
                words = words_within(rng, grids)
                words[int(rng.choice(places))] = word
                found.append(words)
    return found


@pytest.mark.telling("one_column_no_integer", "fixed16", "fixed12", "antisymmetric_rounded")
@pytest.mark.parametrize("name", CASES)
def test_lane_codebook(name, seed):
    rng = np.random.default_rng([seed, 100])
    config = CONFIGS[name]
    block = KllmLaneCodebook(config)
    streams = ("i", "product")
    words, packets = {stream: [] for stream in streams}, {stream: [] for stream in streams}
    modes, sent = [], []
    beyond = packets_beyond(rng, config)
    others = [random_packet(rng, config) for _ in range(PACKETS)]
    for packet in [*others, *beyond, random_packet(rng, config)]:
        sent.append(packet)
        mode = codebook_mode(
            packet, bits_a=config.bits_a, bits_b=config.packet_bits_b,
            integers=bool(config.integer_bits),
            product=config.product,
        )  # fmt: skip
        modes.append("NOTHING" if mode is None else mode.name)
        words["i"] += [
            config.packet_layout.const({"word": word, "last": n == len(packet) - 1}).as_bits()
            for n, word in enumerate(packet)
        ]
        words["product"] += [
            config.product_layout.const({"bin": n, "word": word}).as_bits()
            for n, word in enumerate(packet[: config.bins])
        ]
        for stream in streams:
            packets[stream].append(len(words[stream]))
    assert set(modes) == {"NOTHING", "KMEANS"} | ({"INTEGER"} if config.integer_bits else set())
    simulate(
        block, "tb.kllm.tb_lane_codebook", seed=seed,
        params={
            "words": words, "packets": packets, "lengths": [len(packet) for packet in sent],
            "modes": [Loaded[mode].value for mode in modes],
            "centroids": [packet[-(2**config.packet_bits_b) :] for packet in sent],
            "mirrored": config.antisymmetric,
        },
    )  # fmt: skip
