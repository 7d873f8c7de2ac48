"""SmoothQuant: moving scales changes nothing, and moves what it should."""

import pytest
import torch

from golden.config import ConfigError
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.methods import parse, parse_all
from golden.llm.methods.rtn import rtn_symmetric
from golden.llm.methods.smoothquant import migration
from tests.tiny import SHAPES, logits, uneven_llama


def test_migration() -> None:
    activation = torch.tensor([16.0, 4.0, 0.0, 1.0])
    weights = [torch.tensor([[1.0, -2.0, 1.0, 0.0]]), torch.tensor([[-4.0, 1.0, 1.0, 0.0]])]
    assert torch.equal(migration(activation, weights, 0.5), torch.tensor([2.0, 2.0**0.5, 1.0, 1.0]))
    assert torch.equal(migration(activation, weights, 1.0)[:2], activation[:2])


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("scope", ["norms", "all"])
def test_smoothing_alone_changes_nothing(tiny_windows, scope: str, alpha: float) -> None:
    model = uneven_llama().model
    method = parse(f"smoothquant-w16a16:alpha={alpha},scope={scope}")
    state = method.calibrate(CalibrationData(model, tiny_windows))
    plain = logits(model, tiny_windows)
    smooth = logits(model, tiny_windows, method, state)
    assert float((plain - smooth).abs().max()) < 2e-5 * float(plain.abs().max())
    assert torch.equal(logits(model, tiny_windows), plain)


def test_all_difficulty_in_the_weights(tiny, tiny_windows) -> None:
    """alpha 1: every channel that a smoothed layer reads is at most 1, and reaches it."""
    data = CalibrationData(tiny.model, tiny_windows)
    method = parse("smoothquant-w16a16:alpha=1,scope=all")
    state = method.calibrate(data)
    with Site(tiny.model) as site:
        method.install(site, state)
        after = CalibrationData(tiny.model, tiny_windows).accumulate(
            "after", lambda x: x.abs().amax(0), torch.maximum
        )
    for name, value in after.items():
        assert torch.allclose(value, torch.ones_like(value), atol=1e-4), name


def test_only_smoothed_layers_change(tiny, tiny_windows) -> None:
    method = parse("smoothquant-w4a16")
    state = method.calibrate(CalibrationData(tiny.model, tiny_windows))
    before = dict(tiny.model.named_parameters())
    with Site(tiny.model) as site:
        method.install(site, state)
        for name, linear in site.linears.items():
            nearest = rtn_symmetric(before[f"{name}.weight"].detach(), 4)
            smoothed = not name.endswith(("o_proj", "down_proj"))
            assert torch.equal(linear.weight, nearest) is not smoothed, name


def test_scaled_rows_round_alike(tiny, tiny_windows) -> None:
    """down_proj's scales sit in up_proj's rows: the codes of up_proj do not change."""
    states = {}
    for scope in ("norms", "all"):
        method = parse(f"smoothquant-w4a16:scope={scope}")
        state = method.calibrate(CalibrationData(tiny.model, tiny_windows))
        with Site(tiny.model) as site:
            method.install(site, state)
            weight = site.linears["model.layers.1.mlp.up_proj"].weight.detach()
            states[scope] = (weight / weight.abs().amax(1, keepdim=True) * 7).round()
    assert torch.equal(states["norms"], states["all"])


def test_bits(tiny, tiny_windows) -> None:
    methods = parse_all("smoothquant-w4a3")
    state = methods[0].calibrate(CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "smoothquant", methods, tiny_windows, [state])
    reference = evaluate(tiny, "rtn", parse_all("rtn-w4a3"), tiny_windows, [{}])
    assert found.bits == reference.bits
    assert found.perplexity != reference.perplexity


def test_one_calibration_serves_every_alpha() -> None:
    one, other = parse("smoothquant-w4a4"), parse("smoothquant-w8a8:alpha=0.8,scope=all")
    assert one.calibration_fields() == other.calibration_fields()


@pytest.mark.parametrize("text", ["w4a4:alpha=1.5", "w1a4", "w4a17", "w4a4:scope=some"])
def test_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        parse(f"smoothquant-{text}")


def test_scales_at_the_input_are_counted(tiny, tiny_windows):
    methods = parse_all("smoothquant-w4a4:scope=all")
    state = methods[0].calibrate(CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "", methods, tiny_windows, [state])
    stored = sum(n * k * 4 + n * 16 for n, k in SHAPES) + 72 * 16
    assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))
