"""Tables and packets for LaneW4a16, with the sums of golden."""

import functools

import numpy as np

from golden.lanes.sums import w4a16_packet
from golden.lanes.vectors.packets import fp16_words, lane_vectors, lengths
from golden.words import layout_words


def w4a16_vectors(config, seed):
    """(vectors, params): a table for each phase, its entries in any order.

    The table of ``other`` has the bits that the table before it has not.
    """
    rng = np.random.default_rng([seed, 282])
    entries = 2**config.bits_w
    vectors: dict[str, np.ndarray] = {}
    phases: dict[str, list[int]] = {}
    table = np.zeros(entries, dtype=np.int64)
    for name in ("usual", "any", "other", "growing", "largest"):
        kind = "any" if name == "other" else name
        drawn = fp16_words(rng, "usual" if name == "growing" else kind, (entries,))
        table = table ^ 0xFFFF if name == "other" else drawn
        packets = [
            (
                fp16_words(rng, kind, (beats, config.elements)),
                rng.integers(0, entries, (beats, config.columns, config.elements)),
            )
            for beats in lengths(config, rng)
        ]
        packet_of = functools.partial(
            w4a16_packet, table=table.tolist(), guard_bits=config.guard_bits
        )
        words, params = lane_vectors(config, {name: packets}, packet_of)
        order = rng.permutation(entries)
        entry = layout_words(config.entry_layout, index=order, word=table[order])
        vectors |= words | {f"{name}.entry": entry}
        phases |= params["phases"]
    return vectors, {"phases": phases}
