"""Vectors for tb_group_quantizer: scans, second passes, and what golden makes of them."""

import numpy as np
import torch

from golden.oaken import quantize
from golden.oaken.format import Group
from golden.oaken.vectors.kv_vectors import KINDS, beats, decomposed, one_vector, vector_thresholds
from golden.words import layout_words, pack

_SIGN = 0x8000


def made_vector(rng, elements: int) -> tuple[np.ndarray, np.ndarray]:
    """(y, group) that need not come from any x: ties and corners of steps and codes."""
    group = (
        rng.integers(0, 3, elements)
        if rng.integers(0, 2)
        else np.full(elements, rng.integers(0, 3))
    )
    kind = rng.integers(0, 4)
    if kind == 0:  # a whole number of halves of a step that is a power of two
        step = int(rng.integers(1, 24))
        halves = rng.integers(0, 2 * 31, elements)
        y = np.ldexp(halves / 2.0, step - 20).astype(np.float16).view(np.uint16)
        y[0], group[0] = np.float16(np.ldexp(15.0, step - 20)).view(np.uint16), Group.MIDDLE
    elif kind == 1:  # small integers of the grid
        y = rng.integers(1, int(rng.integers(3, 80)), elements)
    elif kind == 2:  # both ends of the range
        y = np.where(rng.integers(0, 2, elements), 0x7BFF, rng.integers(1, 0x7C00, elements))
    else:
        low = int(rng.integers(1, 0x7000))
        y = rng.integers(low, low + int(rng.integers(1, 0xC00)), elements)
    y = y.astype(np.int64)
    y = np.where((y == 0) & (group != Group.INNER), 1, y)
    choice = rng.integers(0, 4)
    signs = {0: 0, 1: _SIGN}.get(int(choice), rng.integers(0, 2, elements) * _SIGN)
    return y | signs, group


def group_vectors(config, seed: int, scale_words, codes_of) -> dict[str, np.ndarray]:
    """Packed words of scan, i, scale, o and running counts.

    scale_words: ScaleWords of the block
    codes_of(code, fifth, group): fields of o by name, but last
    """
    rng = np.random.default_rng([seed, 66])
    lanes = config.lanes
    scan, again, scale, out = [], [], [], []
    counts = [(0, 0, 0)]
    for n in range(14 * len(KINDS)):
        count = int(rng.integers(1, 5)) * (16 // lanes if n % 3 == 0 and lanes < 16 else 1)
        elements = lanes * count
        if n % 2:
            thresholds = vector_thresholds(rng)
            words = one_vector(rng, KINDS[n // 2 % len(KINDS)], thresholds, elements)
            y, group = decomposed(words, thresholds)
        else:
            y, group = made_vector(rng, elements)
        last = np.arange(count) == count - 1
        drop = n % 5 == 3
        noise = np.where(last, drop, rng.integers(0, 2, count))
        fields = {"y": beats(y, lanes), "group": beats(group, lanes), "last": last}
        scan.append(layout_words(config.scan_layout, **fields, drop=noise))
        kept = 0
        if not drop:
            scales = quantize.scales(torch.tensor(y), torch.tensor(group))
            code, fifth = quantize.codes(torch.tensor(y), torch.tensor(group), scales)
            again.append(layout_words(config.i_layout, **fields))
            chosen = np.array([scales[int(word)] for word in scale_words])
            scale.append(pack((chosen[None], 16)))
            parts = codes_of(code.numpy(), fifth.numpy(), group)
            fields = {name: beats(values, lanes) for name, values in parts.items()}
            out.append(layout_words(config.o_layout, **fields, last=last))
            kept = 1
        before = counts[-1]
        counts.append((before[0] + count, before[1] + kept * count, before[2] + kept))
    return {
        "scan": np.concatenate(scan),
        "i": np.concatenate(again),
        "scale": np.concatenate(scale),
        "o": np.concatenate(out),
        "counts": np.array(counts),
    }
