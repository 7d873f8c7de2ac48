"""KllmLaneCodebook against golden.kllm.lane.codebook_mode: packets of every length and fault.

Shown to fail with:

- a word of 1.0 out of range, or one of -1.0005 within it
- a fault of one packet that refuses the next
- a packet of a word too many that is loaded
- what a former packet loaded kept while the next one comes
- products of the centroids that follow them
"""

import numpy as np
import pytest

from golden.kllm.format import integer_packet_length
from golden.kllm.lane import codebook_mode
from hdl.kllm.lane.codebook import KllmLaneCodebook
from hdl.kllm.lane.config import Loaded
from tb.kllm.test_pe_lane import CONFIGS
from tb.run import simulate

PACKETS = 60
CASES = ["flipflop", "select_wide", "one_column_no_integer"]
LARGEST, BEYOND = (0x3C00, 0xBC00, 0x8000), (0x3C01, 0xBC01, 0x7C00, 0xFE00)


def random_packet(rng, whole: int, short: int) -> list[int]:
    """Of a mode's length, or near it; within -1..1, or with one word beyond."""
    near = [whole - 1, whole + 1, whole + 4, short - 1, short + 1, 1]
    length = int(rng.choice([whole] * 4 + [short] * 3 + near))
    words = rng.integers(0, 0x3C01, length) | rng.integers(0, 2, length) << 15
    words[rng.integers(length)] = rng.choice(LARGEST)
    if rng.random() < 0.3:
        words[rng.choice([0, length - 1, int(rng.integers(length))])] = rng.choice(BEYOND)
    return words.tolist()


@pytest.mark.parametrize("name", CASES)
def test_lane_codebook(name, seed):
    rng = np.random.default_rng([seed, 100])
    config = CONFIGS[name]
    block = KllmLaneCodebook(config)
    streams = ("i", "product")
    words, packets = {stream: [] for stream in streams}, {stream: [] for stream in streams}
    modes, sent = [], []
    for _ in range(PACKETS):
        packet = random_packet(rng, config.codebook_words, integer_packet_length(config.bits_b))
        sent.append(packet)
        mode = codebook_mode(
            packet, bits_a=config.bits_a, bits_b=config.bits_b, integers=bool(config.integer_bits),
        )  # fmt: skip
        modes.append("NOTHING" if mode is None else mode.name)
        words["i"] += [
            config.word_layout.const({"word": word, "last": n == len(packet) - 1}).as_bits()
            for n, word in enumerate(packet)
        ]
        words["product"] += [
            config.product_layout.const({"bin": n, "word": word}).as_bits()
            for n, word in enumerate(packet[: config.counter_config.bins])
        ]
        for stream in streams:
            packets[stream].append(len(words[stream]))
    assert set(modes) == {"NOTHING", "KMEANS"} | ({"INTEGER"} if config.integer_bits else set())
    simulate(
        block, "tb.kllm.tb_lane_codebook", seed=seed,
        params={
            "words": words, "packets": packets, "sent": sent,
            "modes": [Loaded[mode].value for mode in modes], "centroids": 2**config.bits_b,
        },
    )  # fmt: skip
