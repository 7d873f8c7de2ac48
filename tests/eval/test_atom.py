"""Atom-like groups: ragged sizes, outliers in INT8, channels in order of calibration."""

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.eval.state import calibrate
from golden.llm.methods import parse, parse_all
from golden.llm.methods.atom import Groups
from golden.llm.methods.rtn import rtn_symmetric
from tests.tiny import SHAPES, Q, logits, uneven_llama


@pytest.mark.parametrize(
    ("groups", "sizes", "bits"),
    [
        (Groups(576, 18, 128, 4), [128] * 4 + [46, 18], [4] * 5 + [8]),
        (Groups(36, 0, 16, 4), [16, 16, 4], [4, 4, 4]),
        (Groups(36, 20, 16, 3), [16, 16, 4], [3, 8, 8]),
        (Groups(36, 36, 16, 3), [16, 16, 4], [8, 8, 8]),
        (Groups(36, 4, 0, 4), [32, 4], [4, 8]),
        (Groups(8, 2, 128, 4), [6, 2], [4, 8]),
    ],
)
def test_groups(groups: Groups, sizes: list[int], bits: list[int]) -> None:
    assert groups.sizes == sizes
    assert groups.of_each(groups.bits, 8) == bits
    stored = sum(size * b + 16 for size, b in zip(sizes, bits, strict=True))
    assert groups.mean_bits == pytest.approx(stored / groups.width)


@pytest.mark.parametrize("outliers", [0, 5, 20, 50])
@pytest.mark.parametrize("size", [0, 7, 16, 64])
def test_every_group_is_rounded_on_its_own(outliers: int, size: int) -> None:
    groups = Groups(50, outliers, size, 4)
    x = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0)).exp()
    expected = [
        rtn_symmetric(part, bits, 0.9 if bits == 4 else 1.0)
        for part, bits in zip(x.split(groups.sizes, -1), groups.of_each(4, 8), strict=True)
    ]
    assert torch.equal(groups.round(x, 0.9), torch.cat(expected, -1))


def test_order_alone_changes_nothing(tiny_windows) -> None:
    model = uneven_llama().model
    method = parse("atom-like-w16a16")
    plain = logits(model, tiny_windows)
    state = method.calibrate(CalibrationData(model, tiny_windows))
    ordered = logits(model, tiny_windows, method, state)
    assert 0 < float((plain - ordered).abs().max()) < 2e-5 * float(plain.abs().max())
    assert torch.equal(logits(model, tiny_windows), plain)


def test_largest_channels_are_the_outliers(tiny, tiny_windows) -> None:
    data = CalibrationData(tiny.model, tiny_windows)
    state = parse("atom-like-w4a4").calibrate(data)
    inputs = data.inputs(tokens=96)  # all there are
    for name, each in inputs.items():
        power = each.x.double().square().sum(0)
        ordered = power[state[f"{name}.reorder"].long()]
        assert bool((ordered.diff() >= -1e-6 * ordered[1:]).all()), name
        assert sorted(state[f"{name}.reorder"].tolist()) == list(range(each.x.shape[1]))


def test_layer_by_hand(tiny, tiny_windows) -> None:
    """Input and weight of one layer, group by group, in the original order of channels."""
    method = parse("atom-like-w4a3:group=10,share=0.25,activation_clip=0.8,weight_clip=0.7")
    state = method.calibrate(CalibrationData(tiny.model, tiny_windows))
    name = "model.layers.0.mlp.gate_proj"
    order = state[f"{name}.reorder"].long()
    weight = dict(tiny.model.named_parameters())[f"{name}.weight"].detach()
    x = torch.randn(2, 5, 36, generator=torch.Generator().manual_seed(1))

    def by_hand(value: Tensor, bits: int, clip: float) -> Tensor:
        back = torch.empty_like(value)
        for begin, end, outlier in ((0, 10, 0), (10, 20, 0), (20, 27, 0), (27, 36, 1)):
            places = order[begin:end]
            part = value[..., places]
            own = (8, 1.0) if outlier else (bits, clip)
            back[..., places] = rtn_symmetric(part, *own)
        return back

    expected = by_hand(x, 3, 0.8) @ by_hand(weight, 4, 0.7).t()
    with torch.no_grad(), Site(tiny.model) as site:
        method.install(site, state)
        found = site.linears[name](x)
    assert torch.allclose(found, expected, atol=1e-5)


def test_gptq_loses_less_than_rounding(tiny, tiny_windows) -> None:
    """On the Hessian of the layer that sees unchanged inputs, at equal groups."""
    data = CalibrationData(tiny.model, tiny_windows)
    hessians = data.accumulate("hessian", lambda x: x.t() @ x)
    before = {name: linear.weight.detach().clone() for name, linear in data.linears.items()}
    losses = {}
    for rounding in ("rtn", "gptq"):
        method = parse(f"atom-like-w3a16:group=16,rounding={rounding}")
        state = method.calibrate(data)
        with Site(tiny.model) as site:
            method.install(site, state)
            for kind in ("self_attn.q_proj", "mlp.gate_proj"):
                name = f"model.layers.0.{kind}"
                back = torch.empty_like(site.linears[name].weight)
                back[:, state[f"{name}.reorder"].long()] = site.linears[name].weight.detach()
                error = back.detach() - before[name]
                losses[rounding, kind] = float(((error @ hessians[name]) * error).sum())
    assert losses["gptq", "self_attn.q_proj"] < losses["rtn", "self_attn.q_proj"]
    assert losses["gptq", "mlp.gate_proj"] < losses["rtn", "mlp.gate_proj"]


@pytest.mark.parametrize("rounding", ["rtn", "gptq"])
def test_bits(tiny, tiny_windows, rounding: str) -> None:
    methods = parse_all(f"atom-like-w4a3:group=16,share=0.1,rounding={rounding}")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "atom", methods, tiny_windows, states)
    stored = read = 0
    for n, k in SHAPES:
        outliers = round(0.1 * k)
        scales = -(-(k - outliers) // 16) + -(-outliers // 16)
        stored += n * ((k - outliers) * 4 + outliers * 8 + scales * 16) + 16 * k
        read += (k - outliers) * 3 + outliers * 8 + scales * 16
    assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))
    assert found.bits["activations"] == pytest.approx(read / sum(k for _, k in SHAPES))


@pytest.mark.parametrize(
    "text", ["w1a4", "w4a4:share=2", "w4a4:group=-1", "w4a4:weight_clip=0", "w9a4:rounding=gptq"]
)
def test_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        parse(f"atom-like-{text}")


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_clips_the_inliers_only(bits, tiny, tiny_windows):
    data = CalibrationData(tiny.model, tiny_windows)
    one, half = (
        parse(f"atom-like-w{bits}a16:rounding=gptq,group=0,weight_clip={clip}").calibrate(data)
        for clip in (1.0, 0.5)
    )
    a, b = (each[f"{Q}.scale"].float() for each in (one, half))
    assert torch.allclose(b[:, 0], a[:, 0] / 2, rtol=2e-3)
    assert bool((b[:, 1] > 0.6 * a[:, 1]).float().mean() > 0.5)
