"""Counts and weights for IndexReducer, with the sums of golden."""

import dataclasses

import numpy as np
import torch

from golden.index.histogram import reduce_counts
from golden.words import layout_words

ONE, MINUS_ONE = 0x3C00, 0xBC00


@dataclasses.dataclass
class Packet:
    count: np.ndarray  # (beats, macs)
    weight: np.ndarray  # (beats, macs) FP16 words


class Builder:
    """Packets whose counts fit their slots and sum to at most total_max."""

    def __init__(self, rng, config):
        self.rng, self.config = rng, config
        shapes = [config.slot_shape(slot) for slot in range(config.macs)]
        self.high = np.array([min((1 << shape.width) - 1, config.total_max) for shape in shapes])
        self.packets = []

    def add(self, count, weight):
        count = np.asarray(count, dtype=np.int64).reshape(-1, self.config.macs)
        weight = np.broadcast_to(np.asarray(weight, dtype=np.int64), count.shape)
        assert (count >= 0).all()
        assert (count <= self.high).all()
        assert int(count.sum()) <= self.config.total_max
        self.packets.append(Packet(count, weight))

    def counts(self, beats, total=None):
        """Random counts, that sum to at most ``total``."""
        total = self.config.total_max if total is None else total
        share = np.minimum(self.high, total // (beats * self.config.macs))
        return self.rng.integers(0, share + 1, (beats, self.config.macs))

    def weights(self, beats, low=0, high=ONE + 1):
        shape = (beats, self.config.macs)
        return self.rng.integers(0, 2, shape) << 15 | self.rng.integers(low, high, shape)

    def at(self, terms):
        """Counts and weights, as many beats as needed, of (count, weight) terms in slot 0."""
        count = np.zeros((len(terms), self.config.macs), dtype=np.int64)
        weight = self.weights(len(terms))
        count[:, 0], weight[:, 0] = zip(*terms, strict=True)
        return count, weight


def reducer_packets(rng, config) -> list[Packet]:
    build = Builder(rng, config)
    macs, total = config.macs, config.total_max
    for beats in (1, 1, 1, 2, 3, 1, 8, 1, 2, 1):
        build.add(build.counts(beats), build.weights(beats))
    for beats in (1, 4):
        build.add(build.counts(beats), build.weights(beats, high=0x400))  # subnormal
        build.add(build.counts(beats, total=macs * beats), build.weights(beats))
        build.add(build.counts(beats), rng.choice([0x0000, 0x8000], (beats, macs)))
        build.add(build.counts(beats), rng.choice([ONE, MINUS_ONE], (beats, macs)))
        build.add(np.zeros((beats, macs)), build.weights(beats))
    # total_max in one slot, over several beats, and over all slots
    most = min(int(build.high[0]), total)
    for weight in (ONE, MINUS_ONE, 0x0001, 0x8001, 0x03FF, 0x3BFF):
        build.add(*build.at([(most, weight)]))
        steps = [most] * (total // most) + ([total % most] if total % most else [])
        if len(steps) < 400:
            build.add(*build.at([(step, weight) for step in steps]))
        share = np.minimum(build.high, total // macs)
        build.add(share[None], weight)
        build.add(np.zeros((1, macs)), weight)
    # exact cancellation gives +0; one unit from it gives the smallest sum
    for unit in (0, 1):
        terms = [(most // 3, 0x35A7), (most // 3, 0xB5A7), (unit, 0x8001)]
        build.add(*build.at(terms))
        build.add(*build.at([*terms[::-1], (0, 0x8000)]))
    # ties of the rounding to FP32: 2**24 + odd, in units of 2**(j - 24), and one unit from it
    for j in range(0, 8, 2):
        if (1 << j) * 8 > most:
            break
        for odd in (1, 3, 5, 7):
            for beside in (0, 1) if j else (0,):
                for sign in (0x0000, 0x8000):
                    terms = [(1 << j, ONE | sign), (odd << j, 0x0001 | sign)]
                    build.add(*build.at([*terms, (beside, 0x0001)]))
    for _ in range(25):
        beats = int(rng.integers(1, 6))
        narrow = int(rng.integers(0, 0x3C00))
        build.add(build.counts(beats), build.weights(beats, low=narrow))
    return build.packets


def reducer_vectors(config, seed):
    rng = np.random.default_rng([seed, 13])
    packets = reducer_packets(rng, config)
    beats = [len(p.count) for p in packets]
    count = np.concatenate([p.count for p in packets])
    weight = np.concatenate([p.weight for p in packets])
    last = np.concatenate([np.arange(n) == n - 1 for n in beats])
    slots = {str(slot): count[:, slot] for slot in range(config.macs)}
    y = [
        reduce_counts(torch.tensor(p.count).flatten(), torch.tensor(p.weight).flatten(), wide=True)
        for p in packets
    ]
    vectors = {
        "i": layout_words(config.i_layout, count=slots, weight=weight, last=last),
        "o": layout_words(config.o_layout, y=torch.stack(y)),
    }
    return vectors, {"beats": beats}
