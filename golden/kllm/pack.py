"""Tensors to beats and codebooks to packets, and back (layouts: golden.kllm.format).

A beat is a Python integer, bit 0 its lowest. Arrays are numpy, so that no testbench needs torch.
"""

import numpy as np
import numpy.typing as npt

from golden.kllm.format import (
    activation_bit,
    activation_entry_bits,
    beats,
    group_order,
    groups,
    outlier_mask_bit,
    weight_bit,
)

Int64 = npt.NDArray[np.int64]


def _join(fields: npt.NDArray[np.int64], bits: int) -> list[int]:
    """Each row of (rows, fields) as one integer, field i at bit i * bits."""
    if fields.size and not 0 <= int(fields.min()) <= int(fields.max()) < 1 << bits:
        raise ValueError(f"entries must be 0..{(1 << bits) - 1}")
    flat = (fields[:, :, None] >> np.arange(bits) & 1).astype(np.uint8)
    rows = np.packbits(flat.reshape(len(fields), -1), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def _padded(array: npt.NDArray[np.int64], axis: int, multiple: int) -> Int64:
    width = [(0, 0)] * array.ndim
    width[axis] = (0, -array.shape[axis] % multiple)
    return np.pad(array, width).astype(np.int64)


def pack_weights(index: npt.ArrayLike, columns: int, elements: int, bits_b: int) -> list[int]:
    """(K, N) weight indices as weight beats in ``group_order``, padding 0.

    ValueError: an index that does not fit in ``bits_b`` bits.
    """
    array = _padded(_padded(np.asarray(index, dtype=np.int64), 0, elements), 1, columns)
    k, n = array.shape
    blocks = array.reshape(k // elements, elements, n // columns, columns)
    # To (group, beat, column, element): column-major within a beat.
    ordered = blocks.transpose(2, 0, 3, 1).reshape(-1, columns * elements)
    return _join(ordered, bits_b)


def unpack_weights(
    words: list[int], length: int, outputs: int, columns: int, elements: int, bits_b: int
) -> Int64:
    """Inverse of ``pack_weights``: (length, outputs). ValueError: wrong number of beats."""
    expected = beats(length, elements) * groups(outputs, columns)
    if len(words) != expected:
        raise ValueError(f"{expected} weight beats needed, not {len(words)}")
    index = np.zeros((length, outputs), dtype=np.int64)
    mask = (1 << bits_b) - 1
    for word, (n, k) in zip(words, group_order(length, outputs, elements, columns), strict=True):
        for column in range(min(columns, outputs - n)):
            for element in range(min(elements, length - k)):
                index[k + element, n + column] = (
                    word >> weight_bit(column, element, elements, bits_b) & mask
                )
    return index


def pack_activations(
    value: npt.ArrayLike, outlier: npt.ArrayLike, elements: int, bits_a: int, int_bits: int
) -> list[tuple[int, int]]:
    """(K,) indices or integers and (K,) outlier mask as (entries, mask) of each beat, padding 0."""
    entry = activation_entry_bits(bits_a, int_bits)
    values = _padded(np.asarray(value, dtype=np.int64), 0, elements).reshape(-1, elements)
    masks = _padded(np.asarray(outlier, dtype=np.int64), 0, elements).reshape(-1, elements)
    return list(zip(_join(values, entry), _join(masks, 1), strict=True))


def unpack_activations(
    words: list[tuple[int, int]], length: int, elements: int, bits_a: int, int_bits: int
) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Inverse of ``pack_activations``: ((length,) values, (length,) mask)."""
    if len(words) != beats(length, elements):
        raise ValueError(f"{beats(length, elements)} activation beats needed, not {len(words)}")
    entry_mask = (1 << activation_entry_bits(bits_a, int_bits)) - 1
    value = np.zeros(length, dtype=np.int64)
    outlier = np.zeros(length, dtype=bool)
    for k in range(length):
        entries, mask = words[k // elements]
        element = k % elements
        value[k] = entries >> activation_bit(element, bits_a, int_bits) & entry_mask
        outlier[k] = mask >> outlier_mask_bit(element) & 1
    return value, outlier


def to_words64(words: list[int], bits: int) -> npt.NDArray[np.uint64]:
    """(beats, ceil(bits / 64)) uint64, lowest 64 bits first."""
    count = -(-bits // 64)
    data = b"".join(word.to_bytes(8 * count, "little") for word in words)
    return np.frombuffer(data, dtype="<u8").reshape(len(words), count)
