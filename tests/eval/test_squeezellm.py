"""SqueezeLLM-like weights: codebooks of rows against the optimum and the uniform grid."""

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.index.kmeans import kmeans_rows, optimal_kmeans_1d
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.eval.state import calibrate
from golden.llm.methods import parse, parse_all, squeezellm
from golden.llm.methods.rtn import rtn_symmetric
from golden.llm.methods.squeezellm import codebooks, nearest, sparse_places
from tests.tiny import SHAPES


def rows(count: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(samples, weights) with long tails."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator) ** 3
    return x, torch.rand(count, width, generator=generator) ** 4


def cost(x: Tensor, w: Tensor, centroids: Tensor) -> Tensor:
    distance = (x[:, :, None].double() - centroids[:, None, :].double()).square().amin(2)
    return (w.double() * distance).sum(1)


@pytest.mark.parametrize("clusters", [1, 4, 16])
def test_rows_at_once_are_near_the_optimum(clusters: int) -> None:
    x, w = rows(12, 150)
    centroids, found = kmeans_rows(x, clusters, w)
    assert torch.allclose(found, cost(x, w, centroids))
    assert torch.equal(centroids, centroids.sort(1).values)
    best = torch.tensor(
        [optimal_kmeans_1d(a, clusters, b).cost for a, b in zip(x, w, strict=True)],
        dtype=torch.float64,
    )
    assert bool((found >= best * (1 - 1e-9)).all())
    assert float((found / best).mean()) < 1.1


def test_start_is_never_beaten_and_rows_do_not_meet() -> None:
    x, w = rows(8, 60)
    start = torch.randn(8, 5, generator=torch.Generator().manual_seed(4)).sort(1).values
    centroids, found = kmeans_rows(x, 5, w, start=start, iterations=0)
    assert bool((found <= cost(x, w, start) * (1 + 1e-12)).all())
    centroids, _ = kmeans_rows(x, 5, w, start=start)
    for i in range(8):
        alone, _ = kmeans_rows(x[i : i + 1], 5, w[i : i + 1], start=start[i : i + 1])
        assert torch.equal(alone[0], centroids[i])


def test_a_start_that_is_better_is_taken() -> None:
    x, w = rows(8, 150)
    optimum = [optimal_kmeans_1d(a, 16, b) for a, b in zip(x, w, strict=True)]
    least = torch.tensor([each.cost for each in optimum], dtype=torch.float64)
    assert bool((kmeans_rows(x, 16, w)[1] > least * (1 + 1e-6)).any())  # else this tests nothing
    start = torch.stack([each.centroids for each in optimum])
    centroids, found = kmeans_rows(x, 16, w, start=start)
    assert torch.allclose(found, least)
    assert torch.allclose(cost(x, w, centroids), least)


def test_row_without_weight_counts_as_unweighted() -> None:
    x, w = rows(3, 60)
    w[1] = 0
    found, total = kmeans_rows(x, 4, w)
    plain, unweighted = kmeans_rows(x, 4)
    assert torch.equal(found[1], plain[1])
    assert float(total[1]) == pytest.approx(float(unweighted[1]))


def test_few_values_are_kept() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 1.0, 0.5, -2.0, 3.0]])
    book = codebooks(x, None, 3)
    back = book.float().gather(1, nearest(x, book).long())
    assert torch.equal(back, x)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_never_worse_than_round_to_nearest(bits: int) -> None:
    x, w = rows(300, 64, seed=bits)
    book = codebooks(x, w, bits)
    uniform = (w * (x - rtn_symmetric(x, bits)).square()).sum(1).double()
    assert bool((cost(x, w, book) < uniform).all())


def test_nearest_is_nearest() -> None:
    x, _ = rows(5, 40)
    book = codebooks(x, None, 3)
    expected = (x[:, :, None] - book.float()[:, None]).abs().argmin(2)
    assert torch.equal(nearest(x, book).long(), expected)


def test_sparse_places_are_sensitive_or_large() -> None:
    weight, fisher = rows(20, 50)
    place = sparse_places(weight, fisher, 0.09)
    assert len(place) == 90
    sensitive = set(fisher.flatten().topk(10).indices.tolist())
    large = [
        i for i in weight.abs().flatten().sort(descending=True).indices.tolist()
        if i not in sensitive
    ]  # fmt: skip
    assert set(place.tolist()) == sensitive | set(large[:80])
    # Where the sensitive ones are the largest, others take their place among the large ones.
    both = sparse_places(weight, weight.abs(), 0.09)
    assert both.tolist() == sorted(weight.abs().flatten().topk(90).indices.tolist())


def test_fisher_decides(tiny, tiny_windows) -> None:
    """Codebooks of a layer are those of the data's squared gradients, not of equal weights."""
    data = CalibrationData(tiny.model, tiny_windows)
    state = parse("squeezellm-like-w3a16").calibrate(data)
    name = "model.layers.1.mlp.up_proj"
    weight = data.linears[name].weight.detach()
    fisher = data.weight_fisher()[name]
    assert torch.equal(state[f"{name}.codebook"], codebooks(weight, fisher, 3))
    assert not torch.equal(state[f"{name}.codebook"], codebooks(weight, None, 3))


def test_sparse_weights_are_as_they_were(tiny, tiny_windows) -> None:
    data = CalibrationData(tiny.model, tiny_windows)
    method = parse("squeezellm-like-w3a16:sparse=0.05")
    state = method.calibrate(data)
    fisher = data.weight_fisher()
    before = {name: linear.weight.detach().clone() for name, linear in data.linears.items()}
    with Site(tiny.model) as site:
        method.install(site, state)
        for name, linear in site.linears.items():
            place = state[f"{name}.place"].long()
            assert len(place) == round(0.05 * linear.weight.numel())
            kept = linear.weight.detach().flatten()[place]
            assert torch.equal(kept, before[name].flatten()[place].half().float())
            others = torch.ones(linear.weight.numel(), dtype=torch.bool)
            others[place] = False
            left = torch.where(others.reshape(fisher[name].shape), fisher[name], 0)
            assert torch.equal(state[f"{name}.codebook"], codebooks(before[name], left, 3))
            weights = linear.weight.detach()
            rows_of = zip(weights, others.reshape(weights.shape), strict=True)
            assert max(len(row[own].unique()) for row, own in rows_of) <= 8


@pytest.mark.parametrize("sparse", [0.0, 0.0045])
def test_bits_and_perplexity(tiny, tiny_windows, sparse: float) -> None:
    methods = parse_all(f"squeezellm-like-w5a16:sparse={sparse}")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    plain = evaluate(tiny, "fp32", parse_all("fp32"), tiny_windows, [{}])
    found = evaluate(tiny, "squeezellm", methods, tiny_windows, states)
    assert found.perplexity == pytest.approx(plain.perplexity, rel=0.1)
    stored = sum(n * k * 5 + n * 32 * 16 for n, k in SHAPES)
    if sparse:
        stored += sum(32 * round(sparse * n * k) + 32 * n for n, k in SHAPES)
    assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))


@pytest.mark.parametrize("text", ["w1a16", "w9a16", "w4a16:sparse=0.6"])
def test_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        parse(f"squeezellm-like-{text}")


def test_the_uniform_grid_is_among_the_seeds(monkeypatch):
    x = torch.randn(600, 20, generator=torch.Generator().manual_seed(0))
    seen: list[Tensor] = []

    def spy(*given, start=None):
        seen.append(start)
        return kmeans_rows(*given, start=start)

    monkeypatch.setattr(squeezellm, "kmeans_rows", spy)
    codebooks(x, None, 3)
    step = x.abs().amax(1, keepdim=True).double() / 3
    assert torch.equal(torch.cat(seen), step * torch.arange(-4, 4))
