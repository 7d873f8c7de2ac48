"""Weighted k-means in d dimensions, for many sets of samples at once.

``min over c of sum w * min over j of |x - c_j|**2`` by Lloyd's algorithm, for S sets side by side.
Product quantization has one set per subspace. Distances are float32 on centred samples, on the
device of the samples. Sums are integers, so no order of the samples changes them.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from golden.config import Config, bounded, choice, flag, real

_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 26}  # distances held at a time
_SEED_SAMPLES = 16  # k-means++ draws its seeds from this many samples per entry
_SUM_BITS = 61  # of an integer sum, its sign apart


@dataclasses.dataclass(frozen=True)
class Books:
    """centroids: (S, entries, d) float32; cost: (S,) float64, sum of w * squared distance."""

    centroids: Tensor
    cost: Tensor


def assign(samples: Tensor, centroids: Tensor) -> Tensor:
    """The nearest centroid of each sample: (S, n, d), (S, entries, d) to (S, n) int64.

    Distances are ``|c|**2 - 2 x.c`` in the type of the samples. Equal distances give the lowest
    index.
    """
    sets, count, _ = samples.shape
    entries = centroids.shape[1]
    centroids = centroids.to(samples.dtype)
    offset = (centroids**2).sum(-1)[:, None]
    direction = (-2 * centroids).transpose(1, 2).contiguous()
    index = torch.empty(sets, count, dtype=torch.int64, device=samples.device)
    budget = _CHUNK[samples.device.type]
    group = max(1, min(sets, budget // (64 * entries)))
    step = max(1, budget // (group * entries))
    for first in range(0, sets, group):
        some = slice(first, first + group)
        for start in range(0, count, step):
            part = slice(start, start + step)
            distance = torch.baddbmm(offset[some], samples[some, part], direction[some])
            index[some, part] = argmin(distance)
    return index


def argmin(x: Tensor) -> Tensor:
    """Returns the argmin over the last dimension, the first of equal values."""
    if x.device.type == "cpu":  # numpy has it vectorised
        return torch.from_numpy(x.numpy().argmin(-1))
    return x.argmin(-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Config):
    """The choices by which centroids are found.

    seed: of the first centroids; the same seed on the same device gives the same bits
    seeds: ``plus_plus``, each seed with probability proportional to w * squared distance, drawn
        from 16 random samples per entry; or ``random``, samples with probability proportional to w
    iterations: most moves of the centroids
    tolerance: they stop moving once the cost falls by less than this share of it
    few: quantizers accept fewer than 39 training vectors per entry
    """

    seed: int = bounded(0, 0, (1 << 63) - 1)
    seeds: str = choice("plus_plus", ("plus_plus", "random"))
    iterations: int = bounded(25, 0, 1 << 20)
    tolerance: float = real(1e-4, 0.0, 1.0)
    few: bool = flag(False)


DEFAULT = Training()


def kmeans(
    samples: Tensor,
    entries: int,
    weight: Tensor | None = None,
    training: Training = DEFAULT,
    progress: Callable[[int, float], None] | None = None,
) -> Books:
    """Centroids of samples (S, n, d); weight: (n,) or (S, n), not negative, default 1.

    Weights count relative to the largest of their set. ``progress`` is called with the number of
    moves so far and the cost of all sets.

    A sample belongs to its nearest centroid, and to the lowest index of equally near ones. A
    centroid without samples moves to the sample of largest w * squared distance. Several of them
    take the largest ones in order, ties to the lower sample. A centroid stays if no such sample has
    a distance.
    """
    w = _checked(samples, weight, entries)
    mean = (w[..., None] * samples.double()).sum(1, keepdim=True) / w.sum(1)[:, None, None]
    x = (samples.double() - mean).float()
    generator = torch.Generator().manual_seed(training.seed)
    if training.seeds == "plus_plus":
        centroids = _plus_plus(x, w, entries, generator)
    else:
        centroids = _pick(x, _draw(w, entries, generator))
    grid = _grid(x, w)
    previous = None
    for moves in range(training.iterations + 1):
        index = assign(x, centroids)
        error = w * ((x - _pick(centroids, index)).double() ** 2).sum(-1)
        cost = error.sum(1)
        if progress is not None:
            progress(moves, float(cost.sum()))
        done = previous is not None and bool((previous - cost <= training.tolerance * cost).all())
        if moves == training.iterations or done:
            break
        previous = cost
        moved = _moved(x, w, index, centroids, error, grid)
        if torch.equal(moved, centroids):
            break
        centroids = moved
    return Books((centroids.double() + mean).float(), cost)


def _checked(samples: Tensor, weight: Tensor | None, entries: int) -> Tensor:
    """The weight (S, n) float64; ValueError where arguments make no sense."""
    if entries < 1:
        raise ValueError(f"entries must be at least 1, not {entries}")
    if samples.ndim != 3 or samples.numel() == 0 or not bool(torch.isfinite(samples).all()):
        raise ValueError("samples must be finite, (S, n, d) and not empty")
    shape = samples.shape[:2]
    if weight is None:
        return torch.ones(shape, dtype=torch.float64, device=samples.device)
    if weight.shape not in (shape, shape[1:]):
        raise ValueError(f"weight must have as many entries as samples, {shape[1]}")
    w = weight.detach().to(samples.device).double().expand(shape)
    if not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or not bool((w.sum(1) > 0).all()):
        raise ValueError("weight must be finite, not negative and not all zero")
    return w / w.amax(1, keepdim=True)


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    """rows[s, index[s]]: (S, n, d), (S, m) to (S, m, d)."""
    return rows.gather(1, index[..., None].expand(-1, -1, rows.shape[-1]))


def _draw(mass: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(S, count) indices with probability proportional to mass (S, n)."""
    total = mass.cumsum(1)
    shot = torch.rand(len(mass), count, generator=generator, dtype=torch.float64)
    place = torch.searchsorted(total, shot.to(mass.device) * total[:, -1:], right=True)
    # Rounding may reach beyond the last sample that has a mass.
    last = torch.searchsorted(total, total[:, -1:].contiguous())
    return torch.minimum(place, last)


def _plus_plus(x: Tensor, w: Tensor, entries: int, generator: torch.Generator) -> Tensor:
    if x.shape[1] > _SEED_SAMPLES * entries:
        pick = torch.randperm(x.shape[1], generator=generator)[: _SEED_SAMPLES * entries]
        pick = pick.sort().values.to(x.device)
        if bool((w[:, pick].sum(1) > 0).all()):
            x, w = x[:, pick], w[:, pick]
    # Filled in place: small tensors kept between large ones would fragment the heap by gigabytes.
    chosen = x.new_empty(x.shape[0], entries, x.shape[2])
    chosen[:, :1] = _pick(x, _draw(w, 1, generator))
    distance = ((x - chosen[:, :1]) ** 2).sum(-1)
    for n in range(1, entries):
        mass = w * distance
        used = mass.sum(1, keepdim=True) > 0  # otherwise every sample is a seed already
        centroid = _pick(x, _draw(torch.where(used, mass, w), 1, generator))
        chosen[:, n : n + 1] = centroid
        distance = torch.minimum(distance, ((x - centroid) ** 2).sum(-1))
    return chosen


def _grid(x: Tensor, w: Tensor) -> tuple[float, float]:
    """Scales that make integers of w and of w * x whose sums stay below 2**61."""
    count = x.shape[1]
    wide = 2.0 ** (_SUM_BITS - (count - 1).bit_length())
    return min(wide, 2.0**52), wide / 2.0 ** math.frexp(float(x.abs().max()))[1]


def _moved(
    x: Tensor, w: Tensor, index: Tensor, centroids: Tensor, error: Tensor, grid: tuple[float, float]
) -> Tensor:
    """Weighted means of the samples of each centroid."""
    sets, entries, d = centroids.shape
    mass = torch.zeros(sets, entries, dtype=torch.int64, device=x.device)
    mass.scatter_add_(1, index, (w * grid[0]).round().long())
    total = torch.zeros(sets, entries, d, dtype=torch.int64, device=x.device)
    parts = (w[..., None] * x.double() * grid[1]).round().long()
    total.scatter_add_(1, index[..., None].expand(-1, -1, d), parts)
    empty = mass == 0
    mean = (total.double() / grid[1]) / (mass.double() / grid[0]).masked_fill(empty, 1)[..., None]
    moved = torch.where(empty[..., None], centroids, mean.float())
    for s in empty.any(1).nonzero().flatten().tolist():
        holes = empty[s].nonzero().flatten()
        order = error[s].sort(descending=True, stable=True)
        some = min(len(holes), int((order.values > 0).sum()))
        moved[s, holes[:some]] = x[s, order.indices[:some]]
    return moved
