"""k-means against the global optimum, exhaustive search and scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from golden.index.kmeans import kmeans_1d, optimal_kmeans_1d

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _samples(kind: str, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    x = {
        "normal": lambda: rng.normal(size=count),
        "laplace": lambda: rng.laplace(size=count),
        "clumps": lambda: (
            rng.choice([-3.0, -1.0, 0.5, 0.6, 4.0], count) + 0.05 * rng.normal(size=count)
        ),
        "repeated": lambda: np.round(rng.normal(size=count), 1),
        "heavy": lambda: rng.standard_t(2, size=count),
    }[kind]()
    return torch.tensor(x), torch.tensor(rng.exponential(size=count) ** 2)


def _cost(x: torch.Tensor, w: torch.Tensor, centroids: torch.Tensor) -> float:
    return float((w * ((x[:, None] - centroids) ** 2).min(dim=1).values).sum())


def test_optimum_equals_exhaustive_search() -> None:
    for seed in range(8):
        x, w = _samples("normal", 9, seed)
        x, order = x.sort()
        w = w[order]
        best = np.inf
        for cuts in itertools.combinations(range(1, 9), 2):
            parts = np.split(np.arange(9), cuts)
            means = torch.stack([(w[p] * x[p]).sum() / w[p].sum() for p in parts])
            best = min(best, _cost(x, w, means))
        found = optimal_kmeans_1d(x, 3, w)
        assert abs(found.cost - best) <= 1e-9 * best
        assert abs(_cost(x, w, found.centroids) - best) <= 1e-9 * best


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clusters", [8, 16])
@pytest.mark.parametrize("kind", ["normal", "laplace", "clumps", "repeated", "heavy"])
def test_within_one_percent_of_optimum(kind: str, clusters: int, device: str) -> None:
    x, w = _samples(kind, 900, clusters)
    optimum = optimal_kmeans_1d(x, clusters, w)
    found = kmeans_1d(x.to(device), clusters, w.to(device))
    assert abs(_cost(x, w, found.centroids.cpu()) - found.cost) <= 1e-9 * found.cost
    assert optimum.cost * (1 - 1e-9) <= found.cost
    assert found.cost <= optimum.cost * 1.01


@pytest.mark.parametrize("kind", ["normal", "heavy"])
def test_no_worse_than_scikit_learn(kind: str) -> None:
    x, w = _samples(kind, 1500, 7)
    theirs = KMeans(16, n_init=10, random_state=0).fit(x[:, None].numpy(), sample_weight=w.numpy())
    assert kmeans_1d(x, 16, w).cost <= theirs.inertia_ * (1 + 1e-9)


def test_weight_counts_samples() -> None:
    x = torch.tensor([0.0, 1.0, 5.0, 6.0, 20.0])
    w = torch.tensor([3.0, 1.0, 2.0, 2.0, 1.0])
    repeated = torch.repeat_interleave(x, w.long())
    assert torch.equal(kmeans_1d(x, 3, w).centroids, kmeans_1d(repeated, 3).centroids)


def test_zero_weight_is_no_sample() -> None:
    x, w = torch.tensor([0.0, 1.0, 1e6]), torch.tensor([1.0, 1.0, 0.0])
    assert kmeans_1d(x, 2, w).centroids.tolist() == [0.0, 1.0]


def test_weights_that_vanish_beside_others() -> None:
    x = torch.linspace(-1, 1, 3000, dtype=torch.float64)
    weight = torch.where(x < 0, 1.0, 1e-30)  # no sum of float64 sees the latter
    found = kmeans_1d(x, 16, weight)
    assert bool(found.centroids.isfinite().all())
    alone = kmeans_1d(x[x < 0], 16)
    assert found.cost == pytest.approx(alone.cost, rel=0.05)


def test_fewer_distinct_samples_than_clusters() -> None:
    found = kmeans_1d(torch.tensor([2.0, -1.0, 2.0]), 4)
    assert found.centroids.tolist() == [-1.0, 2.0, 2.0, 2.0]
    assert found.cost == 0


@pytest.mark.parametrize(
    ("samples", "weight", "message"),
    [
        ([], None, "samples must be finite and not empty"),
        ([1.0, float("nan")], None, "samples must be finite and not empty"),
        ([1.0, 2.0], [1.0, -1.0], "weight must be finite, not negative and not all zero"),
        ([1.0, 2.0], [0.0, 0.0], "weight must be finite, not negative and not all zero"),
        ([1.0, 2.0], [1.0], "weight must have as many entries as samples, 2"),
    ],
)
def test_rejects(samples: list, weight: list | None, message: str) -> None:
    weights = None if weight is None else torch.tensor(weight)
    with pytest.raises(ValueError, match=f"^{message}$"):
        kmeans_1d(torch.tensor(samples), 2, weights)
