"""Columns of vectors as payload words of an operator, and rows of them for a random flow."""

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import data

from golden.fp16.format import FloatFormat
from golden.fp16.vectors.columns import corner_words


def pack(layout: data.StructLayout, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Payload words, little-endian rows of bytes; the tag counts the rows, modulo its range.

    ValueError: a value that its field cannot hold.
    """
    count = len(next(iter(columns.values())))
    words = np.zeros(count, dtype=object)
    for name, field in layout:
        values = columns[name] if name != "tag" else np.arange(count)
        shape = Shape.cast(field.shape)
        limit = 1 << shape.width
        if name == "tag":
            values = values % limit
        low, high = (-limit // 2, limit // 2 - 1) if shape.signed else (0, limit - 1)
        values = np.asarray(values).astype(object)
        if count and not low <= values.min() <= values.max() <= high:
            worst = values.min() if values.min() < low else values.max()
            raise ValueError(f"{name} must be {low}..{high}, not {worst}")
        words |= (values & (limit - 1)) << field.offset
    size = -(-layout.size // 8)
    rows = b"".join(int(word).to_bytes(size, "little") for word in words)
    return np.frombuffer(rows, dtype=np.uint8).reshape(count, size)


def flow_rows(config, columns: dict, rng: np.random.Generator, count: int):
    """Rows to send with idle and stall cycles: half of them hold a corner word as an operand.

    Zeros, infinities and NaN are rare among all words, and each has a flag that must be held.
    """
    formats = [each for each in vars(config).values() if isinstance(each, FloatFormat)]
    total = len(next(iter(columns.values())))
    chosen = rng.integers(0, total, count)
    if formats:
        corners = np.concatenate([corner_words(each) for each in formats])
        operands = [np.isin(columns[name], corners) for name in config.operands]
        corner_rows = np.flatnonzero(np.any(operands, axis=0))
        if corner_rows.size:
            chosen[::2] = rng.choice(corner_rows, chosen[::2].size)
    return rng.permutation(chosen)
