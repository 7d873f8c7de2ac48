"""Lloyd's algorithm in d dimensions against scikit-learn, faiss, a slow reference, its contract.

The figures of faiss are stored (``faiss_objectives.py``). Shown to fail: faiss's objective exceeded
with 2 moves in place of 25, and with half of the centroids.
"""

import json
import re
import statistics

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from golden.config import ConfigError
from golden.index.kmeans import optimal_kmeans_1d
from golden.index.lloyd import Training, assign, kmeans
from tests.index.faiss_objectives import STORED, digest, samples

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _samples(sets: int, count: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(sets, 12, d)) * 3
    x = centres[:, rng.integers(12, size=count)] + rng.standard_t(4, size=(sets, count, d))
    return torch.tensor(x), torch.tensor(rng.exponential(size=(sets, count)))


def _cost(x: torch.Tensor, w: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    return (w * ((x[:, :, None] - centroids[:, None]) ** 2).sum(-1).min(-1).values).sum(1)


def _reference(x: np.ndarray, w: np.ndarray, c: np.ndarray) -> np.ndarray:
    """One move of Lloyd's algorithm, cluster by cluster."""
    distance = ((x[:, None] - c[None]) ** 2).sum(-1)
    owner = distance.argmin(1)
    error = w * distance.min(1)
    spare = sorted(range(len(x)), key=lambda i: (-error[i], i))
    moved = c.copy()
    for j in range(len(c)):
        mine = owner == j
        if w[mine].sum() > 0:
            moved[j] = (w[mine, None] * x[mine]).sum(0) / w[mine].sum()
        elif spare and error[spare[0]] > 0:
            moved[j] = x[spare.pop(0)]
    return moved


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seeds", ["plus_plus", "random"])
def test_cost_is_that_of_the_centroids(seeds: str, device: str) -> None:
    x, w = _samples(3, 500, 4)
    found = kmeans(x.to(device), 16, w.to(device), Training(seeds=seeds))
    assert found.centroids.shape == (3, 16, 4)
    scaled = w / w.amax(1, keepdim=True)
    torch.testing.assert_close(
        found.cost.cpu(), _cost(x, scaled, found.centroids.cpu().double()), rtol=1e-5, atol=0
    )


def test_moves_as_the_reference() -> None:
    x, w = _samples(1, 60, 3)
    x[0, 30:40] = x[0, 0]  # equal samples leave clusters empty
    start = kmeans(x, 24, w, Training(seeds="random", seed=3, iterations=0))
    moved = kmeans(x, 24, w, Training(seeds="random", seed=3, iterations=1, tolerance=0.0))
    expected = _reference(x[0].numpy(), w[0].numpy(), start.centroids[0].double().numpy())
    np.testing.assert_allclose(moved.centroids[0].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(np.unique(start.centroids[0].numpy(), axis=0)) < 24


@pytest.mark.parametrize("d", [2, 4, 8])
def test_close_to_scikit_learn(d: int) -> None:
    x, w = _samples(2, 2000, d, seed=d)
    costs = [kmeans(x, 32, w, Training(seed=seed, iterations=100)).cost for seed in range(3)]
    for s in range(2):
        theirs = KMeans(32, n_init=3, random_state=0).fit(x[s].numpy(), sample_weight=w[s].numpy())
        best = min(float(cost[s]) for cost in costs) * float(w[s].max())
        assert best <= theirs.inertia_ * 1.1


_FAISS = json.loads(STORED.read_text())


@pytest.mark.parametrize("case", _FAISS["cases"], ids=lambda case: f"{case['d']}x{case['entries']}")
def test_objective_near_that_of_faiss(case: dict) -> None:
    """Each of our objectives is at most 1.02 times the mean of faiss's seeds, with as many moves.

    Measured: 0.59 to 0.79 times in 2 dimensions, 0.95 to 0.99 in 4. Half of it would mean that the
    two objectives are not of the same samples.
    """
    samples_of_both = samples(case["d"], case["samples"])
    assert digest(samples_of_both) == case["sha256"], "numpy draws other samples: store anew"
    theirs = statistics.fmean(case["costs"])
    x = torch.tensor(samples_of_both)[None]
    for seed in range(3):
        training = Training(seed=seed, iterations=_FAISS["iterations"])
        found = kmeans(x, case["entries"], training=training)
        cost = _cost(x.double(), torch.ones(1, x.shape[1]), found.centroids.double())
        assert 0.5 * theirs <= float(cost) <= 1.02 * theirs


def test_from_the_same_seeds_as_scikit_learn() -> None:
    x, w = _samples(1, 1500, 2)
    start = kmeans(x, 20, w, Training(seed=5, iterations=0)).centroids
    found = kmeans(x, 20, w, Training(seed=5, iterations=300, tolerance=0.0))
    theirs = KMeans(
        20, init=start[0].double().numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd"
    ).fit(x[0].numpy(), sample_weight=w[0].numpy())
    np.testing.assert_allclose(
        found.centroids[0].numpy(), theirs.cluster_centers_, rtol=1e-3, atol=1e-3
    )


def test_one_dimension_near_the_optimum() -> None:
    x, w = _samples(1, 800, 1)
    best = optimal_kmeans_1d(x[0, :, 0], 8, w[0]).cost
    costs = [float(kmeans(x, 8, w, Training(seed=seed, iterations=100)).cost) for seed in range(4)]
    assert min(costs) * float(w.max()) <= best * 1.02


@pytest.mark.parametrize("device", DEVICES)
def test_same_seed_same_bits(device: str) -> None:
    x, w = (each.to(device) for each in _samples(2, 700, 2))
    first, second = (kmeans(x, 40, w, Training(seed=9)) for _ in range(2))
    assert torch.equal(first.centroids, second.centroids)
    assert not torch.equal(first.centroids, kmeans(x, 40, w, Training(seed=10)).centroids)


def test_sets_are_independent_of_order_of_samples() -> None:
    x, _ = _samples(2, 300, 2)
    x = x.float().double()
    start = kmeans(x, 300, training=Training(seeds="random", iterations=0)).centroids
    index = assign(x.float(), start)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(assign(x[:, order].float(), start), index[:, order])


def test_weight_counts_samples() -> None:
    x = torch.tensor([[[0.0], [1.0], [5.0], [6.0], [20.0]]])
    w = torch.tensor([3.0, 1.0, 2.0, 2.0, 1.0])
    found = kmeans(x, 3, w, Training(iterations=50))
    assert found.centroids.flatten().sort().values.tolist() == pytest.approx([0.25, 5.5, 20.0])


def test_zero_weight_is_no_sample() -> None:
    x = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1e6, 1.0]]])
    found = kmeans(x, 2, torch.tensor([1.0, 1.0, 0.0]), Training(iterations=9))
    torch.testing.assert_close(found.centroids[0].sort(0).values, torch.tensor([[0.0, 0], [1, 0]]))


def test_fewer_distinct_samples_than_entries() -> None:
    x = torch.tensor([[2.0, 1.0], [-1.0, 0.0], [2.0, 1.0]])[None]
    found = kmeans(x, 4, training=Training(iterations=9))
    assert float(found.cost) == 0
    for centroid in found.centroids[0]:
        assert float((x[0] - centroid).abs().sum(1).min()) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
def test_ties_to_the_lowest_index(device: str) -> None:
    centroids = torch.tensor([[[3.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]], device=device)
    x = torch.tensor([[[0.0, 5.0], [1.0, 0.0], [2.0, 0.0]]], device=device)
    assert assign(x, centroids).tolist() == [[1, 1, 0]]


def test_progress() -> None:
    x, _ = _samples(1, 200, 2)
    seen = []
    training = Training(iterations=5, tolerance=0.0)
    found = kmeans(x, 8, None, training, lambda *each: seen.append(each))
    assert [moves for moves, _ in seen] == list(range(6))
    costs = [cost for _, cost in seen]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == float(found.cost.sum())


@pytest.mark.parametrize(
    ("samples", "weight", "entries", "message"),
    [
        ([], None, 2, "samples must be finite, (S, n, d) and not empty"),
        ([[[1.0], [float("nan")]]], None, 2, "samples must be finite, (S, n, d) and not empty"),
        ([[[1.0], [2.0]]], [1.0, -1.0], 2, "weight must be finite, not negative and not all zero"),
        ([[[1.0], [2.0]]], [0.0, 0.0], 2, "weight must be finite, not negative and not all zero"),
        ([[[1.0], [2.0]]], [1.0], 2, "weight must have as many entries as samples, 2"),
        ([[[1.0], [2.0]]], None, 0, "entries must be at least 1, not 0"),
    ],
)
def test_rejects(samples: list, weight: list | None, entries: int, message: str) -> None:
    weights = None if weight is None else torch.tensor(weight)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        kmeans(torch.tensor(samples), entries, weights)


def test_rejects_seeds() -> None:
    with pytest.raises(ConfigError, match=r"^Training\.seeds must be plus_plus or random"):
        Training(seeds="best")
