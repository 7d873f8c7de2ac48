"""Exact fractions of words, and words of exact fractions, for tests of golden models."""

from fractions import Fraction

import numpy as np
import torch

from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits


def rounded(value: Fraction, format=FP16) -> int:
    """Word of an exact number, rounded to nearest even; +0 for 0."""
    sign, magnitude = value < 0, abs(value)
    if not magnitude:
        return 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    weight = max(exponent - format.frac_bits, format.grid_exponent)
    steps = round(magnitude / Fraction(2) ** weight)  # ties to even
    # The steps run over from a binade into the next, and from the last one into infinity.
    word = min(steps + (weight - format.grid_exponent << format.frac_bits), format.infinity)
    return word | sign << format.bits - 1


def exact(word: int, format=FP16) -> Fraction:
    """The number of a finite word."""
    return Fraction(float(float_from_bits(torch.tensor(word), format)))


def ordinary(rng, *shape) -> torch.Tensor:
    """Words of normal deviates of width 3."""
    return torch.tensor(rng.normal(0, 3, shape).astype(np.float16).view(np.uint16).astype(np.int64))
