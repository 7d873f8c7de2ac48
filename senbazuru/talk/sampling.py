"""The choice of the next token. main.cpp does the same, to the bit."""

import dataclasses
import math

import numpy as np

from golden.config import Config, bounded, real

_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Config):
    """temperature 0: the largest logit. Otherwise of the likeliest tokens that reach top_p."""

    temperature: float = real(0.0, 0.0, 100.0, "of the softmax over the logits")
    top_p: float = real(1.0, 0.01, 1.0, "probability of the tokens that may be chosen")
    seed: int = bounded(0, 0, (1 << 32) - 1, "of the draws")


def draw(seed: int, place: int) -> float:
    """A number in 0..1 for the token at a place of the sequence: a run may go on anywhere."""
    x = (seed << 32 | place) + 0x9E3779B97F4A7C15 & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return ((x ^ x >> 31) >> 11) * 2.0**-53


def choose(logits: np.ndarray, sampling: Sampling, at: float) -> int:
    """A token from (vocabulary,) FP16 words; ``at``: of ``draw``. ValueError: not finite."""
    value = np.asarray(logits).astype("<u2").view(np.float16).astype(np.float64)
    if not np.isfinite(value).all():
        raise ValueError("a logit is not finite")
    if not sampling.temperature:
        return int(value.argmax())
    weight = [math.exp(each) for each in ((value - value.max()) / sampling.temperature).tolist()]
    total = 0.0
    for each in weight:
        total += each
    order = sorted(range(len(weight)), key=lambda n: -weight[n])
    held, kept = 0.0, 0
    while kept < len(order) and held < sampling.top_p * total:
        held += weight[order[kept]]
        kept += 1
    left = at * held
    for n in order[: kept - 1]:
        left -= weight[n]
        if left < 0:
            return n
    return order[kept - 1]
