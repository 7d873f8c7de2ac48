"""Matrices as codes of trained codebooks: training, encoding, dequantization.

A vector is ``2**exponent * sum over stages of C[stage][code]``, times the scale of its row if there
are scales. Source: VQ-LLM, section II-A. No part of a model is trained after its quantization.
"""

import dataclasses
from collections.abc import Iterator, Mapping

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

_CHUNK = 1 << 20  # distances that a step of a beam search holds at a time
_FEW = 16  # sums up to which a beam finds them one by one, which a sort of all takes longer for
_WORD = 16  # bits of a scale
_EXPONENT = 8  # bits of the scale of the codebooks


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

    @property
    def stored_bits(self) -> int:
        """Bits of codes, codebooks, their exponent, and scales of rows."""
        scales = 0 if self.scales is None else _WORD * len(self.scales)
        return self.shape.code_bits + self.shape.codebook_bits + scales + _EXPONENT

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
    checked(matrix, shape)
    scales = None
    if scaled:
        scales, matrix = scaled_rows(matrix)
    vectors = matrix.float().unflatten(1, (shape.vectors, shape.vq.size))
    of_vector = None
    if weight is not None:
        of_vector = weight.unflatten(0, (shape.vectors, shape.vq.size)).mean(1)
    vq = shape.vq
    books = torch.empty(len(shape.tiles), vq.stages, vq.entries, vq.size)
    for numbers, samples in batches(vectors, dict(enumerate(shape.tiles))):
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
            left = left - pick(found, lloyd.assign(left, found))
    words, exponent = normalised(books.flatten(0, 1))
    words = words.unflatten(0, (len(shape.tiles), vq.stages)).to(matrix.device)
    codes = encode(matrix, shape, words, exponent, beam)
    return VqMatrix(shape, words, exponent, codes, scales)


def checked(matrix: Tensor, shape: MatrixShape) -> None:
    """ValueError: not finite, or of another size; ConfigError: a lattice, which is not trained."""
    if shape.vq.lattice:
        raise ConfigError("vq must not be a lattice, whose codebook is not trained")
    if tuple(matrix.shape) != (shape.rows, shape.columns):
        raise ValueError(f"matrix must be ({shape.rows}, {shape.columns})")
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("matrix must be finite")


def scaled_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(root mean square of each row as FP16 words, the rows divided by it in float64)."""
    root = matrix.double().square().mean(1).sqrt()
    scales = bits_from_float(torch.where(root > 0, root, 1.0))
    # A row below half the smallest FP16 number is a row of zeros.
    scales = torch.where(scales == 0, bits_from_float(torch.ones_like(root)), scales)
    return scales, matrix.double() / float_from_bits(scales, FP16)[:, None]


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
    for numbers, samples in batches(vectors, dict(enumerate(shape.tiles))):
        found = search(samples, books[numbers], beam)
        for number, one in zip(numbers, found, strict=True):
            tile = shape.tiles[number]
            place = codes[tile.rows, tile.vectors]
            codes[tile.rows, tile.vectors] = one.reshape(place.shape)
    return codes


def search(samples: Tensor, books: Tensor, beam: int) -> Tensor:
    """(S, n, size), (S, stages, entries, size) to codes (S, n, stages)."""
    stages, entries = books.shape[1:3]
    if beam == 1 or stages == 1:
        codes, left = [], samples
        for stage in books.unbind(1):
            codes.append(lloyd.assign(left, stage))
            left = left - pick(stage, codes[-1])
        return torch.stack(codes, -1)
    step = max(1, _CHUNK // (beam * entries * len(samples)))
    greedy = search(samples, books, 1)
    found = [
        _beam(part, books, beam, first)
        for part, first in zip(samples.split(step, 1), greedy.split(step, 1), strict=True)
    ]
    return torch.cat(found, 1)


def _beam(samples: Tensor, books: Tensor, beam: int, greedy: Tensor) -> Tensor:
    """The best of ``beam`` sums, or the greedy codes where their error is not larger."""
    sets, count, _ = samples.shape
    stages, entries = books.shape[1:3]
    left = samples[:, :, None]  # (S, n, sums, size): what each sum leaves
    codes = samples.new_empty(sets, count, 1, 0, dtype=torch.int64)
    for number, stage in enumerate(books.unbind(1)):
        offset = (stage**2).sum(-1)[:, None]
        error = torch.baddbmm(offset, left.flatten(1, 2), -2 * stage.transpose(1, 2))
        error = error.unflatten(1, left.shape[1:3])
        if left.shape[2] > 1:
            error += (left**2).sum(-1, keepdim=True)
        best = _smallest(error.flatten(2), beam if number < stages - 1 else 1)
        sums, code = best // entries, best % entries
        entry = pick(stage, code.flatten(1)).unflatten(1, code.shape[1:])
        left = left.gather(2, sums[..., None].expand(*sums.shape, left.shape[3])) - entry
        kept = codes.gather(2, sums[..., None].expand(*sums.shape, codes.shape[3]))
        codes = torch.cat((kept, code[..., None]), -1)
    first = samples
    for stage, code in zip(books.unbind(1), greedy.unbind(-1), strict=True):
        first = first - pick(stage, code)
    better = (left[:, :, 0] ** 2).sum(-1) < (first**2).sum(-1)
    return torch.where(better[..., None], codes[:, :, 0], greedy)


def _smallest(x: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` smallest of the last dimension, rising, ties by index; x is lost."""
    count = min(count, x.shape[-1])
    if count > _FEW:
        return x.sort(dim=-1, stable=True).indices[..., :count]
    found = []
    for _ in range(count):
        found.append(lloyd.argmin(x)[..., None])
        x.scatter_(-1, found[-1], torch.inf)
    return torch.cat(found, -1)


def pick(rows: Tensor, index: Tensor) -> Tensor:
    """rows[s, index[s]]: (S, n, d), (S, m) to (S, m, d)."""
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[-1]))


def batches(vectors: Tensor, tiles: Mapping[int, Tile]) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of the tiles of one size, and their vectors: (tiles, n, size)."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for number, tile in tiles.items():
        size = (tile.rows.stop - tile.rows.start, tile.vectors.stop - tile.vectors.start)
        by_size.setdefault(size, []).append(number)
    for numbers in by_size.values():
        some = [vectors[tiles[n].rows, tiles[n].vectors].flatten(0, 1) for n in numbers]
        yield numbers, torch.stack(some)
