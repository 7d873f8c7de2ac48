"""A quantized matrix as a file that describes itself.

| bytes | what |
|---|---|
| 8 | ``MAGIC`` |
| 4 | length of the header, low byte first |
| header | JSON: version, name, shape, and of each section its name and bytes |
| sections | of each stage its maps, codes, entries and ranges |
| 32 | SHA-256 of all bytes before |

A section is a string of bits, each value's lowest bit first. Zeros fill its last byte. Values come
by row, then by group or network. A range is low and step, of 32 bits each with a sign. The exponent
of the matrix has a section of 8 bits. So the sections take the bits of ``QetShape.stored_bits``,
and at most 7 more each. A file whose entries exceed 2, or with another exponent than a matrix may
have, is refused as damaged.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.files import replacing
from golden.qet.config import FORMATS, LIMIT, RANGE_BITS, QetShape, Stage, swap_bits
from golden.qet.matrix import QetMatrix, StageCodes
from golden.qet.swap import maps_of_words, words_of_maps

MAGIC = b"\x89QET\r\n\x1a\n"
VERSION = 2
_DIGEST = 32
_HEADER_MAX = 1 << 20
_SHOWN = 60  # characters of a wrong value in a line
_CHUNK = 1 << 20  # values that are packed at a time, a multiple of 8


class QetFileError(ValueError):
    """A file that cannot be used; one line says why."""


def write(path: Path, matrix: QetMatrix, name: str = "") -> int:
    """Write ``matrix`` to ``path``, whole or not at all; its bytes. name: what the matrix is."""
    sections = list(_sections(matrix))
    header = {
        "version": VERSION,
        "name": name,
        "shape": _plain(matrix.shape),
        "sections": [[name, len(data)] for name, data in sections],
    }
    text = json.dumps(header, sort_keys=True).encode()
    digest, size = hashlib.sha256(), 0
    with replacing(path) as part, part.open("wb") as file:
        start = MAGIC + len(text).to_bytes(4, "little") + text
        for data in (start, *(data for _, data in sections)):
            digest.update(data)
            size += file.write(data)
        size += file.write(digest.digest())
    return size


def read(path: Path) -> tuple[QetMatrix, str]:
    """The matrix and its name. QetFileError: damaged, of another kind, or of another version."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise QetFileError(f"{path}: {error.strerror}") from None
    if not data.startswith(MAGIC):
        raise QetFileError(f"{path}: not a file of a QET matrix")
    header = _header(path, data)
    first = len(MAGIC) + 4 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    size = first + sum(length for _, length in header["sections"]) + _DIGEST
    if len(data) != size:
        raise QetFileError(f"{path}: {len(data)} bytes, not the {size} that its header says")
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise QetFileError(f"{path}: its checksum is wrong")
    try:
        shape = _shape(header["shape"])
        _check_sections(shape, [name for name, _ in header["sections"]])
        found, at = [], first
        for _, length in header["sections"]:
            found.append(data[at : at + length])
            at += length
        stages = _stages(shape, found)
        exponent = int.from_bytes(found[-1], "little", signed=True)
        if exponent not in shape.exponents:
            least, most = shape.exponents[0], shape.exponents[-1]
            raise ValueError(f"exponent must be {least}..{most}, not {exponent}")
        return QetMatrix(shape, stages, exponent), header["name"]
    except ValueError as error:  # ConfigError among them
        raise QetFileError(f"{path}: {error}") from None


def _header(path: Path, data: bytes) -> dict[str, Any]:
    at = len(MAGIC)
    length = int.from_bytes(data[at : at + 4], "little")
    if length > _HEADER_MAX or len(data) < at + 4 + length:
        raise QetFileError(f"{path}: it ends in its header")
    try:
        header = json.loads(data[at + 4 : at + 4 + length])
    except (ValueError, RecursionError):
        raise QetFileError(f"{path}: its header is no JSON") from None
    if not isinstance(header, dict):
        raise QetFileError(f"{path}: its header must be an object of JSON")
    version = header.get("version")
    if type(version) is not int or version != VERSION:
        raise QetFileError(f"{path}: version must be {VERSION}, not {_text(version)}")
    sections = header.get("sections")
    is_list = isinstance(sections, list) and all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)
        and type(each[1]) is int and each[1] >= 0
        for each in sections
    )  # fmt: skip
    if not is_list or not isinstance(header.get("name"), str):
        raise QetFileError(f"{path}: its header has no name or no sections")
    try:
        _check_fields("its header", header, ("version", "name", "shape", "sections"))
    except ValueError as error:
        raise QetFileError(f"{path}: {error}") from None
    return header


def _text(value: object) -> str:
    """A value of the header within a line."""
    shown = json.dumps(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _check_fields(what: str, plain: object, fields: Iterable[str]) -> None:
    """ValueError: not an object of JSON with these fields and no other."""
    if not isinstance(plain, dict):
        raise ValueError(f"{what} must be an object of JSON, not {_text(plain)}")
    for field in fields:
        if field not in plain:
            raise ValueError(f"{what} must have the field {field}")
    for field in plain.keys() - set(fields):
        raise ValueError(f"{what} must have no field {_text(field)}")


def _plain(shape: QetShape) -> dict[str, Any]:
    return dataclasses.asdict(shape) | {"stages": [dataclasses.asdict(s) for s in shape.stages]}


def _shape(plain: Any) -> QetShape:
    """ValueError, ConfigError: not the fields of a shape, or one is out of range."""
    _check_fields("shape", plain, [field.name for field in dataclasses.fields(QetShape)])
    stages = plain["stages"]
    if not isinstance(stages, list):
        raise ValueError(f"shape.stages must be a list, not {_text(stages)}")
    for number, each in enumerate(stages):
        names = [field.name for field in dataclasses.fields(Stage)]
        _check_fields(f"shape.stages[{number}]", each, names)
    return QetShape(**plain | {"stages": tuple(Stage(**each) for each in stages)})


def _check_sections(shape: QetShape, names: list[str]) -> None:
    """ValueError: they are not those that ``_sections`` writes."""
    parts = ("maps", "codes", "entries", "ranges")
    wanted = [f"{part}_{number}" for number in range(len(shape.stages)) for part in parts]
    wanted.append("exponent")
    if len(names) != len(wanted):
        raise ValueError(f"it must have {len(wanted)} sections, not {len(names)}")
    for name, expected in zip(names, wanted, strict=True):
        if name != expected:
            raise ValueError(f"section {expected} must come, not {_text(name)}")


def _sections(matrix: QetMatrix) -> Iterator[tuple[str, bytes]]:
    shape = matrix.shape
    for number, made in enumerate(matrix.stages):
        words = words_of_maps(made.maps, shape.rows, shape.padded)
        yield f"maps_{number}", _packed(words, 1)
        yield f"codes_{number}", _packed(made.codes, made.stage.code_bits)
        yield f"entries_{number}", _packed(made.entries, shape.stored_entry_bits)
        ranges = made.ranges & (1 << RANGE_BITS) - 1
        yield f"ranges_{number}", _packed(ranges, RANGE_BITS)
    yield "exponent", matrix.exponent.to_bytes(1, "little", signed=True)


def _stages(shape: QetShape, found: list[bytes]) -> tuple[StageCodes, ...]:
    if len(found[-1]) != 1:
        raise ValueError(f"exponent must have 1 byte, not {len(found[-1])}")
    stages = []
    for number, stage in enumerate(shape.stages):
        maps, codes, entries, ranges = found[4 * number : 4 * number + 4]
        networks, bits = shape.padded >> stage.levels, swap_bits(stage.levels)
        words = _unpacked(maps, shape.rows * networks * bits, 1, f"maps_{number}").bool()
        code = _unpacked(codes, shape.rows * shape.groups, stage.code_bits, f"codes_{number}")
        if int(code.max()) >= stage.entries:
            raise ValueError(
                f"codes_{number} must be 0..{stage.entries - 1}, not {int(code.max())}"
            )
        entry = _unpacked(
            entries,
            stage.entries * shape.padded,
            shape.stored_entry_bits,
            f"entries_{number}",
        )
        low = torch.empty(0, 2, dtype=torch.int64)
        if shape.entry_bits:
            count = 2 * (shape.groups if shape.by_group else 1)
            low = _unpacked(ranges, count, RANGE_BITS, f"ranges_{number}").reshape(-1, 2)
            low = low - (low >> RANGE_BITS - 1 << RANGE_BITS)
        _check_entries(shape, number, entry, low)
        stages.append(
            StageCodes(
                stage,
                entry.reshape(shape.groups, stage.entries, shape.group),
                low,
                code.reshape(shape.rows, shape.groups),
                maps_of_words(words.reshape(shape.rows, networks, bits), stage.levels),
            )
        )
    return tuple(stages)


def _check_entries(shape: QetShape, number: int, entries: Tensor, ranges: Tensor) -> None:
    """ValueError: words that are no numbers of -2..2, or a range that reaches beyond.

    Codes may end before the highest, so the highest may reach beyond 2 by less than a unit for
    each.
    """
    if not shape.entry_bits:
        format = FORMATS[shape.element_bits]
        two = format.bias + 1 << format.frac_bits
        if int((entries & (1 << format.bits - 1) - 1).max()) > two:
            raise ValueError(f"entries_{number} must be within -2..2")
        return
    most = (1 << shape.entry_bits) - 1
    low, step = ranges.unbind(1)
    wrong = (low.abs() > LIMIT) | (step < 0) | (low + step * most > LIMIT + most)
    if bool(wrong.any()):
        low, step = ranges[wrong][0].tolist()
        raise ValueError(f"ranges_{number} must be within -2..2, not of low {low} and step {step}")


def _packed(values: Tensor, bits: int) -> bytes:
    """Values of ``bits`` bits, the lowest first, as a string of bits."""
    flat, places, parts = values.flatten().cpu().numpy(), np.arange(bits), []
    for first in range(0, len(flat) if bits else 0, _CHUNK):
        some = flat[first : first + _CHUNK].astype(np.int64)
        string = (some[:, None] >> places & 1).astype(np.uint8)
        parts.append(np.packbits(string.reshape(-1), bitorder="little").tobytes())
    return b"".join(parts)


def _unpacked(data: bytes, count: int, bits: int, name: str) -> Tensor:
    """``count`` values of ``_packed``; ValueError where there are more or fewer bytes."""
    size = -(-count * bits // 8)
    if len(data) != size:
        raise ValueError(f"{name} must have {size} bytes, not {len(data)}")
    found = np.zeros(count, dtype=np.int64)
    if bits:
        for first in range(0, count, _CHUNK):
            some = slice(first, min(first + _CHUNK, count))
            part = np.frombuffer(data[first * bits // 8 : -(-some.stop * bits // 8)], np.uint8)
            string = np.unpackbits(part, bitorder="little")[: (some.stop - first) * bits]
            for place in range(bits):
                found[some] |= string[place::bits].astype(np.int64) << place
    return torch.from_numpy(found)
