"""KllmLaneCodebookRows against golden.kllm.lane.codebook_mode: packets in rows, of every fault.

Shown to fail with:

- a word after the centroids that is judged
- the centroids of a row of products, or of the row after the last
- a packet of a row too many, or of a row less, that is loaded
- a fault of one packet that refuses the next
- ``multiply`` in each last row
- C_B judged as products, or put in the table; centroids that wait for the table
- a codebook that stays loaded while a packet comes; rows counted on from packet to packet
- integers in a row after the first; the last row alone judged
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.format import integer_packet_length
from golden.kllm.lane import codebook_mode
from golden.kllm.vectors.jobs import packet_stream
from golden.words import layout_words, unpack_ints
from hdl.kllm.lane.codebook_rows import KllmLaneCodebookRows
from hdl.kllm.lane.config import KllmPeLaneConfig, Loaded
from hdl.kllm.lane.select_config import PACKET_WORDS
from tb.kllm.test_lane_codebook import packets_beyond, random_packet
from tb.kllm.test_pe_lane import ROWS
from tb.simulate.run import simulate

PACKETS = 60
ROW = PACKET_WORDS[-1]
CASES = ROWS | {
    "table1": KllmPeLaneConfig(packet_words=ROW),
    "fixed12": dataclasses.replace(ROWS["rows"], product="fixed12"),
}


def whole(config, rng, words: list[int]) -> list[int]:
    """A packet of the length of a mode, or of another number of rows than those have."""
    rows = -(-len(words) // ROW)
    known = {config.codebook_words, integer_packet_length(config.packet_bits_b)}
    if len(words) in known or rows not in {-(-length // ROW) for length in known}:
        return words
    rows = config.select_config.product_rows + int(rng.choice([0, 2, 4]))
    return (words * rows * ROW)[: rows * ROW] if rows > 1 else words[:1] * 3 * ROW


@pytest.mark.telling("rows_small", "rows_antisymmetric")
@pytest.mark.parametrize("name", CASES)
def test_lane_codebook_rows(name, seed):
    rng = np.random.default_rng([seed, 101])
    config = CASES[name]
    streams, count = ("i", "product"), 2**config.packet_bits_b
    words, packets = {stream: [] for stream in streams}, {stream: [] for stream in streams}
    modes, centroids, lengths = [], [], []
    sent = [whole(config, rng, random_packet(rng, config)) for _ in range(PACKETS)]
    for packet in [*sent, *packets_beyond(rng, config), sent[0]]:
        mode = codebook_mode(
            packet, bits_a=config.bits_a, bits_b=config.packet_bits_b,
            integers=bool(config.integer_bits), product=config.product,
        )  # fmt: skip
        modes.append("NOTHING" if mode is None else mode.name)
        junk = int(rng.choice([0, 0x7FFF, 0xFFFF]))
        rows = -(-len(packet) // ROW)
        padded = np.array([*packet, *[junk] * (rows * ROW - len(packet))]).reshape(rows, ROW)
        words["i"] += unpack_ints(packet_stream(config, np.array(packet), junk))
        products = min(rows, config.select_config.product_rows)
        multiply = np.zeros(products, dtype=np.int64)
        multiply[0] = rows == 1
        of_table = {"row": np.arange(products), "word": padded[:products], "multiply": multiply}
        words["product"] += unpack_ints(layout_words(config.product_layout, **of_table))
        centroids.append(padded[-1, :count].tolist())
        lengths.append(rows)
        for stream in streams:
            packets[stream].append(len(words[stream]))
    assert set(modes) == {"NOTHING", "KMEANS"} | ({"INTEGER"} if config.integer_bits else set())
    simulate(
        KllmLaneCodebookRows(config), "tb.kllm.tb_lane_codebook", seed=seed,
        params={
            "words": words, "packets": packets, "lengths": lengths, "centroids": centroids,
            "modes": [Loaded[mode].value for mode in modes], "mirrored": config.antisymmetric,
        },
    )  # fmt: skip
