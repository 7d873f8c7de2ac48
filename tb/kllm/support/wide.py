"""Signed integers beyond 64 bits as fields of tb.words.pack. Pure numpy."""

from collections.abc import Sequence

import numpy as np

__all__ = ["wide_fields"]

_LIMB = 48


def wide_fields(values: Sequence[int], bits: int) -> list[tuple[np.ndarray, int]]:
    """Fields of ``bits`` bits in all that hold each value in two's complement."""
    fields = []
    for low in range(0, bits, _LIMB):
        limb = [int(value) >> low & ((1 << _LIMB) - 1) for value in values]
        fields.append((np.array(limb, dtype=np.int64), min(_LIMB, bits - low)))
    return fields
