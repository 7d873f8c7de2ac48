"""Payload words as bytes: packed by numpy outside the simulator, plain integers inside it.

Every packing raises ValueError for a value that its field cannot hold. A bench that truncates the
value compares hardware that lacks a bit with golden that lacks the same bit.
Without torch, so that the simulator process may import it.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from amaranth import Shape
from amaranth.lib import data

_LIMB = 48


def alternating(most: int) -> list[int]:
    """Two numbers up to ``most``, 2 or more, with each bit below its highest as 0 and as 1."""
    bits = most.bit_length()
    found = [sum(1 << bit for bit in range(first, bits, 2)) for first in (0, 1)]
    return [each if each <= most else each & (1 << bits - 1) - 1 for each in found]


def _check(value: int, bits: int, signed: bool | None) -> None:
    """ValueError unless ``bits`` hold value; signed None: either reading of the bits will do."""
    low = 0 if signed is False else -(1 << bits - 1) if bits else 0
    high = (1 << (bits - 1 if signed else bits)) - 1
    if not low <= value <= high:
        raise ValueError(f"a field of {bits} bits must be {low}..{high}, not {value}")


def pack(*fields: tuple[np.ndarray, int]) -> np.ndarray:
    """(n, bytes) uint8 words from (values, bits) fields, the first in the low bits.

    values: (n, ...) integers; every element takes ``bits`` bits, in C order. Negative values
    are two's complement. ValueError: values that are not integers of 64 bits, or one outside
    ``-2**(bits - 1) .. 2**bits - 1``.
    """
    columns = []
    for values, bits in fields:
        values = np.asarray(values)
        if values.size and (values.dtype.kind not in "biu" or values.dtype == np.uint64):
            raise ValueError(f"a field must hold integers of 64 bits, not {values.dtype}")
        flat = values.reshape(len(values), -1).astype(np.int64)
        if flat.size and bits < 64:
            _check(int(flat.min()), bits, None)
            _check(int(flat.max()), bits, None)
        shifts = np.minimum(np.arange(bits), 63)  # beyond bit 63: the sign
        columns.append(((flat[:, :, None] >> shifts) & 1).reshape(len(values), -1).astype(np.uint8))
    return np.packbits(np.concatenate(columns, axis=1), axis=1, bitorder="little")


def wide_fields(values, bits: int) -> list[tuple[np.ndarray, int]]:
    """Fields of ``bits`` bits in all, for ``pack``: signed integers of any size.

    ValueError: a value outside ``-2**(bits - 1) .. 2**(bits - 1) - 1``.
    """
    return _limbs([int(value) for value in values], bits, True)


def _limbs(values: list[int], bits: int, signed: bool) -> list[tuple[np.ndarray, int]]:
    """Fields for ``pack`` of integers of any size; ValueError unless ``bits`` hold all of them."""
    for value in (min(values), max(values)) if values else ():
        _check(value, bits, signed)
    fields = []
    for low in range(0, bits, _LIMB):
        width = min(_LIMB, bits - low)
        limb = [value >> low & (1 << width) - 1 for value in values]
        fields.append((np.array(limb, dtype=np.int64), width))
    return fields


def join(*fields: tuple[int, int]) -> int:
    """Unsigned (value, bits) fields as one integer, the first in the low bits.

    ValueError: a value outside ``0 .. 2**bits - 1``.
    """
    packed, at = 0, 0
    for value, bits in fields:
        value = int(value)
        _check(value, bits, False)
        packed |= value << at
        at += bits
    return packed


def _flat(value) -> Iterator[int]:
    """The elements of nested sequences, in order; TypeError unless each is an integer."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        yield operator.index(value)
    else:
        for each in value:
            yield from _flat(each)


def _is_signed(shape, bits: int) -> bool:
    """Whether elements of ``bits`` bits of a field of ``shape`` are signed."""
    while isinstance(shape, data.ArrayLayout) and Shape.cast(shape.elem_shape).width >= bits:
        shape = shape.elem_shape
    return Shape.cast(shape).width == bits and Shape.cast(shape).signed


class _Fields(dict):
    """The fields of a layout by name, and whether elements of ``bits`` bits are signed.

    Amaranth computes the width of a field anew at each use.
    """

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        self._signed: dict[tuple[str, int], bool] = {}

    def __missing__(self, name: str) -> tuple[int, int]:
        field = self.layout[name]
        self[name] = (field.offset, field.width)
        return self[name]

    def is_signed(self, name: str, bits: int) -> bool:
        found = self._signed.get((name, bits))
        if found is None:
            found = self._signed[name, bits] = _is_signed(self.layout[name].shape, bits)
        return found


_seen: dict[int, _Fields] = {}  # by id of the layout, which its value keeps alive


def _fields(layout) -> _Fields:
    found = _seen.get(id(layout))
    if found is None:
        if len(_seen) > 100:
            _seen.clear()
        found = _seen[id(layout)] = _Fields(layout)
    return found


def layout_word(layout, **fields) -> int:
    """A payload of an Amaranth ``layout``; arrays as nested sequences, missing fields 0.

    Only a signed field, or an array of signed elements, takes negative values. A field given as
    one number although it has parts takes its bits. ValueError: a value outside its field or that
    is no integer, or an array of another length.
    """
    packed, known = 0, _fields(layout)
    for name, value in fields.items():
        offset, width = known[name]
        try:
            elements = [int(value)] if isinstance(value, int) else list(_flat(value))
        except TypeError:
            raise ValueError(f"{name} must hold integers, not {value!r}") from None
        bits = width // len(elements) if elements else 0
        if not elements or bits * len(elements) != width:
            raise ValueError(f"{name} must fill {width} bits, not {len(elements)} elements")
        signed = known.is_signed(name, bits)
        for n, element in enumerate(elements):
            _check(element, bits, signed)
            packed |= (element & (1 << bits) - 1) << offset + bits * n
    return packed


def layout_field(layout, word: int, name: str) -> int:
    """The bits of one field of a payload."""
    offset, width = _fields(layout)[name]
    return word >> offset & (1 << width) - 1


def layout_fields(layout, words: Iterable[int], name: str) -> list[int]:
    """The bits of one field of each payload."""
    offset, width = _fields(layout)[name]
    return [word >> offset & (1 << width) - 1 for word in words]


def layout_words(layout, **fields) -> np.ndarray:
    """(n, bytes) uint8 words of an Amaranth ``layout``: ``pack`` by the names of its fields.

    values of a field: (n, ...) integers, elements of arrays in C order. Elements of 64 bits or
    more are Python's integers. A field with parts may be a mapping of their names, an array of
    such parts too: then each has values of (n, length). ValueError: a field that the layout lacks
    or that is left out, a value outside its field, or an array of another length.
    """
    return pack(*_columns(layout, fields))


def _columns(layout, fields) -> list[tuple[np.ndarray, int]]:
    """Fields for ``pack``, those of a layout without gaps in the order of its bits."""
    wrong = {name for name, _ in layout} ^ set(fields)
    if wrong:
        raise ValueError(f"{', '.join(sorted(wrong))}: not of the layout, or left out")
    columns: list[tuple[np.ndarray, int]] = []
    for name, field in layout:
        if isinstance(fields[name], Mapping):
            columns += _parts(name, field.shape, fields[name])
            continue
        flat = _flat_array(fields[name])
        bits = field.width // flat.shape[1]
        if bits * flat.shape[1] != field.width:
            raise ValueError(f"{name} must fill {field.width} bits, not {flat.shape[1]} elements")
        signed = _is_signed(field.shape, bits)
        if bits >= 64 and flat.dtype.kind in "biuO":
            for column in flat.T.tolist():
                columns += _limbs(column, bits, signed)
            continue
        if flat.dtype.kind == "O":
            flat = np.array(flat.tolist(), dtype=np.int64)
        for value in (flat.min(), flat.max()) if flat.size else ():
            _check(int(value), bits, signed)
        columns.append((flat, bits))
    return columns


def _flat_array(values) -> np.ndarray:
    """(n, elements) integers. A list of Python's integers keeps those above 64 bits exact."""
    is_plain = isinstance(values, list | tuple) and all(isinstance(v, int) for v in _leaves(values))
    array = np.array(values, dtype=object) if is_plain else np.asarray(values)
    return array.reshape(len(array), -1)


def _leaves(values) -> Iterator:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _parts(name: str, shape, fields) -> list[tuple[np.ndarray, int]]:
    if not isinstance(shape, data.ArrayLayout):
        return _columns(shape, fields)
    arrays = {part: np.asarray(values) for part, values in fields.items()}
    for values in arrays.values():
        if values.ndim < 2 or values.shape[1] != shape.length:
            raise ValueError(f"{name} must have {shape.length} elements, not {values.shape[1:]}")
    columns = []
    for n in range(shape.length):
        element = {part: values[:, n] for part, values in arrays.items()}
        columns += _columns(shape.elem_shape, element)
    return columns


def unpack_ints(words: np.ndarray) -> list[int]:
    """One integer per word of ``pack``."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.asarray(words)]
