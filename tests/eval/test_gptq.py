"""GPTQ-like weights: against a plain inverse, round to nearest, and the data it is made for."""

import dataclasses

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.eval.state import calibrate
from golden.llm.methods import parse, parse_all
from golden.llm.methods.gptq import gptq, ragged, restored
from golden.llm.methods.rtn import best_clip, rtn_symmetric
from tests.tiny import SHAPES, Q


def correlated(width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(weights (12, width), Hessian of inputs with channels that depend on one another)."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator) / width**0.5
    x = torch.randn(4 * width, width, generator=generator) @ (torch.eye(width) + 2 * mix)
    return torch.randn(12, width, generator=generator), x.t() @ x


def loss(weight: Tensor, back: Tensor, hessian: Tensor) -> float:
    error = (weight - back).double()
    return float(((error @ hessian.double()) * error).sum())


def by_inverse(weight: Tensor, hessian: Tensor, sizes: list[int], bits: int) -> Tensor:
    """Optimal brain quantization in order; every column inverts the remaining Hessian anew."""
    w, h = weight.double().clone(), hessian.double()
    ends = torch.tensor(sizes).cumsum(0).tolist()
    last = (1 << bits) - 1
    result = torch.empty_like(w)
    for k in range(w.shape[1]):
        begin = max([0, *(end for end in ends if end <= k)])
        if k == begin:
            group = w[:, k : min(end for end in ends if end > k)]
            low, high = group.amin(1).clamp(max=0), group.amax(1).clamp(min=0)
            scale = ((high - low) / last).half().double()
            zero = (-low / scale).round()
        q = scale * (((w[:, k] / scale).round() + zero).clamp(0, last) - zero)
        inverse = torch.linalg.inv(h[k:, k:])
        w[:, k:] -= ((w[:, k] - q) / inverse[0, 0])[:, None] * inverse[0]
        result[:, k] = q
    return result


@pytest.mark.parametrize(("width", "group"), [(2, 0), (40, 0), (40, 16), (150, 50), (150, 0)])
def test_is_optimal_brain_quantization_in_order(width: int, group: int) -> None:
    weight, hessian = correlated(width)
    sizes = ragged(width, group)
    found = gptq(weight, hessian, sizes, [4] * len(sizes), damping=0.0)
    expected = by_inverse(weight, hessian, sizes, 4)
    # A tie may fall either way in float32, and what follows in its row then differs.
    same = torch.isclose(found.weight.double(), expected, atol=1e-3).all(1)
    assert int(same.sum()) >= 11


def test_diagonal_hessian_is_round_to_nearest() -> None:
    weight, _ = correlated(140)
    weight[:, 17] = 7 / 4  # with a largest magnitude of 7/4 the scale is 1/4, exact in FP16
    weight = weight.clamp(-7 / 4, 7 / 4)
    diagonal = torch.diag(torch.rand(140) + 0.5)
    found = gptq(weight, diagonal, [140], [4], symmetric=True)
    assert torch.equal(found.weight, rtn_symmetric(weight, 4))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_loses_less_than_round_to_nearest_on_its_grid(bits: int) -> None:
    weight, hessian = correlated(150)
    found = gptq(weight, hessian, [150], [bits])
    nearest = gptq(weight, torch.eye(150), [150], [bits])
    assert torch.equal(found.scale, nearest.scale)
    assert loss(weight, found.weight, hessian) < 0.8 * loss(weight, nearest.weight, hessian)


def test_channel_without_input_becomes_zero() -> None:
    weight, hessian = correlated(30)
    hessian[5], hessian[:, 5] = 0, 0
    assert torch.equal(gptq(weight, hessian, [30], [4]).weight[:, 5], torch.zeros(12))


def test_groups_of_bits_and_clipping() -> None:
    weight, hessian = correlated(30)
    found = gptq(weight, hessian, [20, 10], [3, 8], symmetric=True, clip=[0.5, 1.0])
    top = (weight[:, :20].abs().amax(1) * 0.5 / 3).half()
    assert torch.equal(found.scale[:, 0], top)
    assert found.code[:, :20].max() <= 7
    assert found.code.min() >= 1
    assert found.code[:, 20:].max() > 7


def test_searched_clipping_loses_least() -> None:
    x = torch.randn(6, 400, generator=torch.Generator().manual_seed(1))
    clip = best_clip(x, 3)
    least = (rtn_symmetric(x, 3, clip) - x).square().sum(1)
    for ratio in (1.0, 0.9, 0.7, 0.5, 0.3):
        assert bool((least <= (rtn_symmetric(x, 3, ratio) - x).square().sum(1) * 1.0001).all())
    assert float(clip.max()) < 1  # 3 bits of Gaussian values are always clipped


def test_order_of_columns_is_undone() -> None:
    weight, hessian = correlated(30)
    order = torch.randperm(30)
    stored = gptq(weight[:, order], hessian[order][:, order], [30], [8])
    back = dataclasses.replace(stored, order=order).weight
    assert float((back - weight).abs().max()) < 0.05


def test_hessian_is_of_inputs_behind_quantized_layers(tiny, tiny_windows) -> None:
    data = CalibrationData(tiny.model, tiny_windows)
    method = parse("gptq-like-w3a16")
    state = method.calibrate(data)
    name = "model.layers.1.self_attn.k_proj"
    with Site(tiny.model) as site:
        for each in [each for each in site.linears if each.startswith("model.layers.0.")]:
            site.weight(each, restored(state, each))
        hessian = data.accumulate("behind", lambda x: x.t() @ x, names=[name])[name]
    weight = data.linears[name].weight.detach()
    expected = gptq(weight, hessian, [36], [3])
    close = (expected.code == state[f"{name}.code"]).float().mean()
    assert float(close) > 0.99  # sums in another order
    unchanged = data.accumulate("before", lambda x: x.t() @ x, names=[name])[name]
    other = gptq(weight, unchanged, [36], [3])
    assert float((other.code == state[f"{name}.code"]).float().mean()) < 0.99


@pytest.mark.parametrize("text", ["", ":group=16", ":group=16,order=true", ":order=true"])
def test_eight_bits_are_close(tiny, tiny_windows, text: str) -> None:
    methods = parse_all(f"gptq-like-w8a16{text}")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    plain = evaluate(tiny, "fp32", parse_all("fp32"), tiny_windows, [{}])
    found = evaluate(tiny, "gptq", methods, tiny_windows, states)
    assert found.perplexity == pytest.approx(plain.perplexity, rel=0.02)
    assert found.bits["activations"] == found.bits["kv"] == 32


def test_bits_count_scales_zeros_and_order(tiny, tiny_windows) -> None:
    methods = parse_all("gptq-like-w4a16:group=16,order=true")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "gptq", methods, tiny_windows, states)
    # (N, K) of a layer's q, k, v, o, gate, up, down.
    stored = sum(n * k * 4 + n * -(-k // 16) * 20 + k * 16 for n, k in SHAPES)
    assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))


def test_a_row_of_zeros_stays() -> None:
    weight, hessian = correlated(30)
    weight[3] = 0
    back = gptq(weight, hessian, [30], [4]).weight
    assert torch.equal(back[3], torch.zeros(30))
    assert bool(torch.isfinite(back).all())


@pytest.mark.parametrize("text", ["w9a16", "w1a16", "w4a16:damping=0", "w4a16:group=-1"])
def test_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        parse(f"gptq-like-{text}")


def test_order_is_of_weight_and_hessian(tiny, tiny_windows):
    data = CalibrationData(tiny.model, tiny_windows)
    state = parse("gptq-like-w3a16:order=true").calibrate(data)
    hessian = data.accumulate("h", lambda x: x.t() @ x, names=[Q])[Q]
    order = hessian.diagonal().argsort(descending=True)
    weight = data.linears[Q].weight.detach()
    wanted = gptq(weight[:, order], hessian[order][:, order], [36], [3])
    assert float((wanted.code == state[f"{Q}.code"]).float().mean()) > 0.99
