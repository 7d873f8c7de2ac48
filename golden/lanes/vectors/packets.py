"""Packets for a lane: lengths that meet every wait, and words of both sides."""

import numpy as np

from golden.words import layout_words, pack


def lengths(config, rng: np.random.Generator) -> list[int]:
    """Beats of each packet: shorter and longer than the chain, one beat, the longest."""
    longest = config.longest // config.elements
    near = [1, 1, 2, config.columns - 1, config.columns, config.columns + 1, 1, longest]
    drawn = rng.integers(1, 2 * config.columns + 3, 6).tolist()
    return [min(max(each, 1), longest) for each in near + drawn]


def beats_of(a: np.ndarray, w: np.ndarray) -> list:
    """A packet of golden.lanes.sums: (a, w) of each beat. a: (beats, e), w: (beats, columns, e)."""
    return list(zip(a.tolist(), w.tolist(), strict=True))


def lane_vectors(config, phases: dict, packet_of) -> tuple[dict, dict]:
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


def fp16_words(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """FP16 words of a kind, of ``shape``; its first axis is beats.

    usual: exponents 11 to 17, as of activations. any: any bits. growing: exponents that rise over
    the beats, and some low ones. ends: zeros, subnormals and the ends of exponents. largest: the
    largest magnitude, of one sign or of both.
    """
    if kind == "any":
        return rng.integers(0, 1 << 16, shape)
    if kind == "ends":
        return rng.choice([0, 0x8000, 1, 0x3FF, 0x400, 0x83FF, 0x7BFF, 0x3C00, 0xFC00], shape)
    if kind == "largest":
        return np.where(rng.random(shape) < rng.choice([0, 0.5]), 0xFFFF, 0x7FFF)
    exponent = rng.integers(11, 18, shape)
    if kind == "growing":
        places = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        exponent = np.minimum(rng.integers(0, 3, shape) + places, 31)
        exponent = np.where(rng.random(shape) < 0.2, 2, exponent)
    sign, fraction = rng.integers(0, 2, shape), rng.integers(0, 1 << 10, shape)
    return sign << 15 | exponent << 10 | fraction
