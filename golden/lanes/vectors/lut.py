"""Packets for LaneLut, with the sums of golden."""

import numpy as np

from golden.lanes.format import GROUP, plane_words
from golden.lanes.sums import table_packet
from golden.lanes.vectors.packets import lane_vectors, lengths


def lut_vectors(config, seed):
    """(vectors, params): random operands, and those at the ends of their ranges."""
    rng = np.random.default_rng([seed, 283])
    low, high = -(1 << config.bits_a - 1), (1 << config.bits_a - 1) - 1
    most = 2**config.bits_w - 1

    def packet(kind: str, beats: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (beats, config.elements)
        codes = (beats, config.columns, config.groups, GROUP)
        if kind == "random":
            a, code = (
                rng.integers(low, high, shape, endpoint=True),
                rng.integers(0, most + 1, codes),
            )
        elif kind == "ends":
            a, code = rng.choice([low, high, 0, -1], shape), rng.choice([0, most], codes)
        else:
            a, code = np.full(shape, low), np.full(codes, 0)
        flat = [plane_words(four, config.bits_w) for four in code.reshape(-1, GROUP).tolist()]
        return a, np.array(flat).reshape(*codes[:3], config.bits_w)

    phases = {
        kind: [packet(kind, beats) for beats in lengths(config, rng)]
        for kind in ("random", "ends", "lowest")
    }
    return lane_vectors(config, phases, table_packet)
