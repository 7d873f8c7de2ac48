"""Bits of on-chip memory that product-quantized attention takes, by formula. Pure Python.

    tables      2 * P * L * M * 2**nbits * 16
    codebooks   2 * 2 * books * 2**nbits * d * 16
    bins        2 * P * L * M * 2**nbits * bits of a sum of ceil(n / P) weights
    scores      2 * L * (P * ceil(n / P) + rows) * 16
    rows        2 * sequences * layers * heads * rows of the window * d * 16

n: longest sequence. L: queries side by side, P: keys per cycle. Each has two buffers, but for the
rows: these are K and V. Queues of a few words, the page table and the buffers of single vectors are
left out.
"""

from golden.fp16.format import FP16
from golden.million.config import MillionConfig, RateShape
from golden.million.format import WEIGHT_GRID


def sum_bits(weights: int) -> int:
    """Bits of a sum of softmax weights, each at most 1.0, on the grid 2**-24."""
    return (weights << -WEIGHT_GRID).bit_length()


def storage(cache: MillionConfig, rate: RateShape) -> dict[str, int]:
    """Bits by what is stored."""
    pq, window = cache.pq, cache.window
    queries, keys = rate.queries, rate.keys
    beats = -(-cache.max_tokens // keys)
    entries = queries * keys * pq.subspaces * pq.entries
    rows = window.sinks + window.places
    return {
        "tables": 2 * entries * FP16.bits,
        "codebooks": 2 * 2 * cache.books * pq.entries * pq.head_dim * FP16.bits,
        "bins": 2 * entries * sum_bits(beats),
        "scores": 2 * queries * (beats * keys + window.rows) * FP16.bits,
        "rows": 2 * cache.slots * rows * pq.head_dim * FP16.bits,
    }
