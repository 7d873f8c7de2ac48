"""A quantized matrix as an engine finds it in memory: the bytes of ``golden.vqllm.format``."""

import dataclasses

import numpy as np
import torch

from golden.vqllm.cache import LookUps, Tiers
from golden.vqllm.format import (
    DESCRIPTOR,
    DESCRIPTOR_BITS,
    HEADER,
    ImageShape,
    Layout,
    Part,
    Plan,
    layout,
    packed,
)
from golden.vqllm.matrix import VqMatrix


@dataclasses.dataclass(frozen=True)
class Image:
    """The bytes, from address ``base`` on, and the fields of the job that uses them."""

    base: int
    data: np.ndarray
    layout: Layout
    job: dict[str, int]


def code_beats(codes: np.ndarray, vectors: int) -> np.ndarray:
    """(rows, n, stages) codes as (rows, beats, lanes), ``vectors`` of them a beat, 0 at the end."""
    rows, count, stages = codes.shape
    beats = -(-count // vectors)
    found = np.zeros((rows, beats * vectors, stages), dtype=np.int64)
    found[:, :count] = codes
    return found.reshape(rows, beats, vectors * stages)


def image(
    matrix: VqMatrix, shape: ImageShape, plan: Plan, *, tensor: int = 1, base: int = 0
) -> Image:
    """``matrix`` from address ``base`` on, a multiple of a word. ConfigError: it does not fit."""
    found = layout(matrix.shape, shape, plan)
    data = np.zeros(found.size, dtype=np.uint8)
    for part, place, at in zip(found.parts, _places(found, shape), found.codes, strict=True):
        data[place : place + DESCRIPTOR_BITS // 8] = _descriptor(
            found, shape, plan, part, base + at, tensor, base
        )
        if part.beats and part.rows:
            beats = _packed_beats(_codes(matrix, part, shape), shape)
            data[at : at + beats.size] = beats.flat
    for tile, at in enumerate(found.books):
        header = {"tensor": tensor, "tile": tile, "entries": shape.vq.stored}
        word = packed(HEADER, header).to_bytes(shape.word_bytes, "little")
        data[at : at + shape.word_bytes] = np.frombuffer(word, dtype=np.uint8)
        books = np.zeros((shape.vq.stages * shape.vq.stored, shape.entry_bytes), dtype=np.uint8)
        words = matrix.codebooks[tile].cpu().numpy().astype("<u2").reshape(len(books), -1)
        books[:, : 2 * shape.vq.size] = words.view(np.uint8)
        data[at + shape.word_bytes :][: books.size] = books.flat
    if matrix.scales is not None:
        scales = matrix.scales.cpu().numpy().astype("<u2").view(np.uint8)
        data[found.scales : found.scales + len(scales)] = scales
    job = {
        "descriptors": base, "scales": base + found.scales, "tensor": tensor,
        "rows": matrix.shape.rows, "stripe": found.stripe, "pieces": found.pieces,
        "split": plan.split.bit_length() - 1, "words": shape.x_words(matrix.shape.columns),
        "exponent": matrix.exponent,
    }  # fmt: skip
    return Image(base, data, found, job)


def part_look_ups(matrix: VqMatrix, part: Part, shape: ImageShape) -> LookUps:
    """The look-ups of a part, beat by beat."""
    code = _codes(matrix, part, shape).reshape(-1, shape.lookups) >> shape.vq.point_bits
    use = np.zeros((len(part.rows), part.beats, shape.beat_vectors), dtype=bool)
    use[:, : part.beats - 1] = True
    use[:, part.beats - 1 :, : part.tail] = True
    lanes = use.reshape(len(code), -1).repeat(shape.vq.stages, 1)
    return LookUps(torch.from_numpy(code), torch.from_numpy(lanes), shape.vq.stages)


def tiers(plan: Plan, banks: int) -> Tiers:
    """Returns the tiers in which a plan has the entries."""
    return Tiers(plan.registers, plan.shared, banks)


def _places(found: Layout, shape: ImageShape) -> range:
    size = shape.descriptor_bytes
    return range(0, len(found.parts) * size, size)


def _codes(matrix: VqMatrix, part: Part, shape: ImageShape) -> np.ndarray:
    rows = slice(part.rows.start, part.rows.stop, part.rows.step)
    codes = matrix.codes[rows, part.vectors.start : part.vectors.stop].cpu().numpy()
    return code_beats(codes, shape.beat_vectors)


def _packed_beats(codes: np.ndarray, shape: ImageShape) -> np.ndarray:
    """(..., lanes) codes as bytes, beat by beat."""
    bits = (codes[..., None] >> np.arange(shape.vq.code_bits) & 1).astype(np.uint8)
    bits = bits.reshape(-1, shape.lookups * shape.vq.code_bits)
    return np.packbits(bits, axis=1, bitorder="little")


def _descriptor(
    found: Layout, shape: ImageShape, plan: Plan, part: Part, code: int, tensor: int, base: int
) -> np.ndarray:
    fields = {"tensor": tensor}
    if part.beats:
        fields |= {
            "code": code, "words": part.code_bytes(shape) // shape.word_bytes,
            "book": base + found.books[part.tile], "tile": part.tile, "offset": part.offset,
            "beats": part.beats, "tail": part.tail, "registers": plan.registers,
            "shared": plan.shared, "load": int(part.load),
        }  # fmt: skip
    word = packed(DESCRIPTOR, fields).to_bytes(DESCRIPTOR_BITS // 8, "little")
    return np.frombuffer(word, dtype=np.uint8)
