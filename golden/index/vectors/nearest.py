"""Midpoints and tokens for IndexNearest, with the indices of golden."""

import numpy as np
import torch

from golden.fp16.ops import mul
from golden.fp16.vectors.columns import random_words
from golden.index.nearest import cluster_by_midpoints, midpoints
from golden.words import layout_words

ONE, INF, NAN = 0x3C00, 0x7C00, 0x7E00
ONE_HOT = [1 << k | sign for k in range(15) for sign in (0, 0x8000)]
SCALES = [0, 0x8000, 0x0001, 0x03FF, 0x0400, ONE, 0x4A3C, 0x7BFF, 0xBC00, INF, 0xFC00, NAN]


def random_midpoints(rng, bounds):
    value = np.sort(rng.uniform(-1, 1, bounds + 1)).astype(np.float16)
    return midpoints(torch.tensor(value.view(np.uint16).astype(np.int64))).numpy()


def _six_bits(words):
    """Significands of six bits, the last one 1: half of their products are exact ties."""
    return np.asarray(words) & 0xFFC0 | 0x20


def packets(rng, bounds) -> dict[str, tuple[np.ndarray, bool]]:
    """Midpoints of each phase, and whether they are a packet of the right length."""
    special = np.array([NAN, 0xFE00, INF, 0xFC00, 0, 0x8000, 0x0001, 0x8001])
    return {
        "none": (np.zeros(0, np.int64), False),
        "random": (random_midpoints(rng, bounds), True),
        "short": (random_midpoints(rng, bounds)[:-1], False),
        "special": (rng.permutation(np.resize(special, max(bounds, 8)))[:bounds], True),
        "long": (random_words(rng, bounds + 1).astype(np.int64), False),
        "any": (random_words(rng, bounds).astype(np.int64), True),
        "longer": (random_words(rng, 2 * bounds + 2).astype(np.int64), False),
        "one": (random_words(rng, 1).astype(np.int64), False),
        "ties": (_six_bits(random_midpoints(rng, bounds)), True),
        "again": (random_midpoints(rng, bounds), True),
    }


def elements_of(rng, bound, count):
    """Words at, one step from, and far from the thresholds, and special ones."""
    near = rng.choice(bound, count) + rng.integers(-1, 2, count)
    special = rng.choice([0, 0x8000, NAN, 0xFFFF, INF, 0xFC00, 0x0001, 0x8001], count)
    kind = rng.integers(0, 8, count)
    words = np.where(kind < 4, near & 0xFFFF, random_words(rng, count))
    return np.where(kind == 7, special, words).astype(np.int64)


def unit_vectors(config, seed):
    """(vectors, params): per phase the packet, and tokens of one to many beats."""
    rng = np.random.default_rng([seed, 41])
    vectors, tokens_of = {}, {}
    for name, (midpoint, valid) in packets(rng, config.bounds).items():
        beats = [1, 1, 2, config.bounds, config.bounds + 1, config.bounds, 40, 3]
        beats += rng.integers(1, 2 * config.bounds, 10).tolist()
        # the ordinary range, where thresholds are neither all 0 nor all infinite
        scales = np.array(SCALES[: len(beats)] + [ONE] * max(0, len(beats) - len(SCALES)))
        scales[len(SCALES) :] = rng.integers(0x3000, 0x5000, max(0, len(beats) - len(SCALES)))
        order = rng.permutation(len(scales))
        scales = scales[order]
        if name == "ties":
            scales = np.where(np.isin(scales, SCALES), scales, _six_bits(scales))
        # Each magnitude of one bit next to thresholds of at most one step.
        beats.append(-(-len(ONE_HOT) // config.elements))
        scales = np.append(scales, 0x0001)
        words, indices = [], []
        for token, (scale, count) in enumerate(zip(scales, beats, strict=True)):
            s = torch.tensor([int(scale)])
            shown = torch.tensor(midpoint if valid else random_midpoints(rng, config.bounds))
            bound = mul(s[:, None], shown[None, :])[0].numpy()
            x = elements_of(rng, bound, count * config.elements)
            if token == len(beats) - 1:
                x[: len(ONE_HOT)] = ONE_HOT
            index = cluster_by_midpoints(torch.tensor(x)[None], s, shown)[0].numpy()
            words.append(x.reshape(count, config.elements))
            indices.append((index if valid else 0 * index).reshape(count, config.elements))
        x, index = np.concatenate(words), np.concatenate(indices)
        last = np.concatenate([np.arange(count) == count - 1 for count in beats])
        tag = {"tag": rng.integers(0, 2**config.tag_bits, len(x))} if config.tag_bits else {}
        if len(midpoint):
            end = np.arange(len(midpoint)) == len(midpoint) - 1
            vectors[f"{name}.midpoints"] = layout_words(
                config.midpoints_layout, word=midpoint, last=end
            )
        vectors[f"{name}.scale"] = layout_words(config.scale_layout, word=scales)
        vectors[f"{name}.x"] = layout_words(config.x_layout, word=x, last=last, **tag)
        fault = np.full(len(x), not valid)
        vectors[f"{name}.o"] = layout_words(
            config.o_layout, index=index, fault=fault, last=last, **tag
        )
        tokens_of[name] = beats
    return vectors, {"phases": tokens_of}
