"""Weighted k-means in one dimension: ``min over c of sum w * min over j of (x - c_j)**2``.

In one dimension clusters are intervals of the sorted samples. So an iteration of Lloyd's algorithm
is a binary search of the interval ends and a difference of prefix sums: no distance is computed.
Everything is float64, on the device of the samples. Source: KLLM, section III-A.
"""

import dataclasses

import torch
from torch import Tensor

_COARSE = 512  # bins on which seeds are drawn, half of equal width and half of equal weight
_ROW_BINS = 64  # of a row's summary
_OPTIMAL_MAX = 4096  # distinct samples of the quadratic optimum: 128 MiB of interval costs


@dataclasses.dataclass(frozen=True)
class Clusters:
    """centroids: (clusters,) float64 ascending; cost: sum of w * (x - nearest centroid)**2."""

    centroids: Tensor
    cost: float


@dataclasses.dataclass(frozen=True)
class _Sorted:
    """Distinct samples, ascending, with prefix sums of w, w x and w x**2 (length n + 1).

    Samples are centred on their mean first: prefix sums of squares would lose digits otherwise.
    """

    x: Tensor
    w: Tensor
    wx: Tensor
    wxx: Tensor
    mean: Tensor


def _checked(samples: Tensor, weight: Tensor | None, clusters: int) -> tuple[Tensor, Tensor]:
    x = samples.detach().flatten().double()
    w = torch.ones_like(x) if weight is None else weight.detach().flatten().double()
    if clusters < 1:
        raise ValueError(f"clusters must be at least 1, not {clusters}")
    if x.shape != w.shape:
        raise ValueError(f"weight must have as many entries as samples, {x.numel()}")
    if x.numel() == 0 or not bool(torch.isfinite(x).all()):
        raise ValueError("samples must be finite and not empty")
    if not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or not float(w.sum()) > 0:
        raise ValueError("weight must be finite, not negative and not all zero")
    return x, w


def _prefix(values: Tensor) -> Tensor:
    return torch.cat((values.new_zeros(1), values.cumsum(0)))


def _sorted(x: Tensor, w: Tensor) -> _Sorted:
    used = w > 0
    x, place = torch.unique(x[used], return_inverse=True)
    w = torch.zeros_like(x).index_add_(0, place, w[used])
    mean = (w * x).sum() / w.sum()
    x = x - mean
    return _Sorted(x=x, w=_prefix(w), wx=_prefix(w * x), wxx=_prefix(w * x * x), mean=mean)


def _interval_sums(data: _Sorted, centroids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of w, w x, w x**2 of the samples nearest to each centroid: (restarts, clusters)."""
    ends = torch.searchsorted(data.x, (centroids[:, :-1] + centroids[:, 1:]) / 2, right=True)
    edge = ends.new_zeros(len(centroids), 1)
    ends = torch.cat((edge, ends, edge + len(data.x)), dim=1)
    w, wx, wxx = (prefix[ends].diff(dim=1) for prefix in (data.w, data.wx, data.wxx))
    return w, wx, wxx


def _cost(data: _Sorted, centroids: Tensor) -> Tensor:
    """(restarts,)"""
    w, wx, wxx = _interval_sums(data, centroids)
    return (wxx - 2 * centroids * wx + centroids**2 * w).sum(dim=1).clamp(min=0)


def _lloyd(data: _Sorted, centroids: Tensor, iterations: int) -> Tensor:
    """Centroids (restarts, clusters), until none moves; a centroid without samples stays."""
    for _ in range(iterations):
        w, wx, _ = _interval_sums(data, centroids)
        moved = torch.where(w > 0, wx / w.clamp(min=torch.finfo(w.dtype).tiny), centroids)
        moved = moved.sort(dim=1).values
        if torch.equal(moved, centroids):
            break
        centroids = moved
    return centroids


def _coarse(data: _Sorted) -> tuple[Tensor, Tensor]:
    """Represents the samples by at most ``_COARSE`` (mean, weight) pairs."""
    if len(data.x) <= _COARSE:
        return data.x, data.w.diff()
    half = _COARSE // 2
    low, high = float(data.x[0]), float(data.x[-1])
    width_edges = torch.linspace(low, high, half + 1, device=data.x.device, dtype=data.x.dtype)
    by_width = torch.searchsorted(data.x, width_edges[1:-1])
    share = torch.arange(1, half, device=data.x.device, dtype=data.x.dtype) / half
    by_weight = torch.searchsorted(data.w, share * data.w[-1]).clamp(max=len(data.x))
    ends = torch.unique(torch.cat((by_width, by_weight, by_width.new_tensor([0, len(data.x)]))))
    w, wx = data.w[ends].diff(), data.wx[ends].diff()
    return wx / w, w


def _plus_plus(x: Tensor, w: Tensor, clusters: int, restarts: int, seed: int) -> Tensor:
    """k-means++ seeds: each new one with probability proportional to w * squared distance."""
    generator = torch.Generator(device=x.device).manual_seed(seed)
    first = torch.multinomial(w, restarts, replacement=True, generator=generator)
    chosen = [x[first]]
    distance = (x - chosen[0][:, None]) ** 2
    for _ in range(clusters - 1):
        mass = w * distance
        mass = torch.where(mass.sum(1, keepdim=True) > 0, mass, w)  # every sample is a seed already
        pick = torch.multinomial(mass, 1, generator=generator).flatten()
        chosen.append(x[pick])
        distance = torch.minimum(distance, (x - chosen[-1][:, None]) ** 2)
    return torch.stack(chosen, dim=1).sort(dim=1).values


def _optimal(x: Tensor, w: Tensor, clusters: int) -> Tensor:
    """Globally optimal centroids of ascending distinct samples, by dynamic programming.

    best[m][j] = min over i < j of best[m-1][i] + cost of one cluster holding samples i .. j-1.
    """
    n = len(x)
    w0, w1, w2 = _prefix(w), _prefix(w * x), _prefix(w * x * x)
    mass = w0[None, :] - w0[:, None]
    first = w1[None, :] - w1[:, None]
    cost = w2[None, :] - w2[:, None] - first**2 / mass.clamp(min=torch.finfo(w.dtype).tiny)
    cost = cost.clamp(min=0)
    below = torch.ones_like(cost, dtype=torch.bool).triu(1)
    cost = torch.where(below, cost, torch.inf)
    best, starts = cost[0], []
    for _ in range(clusters - 1):
        best, start = (best[:, None] + cost).min(dim=0)
        starts.append(start)
    end, ends = n, [n]
    for start in reversed(starts):
        end = int(start[end])
        ends.append(end)
    edges = torch.tensor([0, *reversed(ends)], device=x.device)
    return w1[edges].diff() / w0[edges].diff()


def _few(data: _Sorted, clusters: int) -> Clusters:
    """No more distinct samples than clusters: each is a centroid, the largest repeated."""
    centroids = torch.cat((data.x, data.x[-1:].expand(clusters - len(data.x)))) + data.mean
    return Clusters(centroids=centroids, cost=0.0)


def kmeans_1d(
    samples: Tensor,
    clusters: int,
    weight: Tensor | None = None,
    *,
    restarts: int = 8,
    iterations: int = 300,
    seed: int = 0,
) -> Clusters:
    """Best of several runs of Lloyd's algorithm on the weighted samples.

    samples, weight: any equal shape, finite, weight >= 0 (1 if None). Seeds: the optimum of a
    512-bin summary of the samples, their weighted quantiles, and ``restarts`` k-means++ draws from
    the summary. The same seed gives the same centroids on the same device.
    ValueError: empty or not finite samples, negative or all-zero weights, clusters < 1.
    """
    data = _sorted(*_checked(samples, weight, clusters))
    if len(data.x) <= clusters:
        return _few(data, clusters)
    coarse_x, coarse_w = _coarse(data)
    share = (torch.arange(clusters, device=data.x.device, dtype=data.x.dtype) + 0.5) / clusters
    # The prefix sum at i+1 includes sample i.
    quantile = torch.searchsorted(data.w[1:], share * data.w[-1]).clamp(max=len(data.x) - 1)
    seeds = [data.x[quantile][None]]
    if len(coarse_x) > clusters:
        seeds.append(_optimal(coarse_x, coarse_w, clusters)[None])
    if restarts:
        seeds.append(_plus_plus(coarse_x, coarse_w, clusters, restarts, seed))
    starts = torch.cat(seeds)
    # A weight that a sum with the others rounds away leaves its own cluster without a mean.
    starts = starts[~starts.isnan().any(1)]
    centroids = _lloyd(data, starts, iterations)
    cost = _cost(data, centroids)
    best = int(cost.argmin())
    return Clusters(centroids=centroids[best] + data.mean, cost=float(cost[best]))


def optimal_kmeans_1d(samples: Tensor, clusters: int, weight: Tensor | None = None) -> Clusters:
    """The global optimum, O(clusters * n**2) for n distinct samples, n <= 4096.

    ValueError: as kmeans_1d, or too many distinct samples.
    """
    data = _sorted(*_checked(samples, weight, clusters))
    if len(data.x) <= clusters:
        return _few(data, clusters)
    if len(data.x) > _OPTIMAL_MAX:
        raise ValueError(f"at most {_OPTIMAL_MAX} distinct samples, not {len(data.x)}")
    centroids = _optimal(data.x, data.w.diff(), clusters)
    return Clusters(centroids=centroids + data.mean, cost=float(_cost(data, centroids[None])[0]))


def kmeans_rows(
    samples: Tensor,
    clusters: int,
    weight: Tensor | None = None,
    *,
    start: Tensor | None = None,
    iterations: int = 100,
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm for every row at once: centroids (R, clusters) ascending, cost (R,).

    samples, weight: (R, n), finite, weight >= 0; a row whose weights are all zero counts as
    unweighted. Seeds: the optimum of a 64-bin summary of the row (see ``_row_seed``), and ``start``
    (R, clusters) ascending, whose cost is never exceeded. Float64. Of random rows of 576 the cost
    is within a few per cent of the optimum, on average below 1 %.
    """
    x, order = samples.double().sort(dim=1)
    w = torch.ones_like(x) if weight is None else weight.double().gather(1, order)
    total = w.sum(1, keepdim=True)
    w = torch.where(total > 0, w, 1)
    total = w.sum(1, keepdim=True)
    w = w / total
    mean = (w * x).sum(1, keepdim=True)
    x = x - mean
    rows = _Rows(x=x, w=_row_prefix(w), wx=_row_prefix(w * x), wxx=_row_prefix(w * x * x))
    best = _row_lloyd(rows, _row_seed(rows, clusters), iterations)
    least = _row_cost(rows, best)
    if start is not None:
        other = _row_lloyd(rows, start.double() - mean, iterations)
        cost = _row_cost(rows, other)
        best = torch.where(cost < least, other, best)
        least = torch.minimum(cost, least)
    return best + mean, (least * total)[:, 0]


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Samples (R, n) ascending, centred; prefix sums (R, n + 1) of w, w x, w x**2; w sums to 1."""

    x: Tensor
    w: Tensor
    wx: Tensor
    wxx: Tensor

    def __getitem__(self, rows: Tensor) -> "_Rows":
        return _Rows(*(getattr(self, each.name)[rows] for each in dataclasses.fields(self)))


def _row_prefix(values: Tensor) -> Tensor:
    return torch.cat((values.new_zeros(len(values), 1), values.cumsum(1)), dim=1)


def _row_edges(rows: _Rows, centroids: Tensor) -> Tensor:
    """(R, clusters + 1): where the samples nearest to each centroid begin, and their end."""
    ends = torch.searchsorted(rows.x, (centroids[:, :-1] + centroids[:, 1:]) / 2, right=True)
    edge = ends.new_zeros(len(centroids), 1)
    return torch.cat((edge, ends, edge + rows.x.shape[1]), dim=1)


def _row_seed(rows: _Rows, clusters: int) -> Tensor:
    """(R, clusters) ascending: the optimum of the samples in at most ``_ROW_BINS`` bins.

    Bins hold equal shares of sum (w * gap**2)**(1/3), where gap is the distance of a sample to the
    middle between its neighbours. This is the density of centroids of the best quantizer with many
    (Panter and Dite). From ``_ROW_BINS`` clusters on, where searching the optimum is slow, these
    shares alone give the centroids.
    """
    x, (count, n) = rows.x, rows.x.shape
    gaps = x.diff(dim=1)
    gap = torch.nn.functional.pad(gaps, (1, 0)) + torch.nn.functional.pad(gaps, (0, 1))
    mass = _row_prefix((rows.w.diff(dim=1) * gap**2) ** (1 / 3))
    if clusters >= _ROW_BINS:
        share = (torch.arange(clusters, device=x.device, dtype=x.dtype) + 0.5) / clusters
        place = torch.searchsorted(mass[:, 1:].contiguous(), share * mass[:, -1:])
        return x.gather(1, place.clamp(max=n - 1))
    bins = min(n, _ROW_BINS)
    share = torch.arange(bins + 1, device=x.device, dtype=x.dtype) / bins
    edges = torch.searchsorted(mass, share * mass[:, -1:]).clamp(max=n)
    edges[:, 0], edges[:, -1] = 0, n
    if n == bins:
        edges = torch.arange(n + 1, device=x.device).expand(count, -1)
    w, wx, wxx = (prefix.gather(1, edges) for prefix in (rows.w, rows.wx, rows.wxx))
    ends = _row_optimal(w, wx, wxx, clusters)
    w, wx = w.gather(1, ends).diff(dim=1), wx.gather(1, ends).diff(dim=1)
    # A cluster without samples repeats the one before it.
    centroids = torch.where(w > 0, wx / w.clamp(min=torch.finfo(w.dtype).tiny), x[:, :1])
    return centroids.cummax(1).values


def _row_optimal(w: Tensor, wx: Tensor, wxx: Tensor, clusters: int) -> Tensor:
    """``_optimal`` for every row: (R, clusters + 1) ends of the clusters among prefix sums."""
    mass, first, second = (each[:, None] - each[:, :, None] for each in (w, wx, wxx))
    cost = (second - first**2 / mass.clamp(min=torch.finfo(w.dtype).tiny)).clamp(min=0)
    count, bins = w.shape
    up = torch.ones(bins, bins, dtype=torch.bool, device=w.device).triu()
    cost = torch.where(up, cost, torch.inf)
    best, starts = cost[:, 0], []
    for _ in range(clusters - 1):
        best, start = (best[:, :, None] + cost).min(dim=1)
        starts.append(start)
    ends = [torch.full((count, 1), bins - 1, device=w.device)]
    for start in reversed(starts):
        ends.append(start.gather(1, ends[-1]))
    ends.append(torch.zeros_like(ends[0]))
    return torch.cat(ends[::-1], 1)


def _row_cost(rows: _Rows, centroids: Tensor) -> Tensor:
    """(R, 1)"""
    edges = _row_edges(rows, centroids)
    w, wx, wxx = (prefix.gather(1, edges).diff(dim=1) for prefix in (rows.w, rows.wx, rows.wxx))
    return (wxx - 2 * centroids * wx + centroids**2 * w).sum(1, keepdim=True).clamp(min=0)


def _row_lloyd(rows: _Rows, centroids: Tensor, iterations: int) -> Tensor:
    """Moves centroids until no centroid of a row moves; a centroid without samples stays."""
    result = centroids.clone()
    moving = torch.arange(len(centroids), device=centroids.device)
    part, current = rows, result
    for _ in range(iterations):
        edges = _row_edges(part, current)
        w = part.w.gather(1, edges).diff(dim=1)
        wx = part.wx.gather(1, edges).diff(dim=1)
        moved = torch.where(w > 0, wx / w.clamp(min=torch.finfo(w.dtype).tiny), current)
        active = (moved != current).any(1)
        result[moving] = moved
        count = int(active.sum())
        if count == 0:
            break
        current = moved
        if count <= len(moving) // 2:  # rows that have converged are left out
            moving, current, part = moving[active], moved[active], part[active]
    return result
