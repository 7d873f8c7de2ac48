"""Packets for a lane: lengths that meet every wait, and words of both sides."""

import numpy as np

from hdl.lanes.config import LaneConfig
from tb.words import layout_words, pack

__all__ = ["beats_of", "lane_vectors", "lengths"]


def lengths(config: LaneConfig, rng: np.random.Generator) -> list[int]:
    """Beats of each packet: shorter and longer than the chain, one beat, the longest."""
    longest = config.longest // config.elements
    near = [1, 1, 2, config.columns - 1, config.columns, config.columns + 1, 1, longest]
    drawn = rng.integers(1, 2 * config.columns + 3, 6).tolist()
    return [min(max(each, 1), longest) for each in near + drawn]


def beats_of(a: np.ndarray, w: np.ndarray) -> list:
    """A packet of golden.lanes.sums: (a, w) of each beat. a: (beats, e), w: (beats, columns, e)."""
    return list(zip(a.tolist(), w.tolist(), strict=True))


def lane_vectors(config: LaneConfig, phases: dict, packet_of) -> tuple[dict, dict]:
    """(vectors, params) of ``phases``: name -> packets (a, w), arrays as for ``beats_of``.

    packet_of: packet of golden -> FP32 words of its columns.
    """
    vectors, params = {}, {}
    for name, packets in phases.items():
        words = [
            layout_words(config.i_layout, a=a, w=w, last=np.arange(len(a)) == len(a) - 1)
            for a, w in packets
        ]
        sums = [packet_of(beats_of(a, w)) for a, w in packets]
        vectors[f"{name}.i"] = np.concatenate(words)
        vectors[f"{name}.o"] = pack((np.concatenate(sums), 32))
        params[name] = [len(a) for a, _ in packets]
    return vectors, {"phases": params}
