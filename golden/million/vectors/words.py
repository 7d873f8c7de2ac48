"""FP16 words for benches of product-quantized attention."""

import numpy as np

from golden.fp16.vectors.columns import random_words

INFINITY, NAN, MOST, ONE, MINUS = 0x7C00, 0x7E00, 0x7BFF, 0x3C00, 0x8000


def finite(rng, *shape: int, low: int = 0, top: int = MOST) -> np.ndarray:
    """Words of either sign and of magnitude low..top, with corners more often."""
    words = random_words(rng, int(np.prod(shape))).astype(np.int64)
    magnitude = low + (words & 0x7FFF) % (top - low + 1)
    return (words & MINUS | magnitude).reshape(shape)


def normal(rng, *shape: int, width: float = 1.0) -> np.ndarray:
    """Words of normal deviates."""
    return rng.normal(0, width, shape).astype(np.float16).view(np.uint16).astype(np.int64)
