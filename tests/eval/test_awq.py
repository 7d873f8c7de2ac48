"""AWQ: scales that change nothing, searches against brute force, rounding, bits.

Shown to fail with each of these faults:

- one clip for all groups; a range without 0
- scales without the square root, or with the reciprocal; channels that are always 0 scaled by 0
- s in the norm instead of 1 / s; no 1 / s in the rows before, or in their biases
- query heads of another group that share s; the largest of their magnitudes
- the alpha of most error; the error of one window, of v alone, or of attention for the network
- clips of the unscaled weight, of its unscaled inputs, or of most error; q and k clipped
- hidden states of the first layer for all; zero points not counted

A router without s is seen by tests/eval/test_families.py.
"""

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.eval.state import calibrate
from golden.llm.folding import for_columns, for_rows
from golden.llm.methods import parse, parse_all
from golden.llm.methods.awq import (
    RATIOS,
    best_clips,
    importance_scales,
    in_groups,
    output_loss,
    rtn_asymmetric,
)
from golden.llm.methods.gptq import gptq, ragged
from golden.llm.patch import Patch
from tests.tiny import SHAPES, logits, uneven_llama

LAYER = "model.layers.1"
V, OUT, DOWN = (f"{LAYER}.{name}_proj" for name in ("self_attn.v", "self_attn.o", "mlp.down"))


@pytest.fixture(scope="module")
def uneven():
    return uneven_llama().model


def installed(model, method, state) -> dict[str, Tensor]:
    with Site(model) as site:
        method.install(site, state)
        return {name: linear.weight.detach().clone() for name, linear in site.linears.items()}


def four_bits(x: Tensor, clip: float | Tensor = 1.0) -> Tensor:
    return rtn_asymmetric(x, 4, clip)


# ---- the format


def test_rounding_by_hand() -> None:
    x = torch.tensor([[-1.0, 0.5, 2.0], [0.0, 0.0, 0.0], [1.5, 2.5, 3.0], [-3.0, -1.0, -0.4]])
    wanted = [[-1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [2.0, 2.0, 3.0], [-3.0, -1.0, 0.0]]
    assert torch.equal(rtn_asymmetric(x, 2), torch.tensor(wanted))
    half = rtn_asymmetric(x[:1], 2, 0.5)  # steps of 1/2 from -1/2 to 1
    assert torch.equal(half, torch.tensor([[-0.5, 0.5, 1.0]]))
    each = rtn_asymmetric(x[[0, 0]], 2, torch.tensor([[1.0], [0.5]]))
    assert torch.equal(each, torch.tensor([wanted[0], [-0.5, 0.5, 1.0]]))


@pytest.mark.parametrize("group", [0, 16, 40])
@pytest.mark.parametrize("bits", [3, 4])
def test_without_scales_and_clips_it_is_round_to_nearest(tiny, tiny_windows, group, bits) -> None:
    """GPTQ with the unit matrix as its Hessian rounds to nearest on the same grid."""
    method = parse(f"awq{bits}:alpha=0,clip=false,group={group}")
    state = method.calibrate(CalibrationData(tiny.model, tiny_windows))
    with Patch(tiny.model) as patch:
        for name, found in installed(tiny.model, method, state).items():
            weight = patch.linears[name].weight.detach()
            sizes = ragged(weight.shape[1], group)
            wanted = gptq(weight, torch.eye(len(weight[0])), sizes, [bits] * len(sizes), damping=0)
            assert torch.equal(found, wanted.weight), name


def test_groups_have_their_own_clips() -> None:
    x = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))
    clip = torch.rand(5, 3, generator=torch.Generator().manual_seed(1)) / 2 + 0.5
    found = in_groups(x, [4, 4, 2], clip, four_bits)
    for row in range(5):
        for g, own in enumerate((slice(0, 4), slice(4, 8), slice(8, 10))):
            wanted = rtn_asymmetric(x[row, own], 4, float(clip[row, g]))
            assert torch.allclose(found[row, own], wanted, atol=1e-6)


# ---- scales


def test_scales_by_hand() -> None:
    magnitude = torch.tensor([4.0, 1.0, 0.0, 16.0])
    found = importance_scales(magnitude, 0.5)
    assert torch.equal(found, torch.tensor([1.0, 0.5, 1.0, 2.0]))
    assert torch.allclose(importance_scales(7 * magnitude, 0.5), found)
    assert torch.equal(importance_scales(magnitude, 0.0), torch.ones(4))
    assert torch.equal(importance_scales(torch.zeros(4), 0.5), torch.ones(4))


def test_query_heads_that_share_a_head_of_v_share_scales(tiny) -> None:
    """9 heads of 8, 3 of V: query heads 0 to 2 read the first."""
    attention = tiny.model.model.layers[0].self_attn
    rows = torch.arange(24.0)
    columns = for_columns(attention, rows, 72)
    for head in range(9):
        own = slice(8 * (head // 3), 8 * (head // 3) + 8)
        assert torch.equal(columns[8 * head : 8 * head + 8], rows[own])
    assert torch.equal(for_rows(attention, columns, 24), rows[:, None].expand(24, 3))
    by_head = for_rows(attention, torch.arange(72.0), 24)
    assert by_head[9].tolist() == [25.0, 33.0, 41.0]  # element 1 of heads 3, 4 and 5
    assert torch.equal(for_columns(attention, rows, 24), rows)
    assert torch.equal(for_rows(attention, rows, 24), rows[:, None])


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_scales_alone_change_nothing(uneven, tiny_windows, alpha: float) -> None:
    """The model has biases, norms that are nowhere 1, and shared heads of V."""
    method = parse(f"awq16:alpha={alpha}")
    state = method.calibrate(CalibrationData(uneven, tiny_windows))
    plain = logits(uneven, tiny_windows)
    scaled = logits(uneven, tiny_windows, method, state)
    assert 0 < float((plain - scaled).abs().max()) < 1e-5 * float(plain.abs().max())
    assert torch.equal(logits(uneven, tiny_windows), plain)
    for name, s in state.items():
        assert float(s.max() / s.min()) > 1.5, name  # else nothing is tested


def test_scaled_inputs_are_even(uneven, tiny_windows) -> None:
    """alpha 1: the mean magnitudes of what norms give, and of what down reads, are alike."""
    method = parse("awq16:alpha=1")
    state = method.calibrate(CalibrationData(uneven, tiny_windows))
    with Site(uneven) as site:
        method.install(site, state)
        after = CalibrationData(uneven, tiny_windows).accumulate("m", lambda x: x.abs().sum(0))
    for name, value in after.items():
        if not name.endswith("o_proj"):  # whose scales three heads share
            assert torch.allclose(value, value[:1].expand_as(value), rtol=1e-3), name


# ---- searches


def brute_force(model, windows, names: list[str], place: str, total: Tensor) -> Tensor:
    """s of least error of a module's output in the whole model, with weights put by hand."""

    def run() -> Tensor:
        seen: list[Tensor] = []

        def keep(y):
            seen.append(y[0] if isinstance(y, tuple) else y)
            return y

        with torch.no_grad(), Patch(model) as patch:
            patch.output(model.get_submodule(place), keep)
            for ids in windows:
                model(ids[None], use_cache=False)
        return torch.cat(seen)

    wanted, best, least = run(), None, float("inf")
    for i in range(20):
        power = total.double() ** (i / 20)
        s = (power / (power.max() * power.min()).sqrt()).float()
        with Patch(model) as patch:
            for name in names:
                weight = patch.linears[name].weight.detach()
                patch.weight(name, in_groups(weight * s, [16, 16, 4], None, four_bits) / s)
            loss = float((run() - wanted).square().sum())
        if loss < least:
            best, least = s, loss
    assert best is not None
    return best


@pytest.mark.parametrize(
    ("place", "module", "names"),
    [
        ("attention", "self_attn", ["self_attn.q", "self_attn.k", "self_attn.v"]),
        ("network", "mlp", ["mlp.gate", "mlp.up"]),
    ],
)
def test_alpha_is_of_least_error_of_the_half(uneven, tiny_windows, place, module, names) -> None:
    data = CalibrationData(uneven, tiny_windows)
    names = [f"{LAYER}.{name}_proj" for name in names]
    state = parse("awq4:group=16").calibrate(data)
    total = data.accumulate("m", lambda x: x.abs().sum(0))[names[0]]
    wanted = brute_force(uneven, tiny_windows, names, f"{LAYER}.{module}", total)
    assert torch.allclose(state[f"{LAYER}.{place}"], wanted, rtol=1e-5)


@pytest.mark.parametrize("name", [OUT, DOWN])
def test_alpha_is_of_least_error_of_the_layer(uneven, tiny_windows, name: str) -> None:
    data = CalibrationData(uneven, tiny_windows)
    state = parse("awq4:group=16").calibrate(data)
    x = data.inputs([name], tokens=96)[name].x
    weight = data.linears[name].weight.detach()
    attention = uneven.model.layers[1].self_attn
    rows = len(state[f"{name}.rows"])
    magnitude = for_rows(attention, x.abs().mean(0), rows).mean(1)
    losses = {}
    for i in range(20):
        s = importance_scales(magnitude, i / 20)
        wide = for_columns(attention, s, len(x[0]))
        changed = in_groups(weight * wide, ragged(len(wide), 16), None, four_bits) / wide
        losses[i] = float((x @ (changed - weight).t()).square().sum())
    best = min(losses, key=lambda i: losses[i])
    wanted = importance_scales(magnitude, best / 20)
    assert torch.allclose(state[f"{name}.rows"], wanted, rtol=1e-4)
    assert best > 0


@pytest.mark.parametrize("bits", [2, 4])
def test_clips_are_the_best_of_their_groups(bits: int) -> None:
    """Each loses least of its part of the output, so none loses more than without clipping."""
    generator = torch.Generator().manual_seed(bits)
    x = torch.randn(50, 20, generator=generator) * torch.rand(20, generator=generator)
    weight = torch.randn(6, 20, generator=generator) ** 3
    sizes = [8, 8, 4]

    def rounded(w: Tensor, clip: float | Tensor) -> Tensor:
        return rtn_asymmetric(w, bits, clip)

    found = best_clips(weight, x.t() @ x, sizes, rounded)
    begin = 0
    for g, size in enumerate(sizes):
        own = slice(begin, begin + size)
        begin += size
        losses = torch.stack([
            ((rounded(weight[:, own], ratio) - weight[:, own]) @ x[:, own].t()).square().sum(1)
            for ratio in RATIOS
        ])  # fmt: skip
        chosen = torch.tensor([RATIOS.index(round(float(c), 2)) for c in found[:, g]])
        taken = losses.gather(0, chosen[None])[0]
        assert bool((taken <= losses.amin(0) * 1.0001).all())
        assert bool((taken <= losses[0]).all())
    assert bool((found < 1).any())


def test_clips_are_of_scaled_weights_and_unquantized_inputs(uneven, tiny_windows) -> None:
    data = CalibrationData(uneven, tiny_windows)
    state = parse("awq3:group=16").calibrate(data)
    hessian = data.accumulate("h", lambda x: x.t() @ x, names=[V])[V]
    s = state[f"{LAYER}.attention"]
    weight = data.linears[V].weight.detach() * s
    wanted = best_clips(
        weight, hessian / torch.outer(s, s), [16, 16, 4], lambda w, clip: rtn_asymmetric(w, 3, clip)
    )
    same = state[f"{V}.clip"] == wanted
    assert float(same.float().mean()) > 0.97  # sums in another order
    assert bool((wanted < 1).any())


def test_q_and_k_are_not_clipped(uneven, tiny_windows) -> None:
    method = parse("awq3:group=16")
    state = method.calibrate(CalibrationData(uneven, tiny_windows))
    clipped = {name.removesuffix(".clip") for name in state if name.endswith(".clip")}
    with Site(uneven) as site:
        every = set(site.linears)
    assert every - clipped == {name for name in every if name.endswith(("q_proj", "k_proj"))}
    found = installed(uneven, method, state)
    with Site(uneven) as site:
        parse("awq16:alpha=0.5").install(site, state)
        for name in (V, OUT, DOWN, f"{LAYER}.self_attn.q_proj"):
            weight = site.linears[name].weight.detach()
            sizes = ragged(weight.shape[1], 16)
            wanted = in_groups(
                weight, sizes, state.get(f"{name}.clip"), lambda w, c: rtn_asymmetric(w, 3, c)
            )
            assert torch.equal(found[name], wanted), name


def test_search_loses_less_than_round_to_nearest(uneven, tiny_windows) -> None:
    """On the calibration's text, as the error of the layer's own output."""
    data = CalibrationData(uneven, tiny_windows)
    method = parse("awq4:group=16")
    state = method.calibrate(data)
    hessian = data.accumulate("h", lambda x: x.t() @ x, names=[DOWN])[DOWN]
    weight = data.linears[DOWN].weight.detach()
    s = state[f"{DOWN}.rows"]
    found = installed(uneven, method, state)[DOWN] / s
    nearest = in_groups(weight, ragged(len(s), 16), None, four_bits)
    assert output_loss(weight, found, hessian).sum() < output_loss(weight, nearest, hessian).sum()


# ---- bits and refusals


def test_bits_count_scales_and_zeros(tiny, tiny_windows) -> None:
    methods = parse_all("awq3:group=16,alpha=0.5")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "awq", methods, tiny_windows, states)
    stored = sum(n * k * 3 + n * -(-k // 16) * (16 + 3) for n, k in SHAPES)
    assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))
    assert found.bits["activations"] == found.bits["kv"] == 32


def test_eight_bits_are_close(tiny, tiny_windows) -> None:
    methods = parse_all("awq8:group=16")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    plain = evaluate(tiny, "fp32", parse_all("fp32"), tiny_windows, [{}])
    found = evaluate(tiny, "awq", methods, tiny_windows, states)
    assert found.perplexity == pytest.approx(plain.perplexity, rel=0.02)


@pytest.mark.parametrize(
    "text", ["1", "9", "17", "4:alpha=-0.5", "4:alpha=1.5", "4:group=-1", "4:clip=some"]
)
def test_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="must be") as caught:
        parse(f"awq{text}")
    assert len(str(caught.value).splitlines()) == 1


def test_it_cannot_follow_another_order_of_channels() -> None:
    with pytest.raises(ConfigError, match="awq4 cannot stand behind atom-like-w16a16"):
        parse_all("atom-like-w16a16+awq4")
