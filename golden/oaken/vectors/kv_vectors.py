"""Thresholds and KV vectors for the benches of the quantization engine, and beats of them."""

import numpy as np
import torch

from golden.oaken import quantize
from golden.oaken.format import Group

_MAX = 0x7BFF
_SIGN = 0x8000
_FIXED = (
    (_MAX | _SIGN, 0x0000, 0x0000, _MAX),  # two groups: no outer, zeros inner
    (_MAX | _SIGN, 0x8000, 0x8000, _MAX),
    (0x8001, 0x0000, 0x0000, 0x0001),  # nearly all outer
    (0x8002, 0x8001, 0x0001, 0x0002),
    (_MAX | _SIGN, 0xFBFE, _MAX - 1, _MAX),  # nearly all inner
    (0xC400, 0x8000, 0x2E66, 0x4500),
    (0xC800, 0xB000, 0x0000, 0x3C00),
)
BAD_THRESHOLDS = (
    (0xC400, 0xAE66, 0x2E66, 0x7C00),
    (0xFE00, 0xAE66, 0x2E66, 0x4400),
    (0xC400, 0x7E01, 0x2E66, 0x4400),
    (0xC400, 0xAE66, 0xFC00, 0x4400),
    (0xAE66, 0xAE66, 0x2E66, 0x4400),
    (0xA000, 0xAE66, 0x2E66, 0x4400),
    (0xC400, 0x0001, 0x2E66, 0x4400),
    (0xC400, 0xAE66, 0x8001, 0x4400),
    (0xC400, 0xAE66, 0x4400, 0x4400),
    (0xC400, 0xAE66, 0x2E66, 0x2000),
    (0x8000, 0x0000, 0x0000, 0x4400),
)
KINDS = (
    "usual", "near", "words", "zero", "equal", "subnormal", "largest", "outer", "inner",
    "middle", "upper", "lower", "few", "ties",
)  # fmt: skip


def vector_thresholds(rng) -> tuple[int, ...]:
    """Four words in order, usual ones more often than not."""
    choice = rng.integers(0, 4)
    if choice == 0:
        return _FIXED[rng.integers(0, len(_FIXED))]
    if choice == 1:
        low = sorted(rng.choice(_MAX, 2, replace=False).tolist(), reverse=True)
        high = sorted(rng.choice(_MAX, 2, replace=False).tolist())
        return (low[0] | _SIGN, low[1] | _SIGN, high[0], high[1])
    near, far = np.abs(rng.normal(0.08, 0.05, 2)), np.abs(rng.normal(3, 1, 2)) + 0.5
    return tuple(_word(v) for v in (-far[0], -near[0], near[1], far[1]))


def _word(value) -> int:
    return int(np.float16(value).view(np.uint16))


def _between(rng, low: int, high: int, count: int):
    """Magnitudes low..high, in order of words."""
    return rng.integers(min(low, high), high + 1, count)


def one_vector(rng, kind: str, thresholds, elements: int) -> np.ndarray:
    """(elements,) finite FP16 words."""
    t = [word & ~_SIGN for word in thresholds]
    sign = rng.integers(0, 2, elements) * _SIGN
    side = sign == 0
    far, near = np.where(side, t[3], t[0]), np.where(side, t[2], t[1])
    random = rng.integers(0, _MAX + 1, elements)
    if kind == "usual":
        return (rng.standard_t(3, elements).clip(-1000, 1000)).astype(np.float16).view(np.uint16)
    if kind == "near":
        magnitude = np.where(rng.integers(0, 2, elements), far, near)
        return (magnitude + rng.integers(-2, 3, elements)).clip(0, _MAX) | sign
    if kind == "words":
        return random | sign
    if kind == "zero":
        return sign
    if kind == "equal":
        return np.full(elements, random[0] | sign[0])
    if kind == "subnormal":
        return rng.integers(0, 64, elements) | sign
    if kind == "largest":
        return rng.integers(_MAX - 3, _MAX + 1, elements) | sign
    if kind == "outer":
        return np.minimum(far + 1 + rng.integers(0, 3000, elements), _MAX) | sign
    if kind == "inner":
        return (random % (near + 1)) | sign
    if kind in ("middle", "upper", "lower"):
        magnitude = near + 1 + random % np.maximum(far - near, 1)
        sign = {"middle": sign, "upper": 0, "lower": _SIGN}[kind]
        return magnitude.clip(0, _MAX) | sign
    if kind == "few":
        few = rng.integers(0, elements, 3)
        words = np.where(rng.integers(0, 2, elements), near, 0) | sign
        words[few] = random[few] | sign[few]
        return words
    assert kind == "ties"
    # small integers of the grid beyond the inner thresholds: steps of 1 or 2 units, halves between
    magnitude = np.where(near < 0x400, near + rng.integers(1, 48, elements), near + 1)
    return np.minimum(magnitude, _MAX) | sign


def spoil(rng, words: np.ndarray, where: int | None = None) -> np.ndarray:
    """One NaN or infinity in it: at ``where``, or anywhere."""
    words = words.copy()
    where = int(rng.integers(0, len(words))) if where is None else where
    words[where] = rng.choice([0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01])
    return words


def decomposed(words, thresholds) -> tuple[np.ndarray, np.ndarray]:
    """(y, group) of one vector, by golden."""
    y, group, _ = quantize.decompose(
        torch.as_tensor(np.asarray(words).astype(np.int64)), torch.tensor(thresholds)
    )
    assert bool((group <= int(Group.OUTER)).all())
    return y.numpy(), group.numpy()


def beats(values, lanes: int) -> np.ndarray:
    """(beats, lanes) of a vector's values."""
    return np.asarray(values).reshape(-1, lanes)
