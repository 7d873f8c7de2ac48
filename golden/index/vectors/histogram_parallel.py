"""Packets for IndexHistogramParallel, with the counts of golden."""

import dataclasses

import numpy as np
import torch

from golden.index.format import K_MAX
from golden.index.histogram import bin_words, index_histogram, value_histogram
from golden.words import alternating, layout_words


@dataclasses.dataclass
class Packet:
    """Elements of one packet, in order; ``value`` is the part above the weight index."""

    value: np.ndarray
    index: np.ndarray
    inlier: np.ndarray
    integer: bool = False


def summing_to(total: int, top: int, length: int) -> np.ndarray:
    """``length`` numbers of 0..``top`` whose sum is ``total``."""
    values = np.zeros(length, dtype=int)
    values[: total // top] = top
    if total % top:
        values[total // top] = total % top
    return values


def counter_packets(rng, config) -> tuple[list[Packet], list[Packet]]:
    """Packets of all flows, and long ones that follow at full rate."""
    codes, e = 2**config.bits_b, config.elements
    longest = min(config.k_max, 40 * e)  # simulated; the registers' widths are those of k_max

    def packet(length, *, integer=False, value=None, index=None, p_inlier=1.0):
        drawn = rng.integers(0, 2 ** (config.integer_bits if integer else config.bits_a), length)
        return Packet(
            np.resize(drawn if value is None else value, length),
            np.resize(rng.integers(0, codes, length) if index is None else index, length),
            rng.random(length) < p_inlier,
            integer,
        )

    tops = [0, 2**config.bits_a - 1]
    packets = [
        packet(1),
        packet(1, p_inlier=0),
        packet(3 * e, p_inlier=0),
        *(packet(e) for _ in range(4)),  # single beats: reading is the bottleneck
        # every bin to its most
        *(packet(longest, value=v, index=j) for v in range(2**config.bits_a) for j in range(codes)),
        # each bit of the count of every bin, with and without its neighbours
        *(
            packet(length, value=v, index=j)
            for length in alternating(longest)
            for v in range(2**config.bits_a)
            for j in range(codes)
        ),
        # same bin in successive beats, and two bins in turn
        packet(longest, value=np.repeat(tops, e), index=1),
        packet(longest, value=tops[-1], index=np.repeat([2, 3], e)),
        packet(longest),
        packet(longest, p_inlier=0.5),
        *(packet(int(n)) for n in rng.integers(1, longest + 1, 6)),
        *(packet(e, p_inlier=0.5) for _ in range(3)),
    ]
    if config.architecture != "sram":
        # All counted elements at one position of the beat: more beats than k_max / elements.
        sparse = packet(longest * e, value=tops[-1], index=codes - 1)
        sparse.inlier[:] = np.arange(longest * e) % e == e - 1
        packets.append(sparse)
    if config.integer_bits:
        top = 2**config.integer_bits - 1
        packets += [
            *(packet(longest, integer=True, value=top, index=j) for j in range(codes)),
            # each bit of a sum
            *(
                packet(longest, integer=True, value=summing_to(total, top, longest), index=j)
                for total in alternating(longest * top)
                for j in range(codes)
            ),
            packet(longest, integer=True, value=0),
            packet(e, integer=True, p_inlier=0),
            *(packet(int(n), integer=True) for n in rng.integers(1, longest + 1, 4)),
            *(packet(e, integer=True) for _ in range(3)),
        ]
        rng.shuffle(packets)
    long = []
    if config.k_max == K_MAX:  # each high bit of every bin, and the largest count
        bins = ((v, j) for v in range(2**config.bits_a) for j in range(codes))
        # Any number of low bits: what a bit does in each beat stays visible.
        long = [
            packet((length & ~127) + int(rng.integers(1, 128)), value=v, index=j)
            for v, j in bins
            for length in alternating(K_MAX)
        ]
        long.append(packet(K_MAX, value=tops[-1], index=1))
    return packets, long


def golden_words(config, packet: Packet) -> np.ndarray:
    value, index = torch.as_tensor(packet.value), torch.as_tensor(packet.index)
    inlier = torch.as_tensor(packet.inlier)
    if packet.integer:
        bins = value_histogram(value, index, inlier, config.bits_b)
    else:
        pair = value << config.bits_b | index
        bins = index_histogram(pair, inlier, config.bits_a, config.bits_b)
    return bin_words(bins, config.word_bins).numpy()


def counter_vectors(config, seed):
    """(vectors, params): words of all packets, (beats, words) of each, packets of all flows."""
    rng = np.random.default_rng([seed, 12])
    i, o, lengths = [], [], []
    packets, long = counter_packets(rng, config)
    for packet in packets + long:
        beats = -(-len(packet.value) // config.elements)
        missing = beats * config.elements - len(packet.value)
        pair = packet.value * 2**config.bits_b + packet.index
        junk = rng.integers(0, 2 ** (config.bits_a + config.bits_b), missing)
        pair = np.concatenate([pair, junk]).reshape(beats, -1)
        inlier = np.pad(packet.inlier, (0, missing)).reshape(beats, -1)
        # Without an integer mode the bit says nothing.
        integer = np.full(beats, packet.integer or not config.integer_bits)
        last = np.arange(beats) == beats - 1
        beat = {"pair": pair, "inlier": inlier, "integer": integer, "last": last}
        i.append(layout_words(config.i_layout, **beat))
        words = golden_words(config, packet)
        slots = {str(slot): words[:, slot] for slot in range(config.word_bins)}
        ends = np.arange(len(words)) == len(words) - 1
        o.append(layout_words(config.o_layout, count=slots, last=ends))
        lengths.append((beats, len(words)))
    return {"i": np.concatenate(i), "o": np.concatenate(o)}, {
        "packets": lengths,
        "flow": len(packets),
    }
