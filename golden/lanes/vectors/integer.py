"""Packets for LaneInteger, with the sums of golden."""

import numpy as np

from golden.lanes.sums import integer_packet
from golden.lanes.vectors.packets import lane_vectors, lengths


def integer_vectors(config, seed):
    """(vectors, params): random integers, and integers at the ends of their ranges."""
    rng = np.random.default_rng([seed, 280])
    ends = {bits: (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in range(2, 9)}

    def drawn(kind: str, bits: int, shape) -> np.ndarray:
        if kind == "random":
            return rng.integers(*ends[bits], shape, endpoint=True)
        if kind == "lowest":
            return np.full(shape, ends[bits][0])
        return rng.choice([*ends[bits], 0, -1], shape)

    phases = {
        kind: [
            (
                drawn(kind, config.bits_a, (beats, config.elements)),
                drawn(kind, config.bits_w, (beats, config.columns, config.elements)),
            )
            for beats in lengths(config, rng)
        ]
        for kind in ("random", "ends", "lowest")
    }
    return lane_vectors(config, phases, integer_packet)
