"""Packets of values, indices and inliers for the counting parts of a lane."""

import numpy as np


def packets_of(rng, config, integer: bool) -> list[tuple]:
    """[(value (K,), index (K, columns), inlier (K,))]: corners, then random packets."""
    counter = config.counter_config
    most = config.k_max // config.elements * config.elements
    high = (1 << (config.integer_bits if integer else config.bits_a)) - 1

    def packet(length, value=None, index=None, share=0.8):
        length = -(-length // config.elements) * config.elements
        drawn = rng.integers(0, high + 1, length)
        at = rng.integers(0, 1 << config.bits_b, (length, config.columns))
        return (
            drawn if value is None else np.full_like(drawn, value),
            at if index is None else np.full_like(at, index),
            rng.random(length) < share,
        )

    reduce = config.columns * (counter.integer_words if integer else counter.words)
    longest = max(1, min(most, config.elements * (reduce + 1)))
    packets = [packet(longest) for _ in range(3)]
    packets += [packet(most, value=0, index=0, share=1), packet(most, high, share=1)]
    packets += [packet(most, high, (1 << config.bits_b) - 1, 1), packet(1), packet(1, share=0)]
    packets += [packet(int(n)) for n in rng.integers(1, most + 1, 6)]
    return [*packets, *(packet(1) for _ in range(4))]
