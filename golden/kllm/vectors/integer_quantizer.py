"""Rows for KllmIntegerQuantizer, with the scales and the integers of golden."""

import numpy as np
import torch

from golden.fp16.format import FP16
from golden.kllm.quantize import unsigned_quotient, unsigned_scale
from golden.words import layout_words, pack


def tie_words(s: int, bits: int) -> list[int]:
    """FP16 words near (q + 1/2) * s for every q up to the clamp, and one step from each."""
    value = float(np.uint16(s).view(np.float16))
    with np.errstate(over="ignore"):
        near = ((np.arange(2**bits + 1) + 0.5) * value).astype(np.float16)
    words = near[np.isfinite(near)].view(np.uint16).astype(np.int64)
    return [int(w) + d for w in words for d in (-1, 0, 1) if 0 <= w + d < FP16.infinity]


def rows_and_scales(rng, config, largest):
    """(x, s) pairs: tokens with their own scale, ties, any word with any scale."""
    pairs: list[tuple[int, ...]] = []
    scales = unsigned_scale(torch.as_tensor(largest), config.int_bits).numpy()
    for top, s in zip(largest, scales, strict=True):
        below = rng.integers(0, int(top) + 1, 24)
        pairs += [(int(x), int(s)) for x in (*below, top, 0)]
    for s in (1, 2, 3, 7, 0x03FF, 0x0400, 0x0401, 0x1C04, 0x3C00, 0x5801, 0x5BFF):
        pairs += [(x, s) for x in tie_words(s, config.int_bits)]
    finite = rng.integers(0, FP16.infinity, (2, 1500)) | rng.integers(0, 2, (2, 1500)) << 15
    pairs += [tuple(map(int, pair)) for pair in finite.T]
    pairs += [(int(x), 0) for x in finite[0, :20]]
    order = rng.permutation(len(pairs))
    return np.array(pairs)[order]


def quantizer_vectors(config, seed):
    rng = np.random.default_rng([seed, 40])
    top = (1 << config.int_bits) - 1
    near = np.array([top // 2, top // 2 + 1, top, 3 * top // 2, 3 * top // 2 + 1, 2 * top])
    largest = np.concatenate(
        [[0, 1, 2, 0x03FF, 0x0400, 0x3C00, 0x7BFF], near, rng.integers(0, FP16.infinity, 60)]
    )
    scale = unsigned_scale(torch.tensor(largest), config.int_bits).numpy()
    pairs = rows_and_scales(rng, config, largest)
    # Rows share a scale: pairs of one scale, filled up with zeros.
    rows, row_scales = [], []
    for s in np.unique(pairs[:, 1]):
        x = pairs[pairs[:, 1] == s, 0]
        x = np.concatenate([x, np.zeros(-len(x) % config.elements, dtype=np.int64)])
        rows.append(rng.permutation(x).reshape(-1, config.elements))
        row_scales.append(np.full(len(rows[-1]), s))
    x, s = np.concatenate(rows), np.concatenate(row_scales)
    order = rng.permutation(len(x))[:1200]
    x, s = x[order], s[order]
    value = unsigned_quotient(torch.tensor(x), torch.tensor(s)[:, None], config.int_bits).numpy()
    assert (value == top).any()
    assert (value == 0).any()
    tag = rng.integers(0, 2**config.tag_bits, len(x))
    sign = rng.integers(0, 2, len(largest)) << 15
    return {
        "largest": pack((largest | sign, 16)),
        "scale": pack((scale, 16)),
        "i": layout_words(config.i_layout, word=x, s=s, tag=tag),
        "o": layout_words(config.o_layout, value=value, tag=tag),
    }
