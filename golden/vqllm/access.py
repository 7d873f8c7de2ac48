"""The number of look-ups of each entry of a codebook, and codebooks in the order of these.

Source: VQ-LLM, section V, Figures 8 and 9. With the hottest entry at index 0, two comparisons of an
index tell the tier that holds its entry.
"""

import dataclasses

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.vqllm.config import MatrixShape
from golden.vqllm.matrix import VqMatrix


def look_ups(matrix: VqMatrix, rows: slice = slice(None)) -> Tensor:
    """Look-ups of each stored entry by the codes of some rows: (tiles, stages, entries) int64."""
    shape, vq = matrix.shape, matrix.shape.vq
    counts = torch.zeros(len(shape.tiles), vq.stages, vq.stored, dtype=torch.int64)
    first, last, _ = rows.indices(shape.rows)
    for number, tile in enumerate(shape.tiles):
        some = slice(max(first, tile.rows.start), min(last, tile.rows.stop))
        index = matrix.codes[some, tile.vectors].cpu() >> vq.point_bits
        for stage in range(vq.stages):
            counts[number, stage] = index[..., stage].flatten().bincount(minlength=vq.stored)
    return counts


def reordered(matrix: VqMatrix, counts: Tensor | None = None) -> VqMatrix:
    """The same matrix, each codebook in the falling order of its look-ups, ties by index.

    counts: (tiles, stages, entries), by default the look-ups of the matrix itself.
    """
    counts = look_ups(matrix) if counts is None else counts
    order = counts.sort(dim=-1, descending=True, stable=True).indices.to(matrix.codes.device)
    place = order.argsort(-1)
    books = matrix.codebooks.gather(2, order[..., None].expand_as(matrix.codebooks))
    codes = matrix.codes.clone()
    bits = matrix.shape.vq.point_bits
    stage = torch.arange(matrix.shape.vq.stages, device=codes.device)
    for number, tile in enumerate(matrix.shape.tiles):
        old = codes[tile.rows, tile.vectors]
        found = place[number][stage, old >> bits]
        codes[tile.rows, tile.vectors] = found << bits | old & (1 << bits) - 1
    return dataclasses.replace(matrix, codebooks=books, codes=codes)


@dataclasses.dataclass(frozen=True)
class AccessProfile:
    """Statistics of the look-ups of one codebook, or of several as one."""

    counts: Tensor  # (..., entries)

    def share(self, hottest: int) -> float:
        """Share of all look-ups that go to the ``hottest`` entries of each codebook."""
        entries = self.counts.shape[-1]
        if not 1 <= hottest <= entries:
            raise ConfigError(f"hottest must be 1..{entries}, not {hottest}")
        top = self.counts.sort(dim=-1, descending=True).values[..., :hottest]
        return float(top.sum()) / float(self.counts.sum())

    def above(self, deviations: float = 3.0) -> Tensor:
        """Entries of each codebook above mean + deviations * sigma: (...,) int64."""
        counts = self.counts.double()
        sigma = counts.std(-1, correction=0, keepdim=True)
        return (counts > counts.mean(-1, keepdim=True) + deviations * sigma).sum(-1)

    def below_mean(self) -> float:
        """Share of the entries that are looked up less often than the mean of their codebook."""
        counts = self.counts.double()
        return float((counts < counts.mean(-1, keepdim=True)).double().mean())


def of_tile(matrix: VqMatrix, number: int) -> VqMatrix:
    """A tile as a matrix with codebooks of its own."""
    tile, vq = matrix.shape.tiles[number], matrix.shape.vq
    codes = matrix.codes[tile.rows, tile.vectors]
    shape = MatrixShape(
        rows=codes.shape[0],
        columns=codes.shape[1] * vq.size,
        vq=dataclasses.replace(vq, tile_rows=0, tile_columns=0),
    )
    scales = None if matrix.scales is None else matrix.scales[tile.rows]
    books = matrix.codebooks[number : number + 1]
    return VqMatrix(shape, books, matrix.exponent, codes, scales)


def _of_parts(matrix: VqMatrix, part_rows: int) -> Tensor:
    """Look-ups of parts of ``part_rows`` rows: (parts, stages, entries); as ``hot_overlap``."""
    if len(matrix.shape.tiles) > 1:
        grid = " x ".join(map(str, matrix.shape.grid))
        raise ConfigError(f"codebooks must be of the whole matrix, not of {grid} tiles")
    starts = range(0, matrix.shape.rows, part_rows)
    if len(starts) < 2:
        raise ConfigError(f"part_rows must be below {matrix.shape.rows}, not {part_rows}")
    return torch.stack([look_ups(matrix, slice(at, at + part_rows))[0] for at in starts])


def hot_overlap(matrix: VqMatrix, part_rows: int, hottest: int) -> float:
    """Mean share of hot entries that two parts of ``part_rows`` rows have in common (Figure 9).

    The hot entries of a part are the ``hottest`` of its own look-ups, ties by index. The mean is
    over all pairs of parts and over stages. ConfigError: codebooks are not of the whole matrix, or
    there is one part.
    """
    counts = _of_parts(matrix, part_rows)
    order = counts.sort(dim=-1, descending=True, stable=True).indices[..., :hottest]
    hot = torch.zeros_like(counts).scatter_(-1, order, 1)  # (parts, stages, entries)
    common = torch.einsum("ase,bse->abs", hot, hot).double()
    pairs = torch.triu_indices(len(counts), len(counts), 1)
    return float(common[pairs[0], pairs[1]].mean()) / hottest


def hot_shares(matrix: VqMatrix, part_rows: int, hottest: int) -> tuple[float, float]:
    """Shares of a part's look-ups that its own ``hottest`` serve, and the whole matrix's hottest.

    Means over the parts and stages; parts and errors as in ``hot_overlap``.
    """
    counts = _of_parts(matrix, part_rows)
    own = counts.sort(dim=-1, descending=True).values[..., :hottest].sum(-1)
    order = counts.sum(0).sort(dim=-1, descending=True, stable=True).indices[..., :hottest]
    whole = counts.gather(-1, order.expand(len(counts), -1, -1)).sum(-1)
    total = counts.sum(-1).double()
    return float((own / total).mean()), float((whole / total).mean())
