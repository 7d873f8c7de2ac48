"""Quantized matrices, and the beats of an engine that multiplies them. Before the simulation."""

import numpy as np
import torch

from golden.fp16.format import FP16
from golden.vqllm.config import MatrixShape, Tile
from golden.vqllm.exchange import in_lanes
from golden.vqllm.matrix import VqMatrix
from golden.words import layout_word

UNEVEN = ("short", "long", "longest", "all long", "many")  # buffers that ``uneven_x`` makes


def random_matrix(rng, shape: MatrixShape, exponent: int, scaled: bool) -> VqMatrix:
    """Codebooks of words of at most 1, and skewed codes."""
    vq, tiles = shape.vq, len(shape.tiles)
    books = rng.normal(0, 0.3, (tiles, vq.stages, vq.stored, vq.size)).clip(-1, 1)
    books[rng.random(books.shape) < 0.02] = 1
    words = books.astype(np.float16).view(np.uint16).astype(np.int64)
    where = rng.random((shape.rows, shape.vectors, vq.stages)) ** 2
    codes = (vq.entries * where).astype(np.int64)
    scales = None
    if scaled:
        scales = torch.tensor(
            rng.normal(1, 0.3, shape.rows).astype(np.float16).view(np.uint16).astype(np.int64)
        )
    return VqMatrix(shape, torch.tensor(words), exponent, torch.tensor(codes), scales)


def code_beats(config, matrix: VqMatrix, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    """(beats, lanes) codes of a tile and which lanes count, row by row."""
    codes = matrix.codes[tile.rows, tile.vectors].numpy()
    rows, vectors, stages = codes.shape
    beats = -(-vectors // config.vectors)
    padded = np.zeros((rows, beats * config.vectors, stages), dtype=np.int64)
    padded[:, :vectors] = codes
    use = np.zeros(padded.shape, dtype=bool)
    use[:, :vectors] = True
    return padded.reshape(rows * beats, -1), use.reshape(rows * beats, -1)


def tile_jobs(config, matrix: VqMatrix) -> list[dict]:
    """The job of each tile: tiles of the same rows follow each other."""
    shape, pieces = matrix.shape, config.pieces
    found = []
    for number, tile in enumerate(shape.tiles):
        first, last = tile.vectors.start, tile.vectors.stop
        assert first % config.vectors == 0
        found.append({
            "offset": first // config.vectors * pieces,
            "beats": -(-(last - first) // config.vectors) * pieces,
            "rows": tile.rows.stop - tile.rows.start, "first": int(first == 0),
            "final": int(last == shape.vectors), "next_x": int(number == 0),
            "words": -(-shape.vectors // config.vectors) * pieces,
        })  # fmt: skip
    return found


def x_beats(config, x: np.ndarray) -> list[int]:
    """Words of the vectors (batch, columns), 0 beyond their end."""
    macs = config.sums.macs
    padded = np.zeros((len(x), -(-x.shape[1] // macs) * macs), dtype=np.int64)
    padded[:, : x.shape[1]] = x
    beats = padded.reshape(len(x), -1, macs)
    return [
        layout_word(
            config.sums.x_layout, word=word.tolist(), last=int(n == len(vector) - 1),
            end=int(n == len(vector) - 1 and b == len(x) - 1),
        )
        for b, vector in enumerate(beats)
        for n, word in enumerate(vector)
    ]  # fmt: skip


def lane_beats(config, x: np.ndarray) -> list[int]:
    """``x_beats`` of an engine that may change the lanes of elements."""
    if config.pieces > 1:
        x = np.array([in_lanes(vector, config.exchange) for vector in x.tolist()])
    return x_beats(config, x)


def uneven_x(rng, sums, beats: list[int], vectors: int, kind: str) -> list[int] | None:
    """A buffer like that of ``beats``, whose vectors are not what an engine of ``sums`` expects.

    short, long: one vector lacks a word or has one more; longest: it has more than both buffers
    have room for; all long: all have one more; many: more vectors than a buffer has room for. None:
    there is no such buffer.
    """
    words = len(beats) // vectors
    flags = sum(1 << sums.x_layout[name].offset for name in ("last", "end"))
    end = 1 << sums.x_layout["end"].offset
    parts = [beats[at : at + words] for at in range(0, len(beats), words)]
    if kind == "many":
        before = [*parts[0][:-1], parts[0][-1] & ~end | flags & ~end]
        return before * (sums.batch * sums.groups) + parts[-1]
    if kind == "short" and words == 1:
        return None
    more = {"short": -1, "long": 1, "longest": 2 * sums.words, "all long": 1}[kind]
    some = range(vectors) if kind == "all long" else [int(rng.integers(vectors))]
    for n in some:
        own, last = [word & ~flags for word in parts[n]], parts[n][-1] & flags
        own = own[:more] if more < 0 else own + [own[0]] * more
        parts[n] = [*own[:-1], own[-1] | last]
    return [word for part in parts for word in part]


def is_nonfinite(words: np.ndarray) -> np.ndarray:
    return (words & FP16.infinity) == FP16.infinity
