"""Matrices as codes of trained codebooks: training, encoding, dequantization.

A vector is ``2**exponent * sum over stages of C[stage][code]``, times the scale of its row if there
are scales. Source: VQ-LLM, section II-A. No part of a model is trained after its quantization.
"""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, fixed_point, float_from_bits, from_fixed
from golden.index import lloyd
from golden.index.format import GRID_PRODUCT_ROUNDED
from golden.index.lloyd import DEFAULT, Training
from golden.index.packet import check_words, normalised
from golden.vqllm import lattice
from golden.vqllm.config import MatrixShape, Tile

__all__ = ["VqMatrix", "encode", "quantize", "summed"]

_CHUNK = 1 << 24  # distances that a step of a beam search holds at a time


@dataclasses.dataclass(frozen=True)
class VqMatrix:
    """A quantized matrix.

    codebooks : (tiles, stages, entries, size) FP16 words of magnitude at most 1; entries are those
                that are stored
    exponent  : of the scale of all codebooks
    codes     : (rows, vectors, stages) int64
    scales    : (rows,) FP16 words, or None: no scales
    """

    shape: MatrixShape
    codebooks: Tensor
    exponent: int
    codes: Tensor
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        shape, vq = self.shape, self.shape.vq
        books = (len(shape.tiles), vq.stages, vq.stored, vq.size)
        if tuple(self.codebooks.shape) != books:
            raise ConfigError(f"codebooks must be {books}, not {tuple(self.codebooks.shape)}")
        check_words(self.codebooks.flatten(0, 1), self.exponent, "codebooks")
        codes = (shape.rows, shape.vectors, vq.stages)
        if tuple(self.codes.shape) != codes:
            raise ConfigError(f"codes must be {codes}, not {tuple(self.codes.shape)}")
        if not 0 <= int(self.codes.min()) <= int(self.codes.max()) < vq.entries:
            wrong = int(self.codes.min()) if int(self.codes.min()) < 0 else int(self.codes.max())
            raise ConfigError(f"codes must be 0..{vq.entries - 1}, not {wrong}")
        if self.scales is not None and tuple(self.scales.shape) != (shape.rows,):
            raise ConfigError(f"scales must be ({shape.rows},), not {tuple(self.scales.shape)}")

    def entries_of(self, number: int, tile: Tile) -> Tensor:
        """The entries that the codes of a tile name: (rows, vectors, stages, size) words."""
        codes = self.codes[tile.rows, tile.vectors]
        stage = torch.arange(self.shape.vq.stages, device=codes.device)
        return self.codebooks[number][stage, codes >> self.shape.vq.point_bits]

    def dequantized(self) -> Tensor:
        """``rne16(sum over stages of C[stage][code])``: (rows, columns) FP16 words.

        Each sum is exact, with one rounding. A single stage rounds nothing. The lattice's signs and
        shifts are applied before the sum (``golden.vqllm.lattice.summed``). Neither the exponent
        nor a row's scale is applied: ``golden.vqllm.product`` has both.
        """
        shape = self.shape
        words = torch.empty(shape.rows, shape.vectors, shape.vq.size, dtype=torch.int64)
        words = words.to(self.codes.device)
        for number, tile in enumerate(shape.tiles):
            entries = self.entries_of(number, tile).long()
            if shape.vq.lattice:
                found = lattice.summed(entries, self.codes[tile.rows, tile.vectors])
            else:
                found = summed(entries)
            words[tile.rows, tile.vectors] = found
        return words.flatten(1)

    def real(self) -> Tensor:
        """The quantized matrix, scales included: (rows, columns) float64."""
        values = float_from_bits(self.dequantized(), FP16) * 2.0**self.exponent
        if self.scales is not None:
            values = values * float_from_bits(self.scales, FP16)[:, None]
        return values


def summed(entries: Tensor) -> Tensor:
    """``rne16(sum over stages)`` of (..., stages, size) words: (..., size). One stage is kept."""
    if entries.shape[-2] == 1:
        return entries[..., 0, :]
    return from_fixed(fixed_point(entries).sum(-2), GRID_PRODUCT_ROUNDED, FP16)


def quantize(
    matrix: Tensor,
    shape: MatrixShape,
    weight: Tensor | None = None,
    training: Training = DEFAULT,
    beam: int = 1,
    scaled: bool = False,
) -> VqMatrix:
    """``matrix`` (rows, columns) with codebooks of its own, by residual k-means in each tile.

    weight: (columns,) of a column's error, whose mean over a vector weighs it in training. Stage s
    is trained with seed ``training.seed + s``. scaled: each row is divided by its root mean square
    first, rounded to FP16. The codebooks are rounded to FP16, and ``encode`` then finds all codes.

    The codebooks are trained on the vectors that they quantize, so any number of them will do.
    ValueError: the matrix is not finite, or has another size.
    """
    if shape.vq.lattice:
        raise ConfigError("vq must not be a lattice, whose codebook is not trained")
    if tuple(matrix.shape) != (shape.rows, shape.columns):
        raise ValueError(f"matrix must be ({shape.rows}, {shape.columns})")
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("matrix must be finite")
    scales = None
    if scaled:
        root = matrix.double().square().mean(1).sqrt()
        scales = bits_from_float(torch.where(root > 0, root, 1.0))
        matrix = matrix.double() / float_from_bits(scales, FP16)[:, None]
    vectors = matrix.float().unflatten(1, (shape.vectors, shape.vq.size))
    of_vector = None
    if weight is not None:
        of_vector = weight.unflatten(0, (shape.vectors, shape.vq.size)).mean(1)
    vq = shape.vq
    books = torch.empty(len(shape.tiles), vq.stages, vq.entries, vq.size)
    for numbers, samples in _batches(vectors, shape):
        sample_weight = None
        if of_vector is not None:
            tiles = [shape.tiles[number] for number in numbers]
            sample_weight = torch.stack(
                [of_vector[t.vectors].repeat(t.rows.stop - t.rows.start) for t in tiles]
            )
        left = samples
        for stage in range(vq.stages):
            own = dataclasses.replace(training, seed=training.seed + stage)
            found = lloyd.kmeans(left, vq.entries, sample_weight, own).centroids
            books[numbers, stage] = found.cpu()
            left = left - _pick(found, lloyd.assign(left, found))
    words, exponent = normalised(books.flatten(0, 1))
    words = words.unflatten(0, (len(shape.tiles), vq.stages)).to(matrix.device)
    codes = encode(matrix, shape, words, exponent, beam)
    return VqMatrix(shape, words, exponent, codes, scales)


def encode(
    matrix: Tensor, shape: MatrixShape, codebooks: Tensor, exponent: int, beam: int = 1
) -> Tensor:
    """Codes of ``matrix`` (rows, columns), each row divided by its scale: (rows, vectors, stages).

    beam = 1: each stage takes the entry nearest to what is left. A larger beam keeps that many sums
    from stage to stage, so its squared error is never larger. Arithmetic is float32. Equal errors
    give the lower index.
    """
    if beam < 1:
        raise ConfigError(f"beam must be at least 1, not {beam}")
    vectors = matrix.float().unflatten(1, (shape.vectors, shape.vq.size))
    codes = torch.empty(*vectors.shape[:2], shape.vq.stages, dtype=torch.int64)
    codes = codes.to(matrix.device)
    books = (float_from_bits(codebooks, FP16) * 2.0**exponent).float()
    for numbers, samples in _batches(vectors, shape):
        found = _search(samples, books[numbers], beam)
        for number, one in zip(numbers, found, strict=True):
            tile = shape.tiles[number]
            place = codes[tile.rows, tile.vectors]
            codes[tile.rows, tile.vectors] = one.reshape(place.shape)
    return codes


def _search(samples: Tensor, books: Tensor, beam: int) -> Tensor:
    """(S, n, size), (S, stages, entries, size) to codes (S, n, stages)."""
    if beam == 1:
        codes, left = [], samples
        for stage in books.unbind(1):
            codes.append(lloyd.assign(left, stage))
            left = left - _pick(stage, codes[-1])
        return torch.stack(codes, -1)
    entries = books.shape[2]
    step = max(1, _CHUNK // (beam * entries * len(samples)))
    greedy = _search(samples, books, 1)
    found = [
        _beam(part, books, beam, first)
        for part, first in zip(samples.split(step, 1), greedy.split(step, 1), strict=True)
    ]
    return torch.cat(found, 1)


def _beam(samples: Tensor, books: Tensor, beam: int, greedy: Tensor) -> Tensor:
    """The best of ``beam`` sums, or the greedy codes where their error is not larger."""
    sets, count, _ = samples.shape
    entries = books.shape[2]
    left = samples[:, :, None]  # (S, n, sums, size): what each sum leaves
    codes = samples.new_empty(sets, count, 1, 0, dtype=torch.int64)
    for stage in books.unbind(1):
        distance = (stage**2).sum(-1)[:, None, None] - 2 * left @ stage[:, None].transpose(2, 3)
        error = (distance + (left**2).sum(-1, keepdim=True)).flatten(2)
        best = error.sort(dim=2, stable=True).indices[:, :, :beam]
        sums, code = best // entries, best % entries
        entry = _pick(stage, code.flatten(1)).unflatten(1, code.shape[1:])
        left = left.gather(2, sums[..., None].expand(*sums.shape, left.shape[3])) - entry
        kept = codes.gather(2, sums[..., None].expand(*sums.shape, codes.shape[3]))
        codes = torch.cat((kept, code[..., None]), -1)
    first = samples
    for stage, code in zip(books.unbind(1), greedy.unbind(-1), strict=True):
        first = first - _pick(stage, code)
    error = (left**2).sum(-1)
    better = error[:, :, :1] < (first**2).sum(-1)[..., None]
    return torch.where(better, codes[:, :, 0], greedy)


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    """rows[s, index[s]]: (S, n, d), (S, m) to (S, m, d)."""
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[-1]))


def _batches(vectors: Tensor, shape: MatrixShape) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of the tiles of one size, and their vectors: (tiles, n, size)."""
    by_size: dict[tuple[int, int], list[int]] = {}
    tiles = shape.tiles
    for number, tile in enumerate(tiles):
        size = (tile.rows.stop - tile.rows.start, tile.vectors.stop - tile.vectors.start)
        by_size.setdefault(size, []).append(number)
    for numbers in by_size.values():
        some = [vectors[tiles[n].rows, tiles[n].vectors].flatten(0, 1) for n in numbers]
        yield numbers, torch.stack(some)
