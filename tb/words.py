"""Payload words as bytes: packed by numpy outside the simulator, plain integers inside it.

Pure numpy: no torch, so that the simulator process may import it.
"""

import numpy as np

__all__ = ["pack", "unpack_ints"]


def pack(*fields: tuple[np.ndarray, int]) -> np.ndarray:
    """(n, bytes) uint8 words from (values, bits) fields, the first in the low bits.

    values: (n, ...) integers; every element takes ``bits`` bits, in C order. Negative values
    are two's complement.
    """
    columns = []
    for values, bits in fields:
        values = np.asarray(values)
        flat = values.reshape(len(values), -1).astype(np.int64)
        shifts = np.minimum(np.arange(bits), 63)  # beyond bit 63: the sign
        columns.append(((flat[:, :, None] >> shifts) & 1).reshape(len(values), -1).astype(np.uint8))
    return np.packbits(np.concatenate(columns, axis=1), axis=1, bitorder="little")


def unpack_ints(words: np.ndarray) -> list[int]:
    """One integer per word of ``pack``."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.asarray(words)]
