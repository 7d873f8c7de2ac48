"""Packets for LaneFp16, with the sums of golden."""

import functools

import numpy as np

from golden.lanes.sums import fp16_packet
from golden.lanes.vectors.packets import fp16_words, lane_vectors, lengths


def fp16_vectors(config, seed):
    """(vectors, params): words of each kind of ``fp16_words``."""
    rng = np.random.default_rng([seed, 281])
    phases = {
        kind: [
            (
                fp16_words(rng, kind, (beats, config.elements)),
                fp16_words(rng, kind, (beats, config.columns, config.elements)),
            )
            for beats in lengths(config, rng)
        ]
        for kind in ("usual", "any", "growing", "ends", "largest")
    }
    packet_of = functools.partial(fp16_packet, guard_bits=config.guard_bits)
    return lane_vectors(config, phases, packet_of)
