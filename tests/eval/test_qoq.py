"""QoQ: integer steps that never leave INT8, factors that change nothing, orders, clips, bits.

Shown to fail with each of these faults:

- codes up to 127; a step that is not an integer; steps of 0, or rounded to nearest
- lambda of single elements, of other pairs, or of another head; k times lambda; no factor of q
- s of o and down with alpha and 1 - alpha exchanged, or with sums of heads in place of maxima
- an order that rises, that is undone wrongly, or of inputs before they are scaled
- codes of the unordered weight; the scale of rows left out
- a Hessian in another order; q and k clipped as the others are, or with the clip of most error
- one grid for all heads of a token; inputs with one scale for all tokens
- steps, zero points, scales or orders that are not counted
- hidden states of the first layer for all
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.fake.grids import uniform_grid
from golden.llm.eval.method import Site
from golden.llm.eval.state import calibrate
from golden.llm.methods import parse, parse_all
from golden.llm.methods.awq import RATIOS, in_groups, rtn_asymmetric
from golden.llm.methods.gptq import ragged
from golden.llm.methods.qoq import PROTECTED, attention_factors, eight_bits, integer_groups
from golden.llm.methods.rtn import rtn_symmetric
from golden.llm.patch import K, Patch
from tests.tiny import SHAPES, Q, logits, uneven_llama

LAYER = "model.layers.1"
OUT, DOWN = f"{LAYER}.self_attn.o_proj", f"{LAYER}.mlp.down_proj"
EXACT = "weight_bits=16,activation_bits=16,kv_bits=16"
PLAIN = "rotate=false,smooth=false,attention=false"


@pytest.fixture(scope="module")
def uneven():
    return uneven_llama().model


# ---- weights in two levels


def test_groups_by_hand() -> None:
    codes = torch.tensor([[-30.0, 15.0, 60.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-3.0, 1.0, 2.0, 3.0]])
    wanted = torch.tensor([[-30.0, 12.0, 60.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-3.0, 1.0, 2.0, 3.0]])
    assert torch.equal(integer_groups(codes), wanted)  # steps of 6, 1 and 1
    clipped = integer_groups(codes[:1], 0.5)  # steps of 3 from -15 to 30
    assert torch.equal(clipped, torch.tensor([[-15.0, 15.0, 30.0, 0.0]]))
    low = integer_groups(torch.tensor([[-119.0, -119.0, -60.0]]))  # steps of 8, z = 15
    assert torch.equal(low, torch.tensor([[-120.0, -120.0, -64.0]]))
    up = integer_groups(torch.tensor([[-22.0, -13.0, 0.0]]))  # a step of 2, which covers 22 / 15
    assert torch.equal(up, torch.tensor([[-22.0, -12.0, 0.0]]))


def all_ends(largest: int) -> Tensor:
    """(pairs, 2): every smallest and largest code of a group."""
    codes = torch.arange(-largest, largest + 1.0)
    return torch.cartesian_prod(codes, codes)


def test_groups_never_leave_int8() -> None:
    """It has every smallest and largest code, which bound the codes between, and all clips."""
    for ratio in RATIOS:
        found = integer_groups(all_ends(PROTECTED), ratio)
        assert torch.equal(found, found.round())
        assert float(found.abs().max()) <= 127
    # The range is protected for a reason: the ends -113 and 120 would give 128.
    assert float(integer_groups(torch.tensor([[-113.0, 120.0]])).max()) == 128


def test_adversarial_weights_never_leave_int8() -> None:
    """Values of 1e-30 next to 1e4, groups of one sign, rows of zeros, ends at half codes."""
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(200, 96, generator=generator) * torch.logspace(-8, 4, 200)[:, None]
    weight[0], weight[1] = 0, 1e-30
    weight[2:40] = weight[2:40].abs()
    weight[40:80, ::7] *= 1e4
    weight[80:120] = torch.randint(-119, 120, (40, 96), generator=generator) + 0.5
    codes, scale = eight_bits(weight)
    assert float(codes.abs().max()) == PROTECTED
    for size in (8, 32, 96):
        for ratio in (1.0, 0.55):
            clip = torch.full((200, 96 // size), ratio)
            found = in_groups(codes, [size] * (96 // size), clip, integer_groups)
            assert bool(torch.isfinite(found * scale).all())
            assert float(found.abs().max()) <= 127
            levels = [len(part.unique()) for row in found for part in row.split(size)]
            assert max(levels) <= 16


def test_eight_bits_are_round_to_nearest() -> None:
    weight = torch.tensor([[119 / 64, -1 / 64, 2.5 / 64, 0.0], [0.0, 0.0, 0.0, 0.0]])
    codes, scale = eight_bits(weight)
    assert torch.equal(codes, torch.tensor([[119.0, -1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    assert torch.equal(scale, torch.tensor([[1 / 64], [0.0]]))


def by_hand(weight: Tensor, order: Tensor, sizes: list[int], clip: Tensor) -> Tensor:
    """The equations of both levels, group by group, with float32 numbers one by one."""
    result = torch.empty_like(weight)
    for n, row in enumerate(weight):
        scale = (row.abs().max() / 119).half().float()
        codes = [max(-119, min(119, round(float(each / scale)))) for each in row]
        begin = 0
        for g, size in enumerate(sizes):
            columns = order[begin : begin + size].tolist()
            begin += size
            low = min(0, *(codes[k] for k in columns)) * clip[n, g]
            high = max(0, *(codes[k] for k in columns)) * clip[n, g]
            step = max(math.ceil(float((high - low) / 15)), 1)
            zero = round(float(-low / step))
            assert 0 <= zero <= 15
            for k in columns:
                q = max(0, min(15, round(codes[k] / step) + zero))
                result[n, k] = (q - zero) * step * scale
    return result


def test_installed_weights_by_hand(uneven, tiny_windows) -> None:
    method = parse(f"qoq:{PLAIN},group=16")
    data = CalibrationData(uneven, tiny_windows)
    state = method.calibrate(data)
    real = {name: linear.weight.detach() for name, linear in data.linears.items()}
    with Site(uneven) as site:
        method.install(site, state)
        for name in (Q, OUT, DOWN):
            order, clip = state[f"{name}.order"], state[f"{name}.clip"]
            wanted = by_hand(real[name], order, ragged(len(order), 16), clip)
            assert torch.equal(site.linears[name].weight, wanted), name


def test_a_scale_per_channel_alone(uneven, tiny_windows) -> None:
    """group=0: QServe's other format, which has no second level."""
    method = parse(f"qoq:{PLAIN},group=0,clip=false")
    data = CalibrationData(uneven, tiny_windows)
    state = method.calibrate(data)
    assert not any(name.endswith("order") for name in state)
    wanted = rtn_asymmetric(data.linears[Q].weight.detach(), 4)
    with Site(uneven) as site:
        method.install(site, state)
        assert torch.equal(site.linears[Q].weight, wanted)


# ---- what leaves the model as it is


SWITCHES = ("rotate", "smooth", "attention")


@pytest.mark.parametrize("only", [*SWITCHES, "all"])
def test_without_rounding_nothing_changes(uneven, tiny_windows, only: str) -> None:
    off = [f"{each}=false" for each in SWITCHES if only not in (each, "all")]
    method = parse(f"qoq:{','.join([EXACT, *off])}")
    state = method.calibrate(CalibrationData(uneven, tiny_windows))
    plain = logits(uneven, tiny_windows)
    found = logits(uneven, tiny_windows, method, state)
    assert 0 < float((plain - found).abs().max()) < 2e-5 * float(plain.abs().max())
    assert torch.equal(logits(uneven, tiny_windows), plain)


def test_factors_of_attention_by_hand() -> None:
    keys = torch.tensor([[4.0, 0.0, 9.0, 0.0, 16.0, 1.0], [1.0, 1.0, 1.0, 25.0, 0.0, 4.0]])
    found = attention_factors(keys, 0.5, 4)  # pairs 0, 2 and 1, 3; the others do not turn
    wanted = torch.tensor([[3.0, 1.0, 3.0, 1.0, 4.0, 1.0], [1.0, 5.0, 1.0, 5.0, 1.0, 2.0]])
    assert torch.equal(found, wanted)
    assert torch.equal(attention_factors(keys, 0.0, 4), torch.ones(2, 6))


def test_factors_of_attention_commute_with_rope(uneven, tiny_windows) -> None:
    """The rows of q and k may have them, before RoPE: K over lambda, and the same model."""
    data = CalibrationData(uneven, tiny_windows)
    state = parse("qoq").calibrate(data)
    plain, before = logits(uneven, tiny_windows), data.kv(tiny_windows[0])
    with Site(uneven) as site:
        attention: Any
        for i, attention in enumerate(site.attentions):
            factors = state[f"{i}.keys"]
            wide = factors.repeat_interleave(3, 0).flatten()
            for layer, s in ((attention.q_proj, wide), (attention.k_proj, 1 / factors.flatten())):
                site.parameter(layer, "weight", layer.weight.detach() * s[:, None])
                site.parameter(layer, "bias", layer.bias.detach() * s)
        after = data.kv(tiny_windows[0])
        changed = logits(uneven, tiny_windows)
    for i, ((k, _), (scaled, _)) in enumerate(zip(before, after, strict=True)):
        factors = state[f"{i}.keys"]
        assert torch.allclose(k / factors.flatten(), scaled, rtol=1e-4, atol=1e-5)
        largest = torch.stack([data.kv(ids)[i][0].abs().amax(0) for ids in tiny_windows]).amax(0)
        even = (largest / factors.flatten() ** 2).reshape(3, 2, 4).amax(1)
        assert torch.allclose(even, torch.ones(3, 4), rtol=1e-4)
    assert float((plain - changed).abs().max()) < 2e-5 * float(plain.abs().max())


def test_smoothing_of_outputs_by_hand(uneven, tiny_windows) -> None:
    data = CalibrationData(uneven, tiny_windows)
    state = parse("qoq:rotate=false,alpha=0.25").calibrate(data)
    largest = data.accumulate("m", lambda x: x.abs().amax(0), torch.maximum)
    down = data.linears[DOWN].weight.detach().abs().amax(0)
    wanted = largest[DOWN] ** 0.25 / down**0.75
    assert torch.allclose(state[f"{DOWN}.rows"], wanted, rtol=1e-5)
    x, w = (
        each.reshape(3, 3, 8).amax(1).flatten()  # of the three query heads that share one of V
        for each in (largest[OUT], data.linears[OUT].weight.detach().abs().amax(0))
    )
    assert torch.allclose(state[f"{OUT}.rows"], x**0.25 / w**0.75, rtol=1e-5)


def test_rotated_inputs_alone(uneven, tiny_windows) -> None:
    """Inputs of o and down are those of the model; those of the others are rotated."""
    method = parse(f"qoq:{EXACT},smooth=false,attention=false")
    data = CalibrationData(uneven, tiny_windows)
    state = method.calibrate(data)
    plain = data.inputs(tokens=96)
    with Site(uneven) as site:
        method.install(site, state)
        turned = data.inputs(tokens=95)  # another number: not the same step
    for name in plain:
        same = torch.allclose(plain[name].x[:31], turned[name].x[:31], atol=1e-3)
        assert same == name.endswith(("o_proj", "down_proj")), name


# ---- order and clips


def test_channels_fall_in_their_scaled_magnitude(uneven, tiny_windows) -> None:
    method = parse("qoq:group=16,clip=false")
    data = CalibrationData(uneven, tiny_windows)
    state = method.calibrate(data)
    with Site(uneven) as site:
        parse(f"qoq:{EXACT},group=16").install(site, state)
        largest = CalibrationData(uneven, tiny_windows).accumulate(
            "m", lambda x: x.abs().amax(0), torch.maximum
        )
    for name in data.linears:
        ordered = largest[name][state[f"{name}.order"].long()]
        assert bool((ordered[1:] <= ordered[:-1] * 1.0001).all()), name
    unordered = parse("qoq:group=16,reorder=false").calibrate(data)
    assert not any(name.endswith("order") for name in unordered)


def test_clips_lose_no_more_than_none(uneven, tiny_windows) -> None:
    """Each group of a row has the clip of least error of its part of the output."""
    method = parse(f"qoq:{PLAIN},group=16")
    data = CalibrationData(uneven, tiny_windows)
    state = method.calibrate(data)
    x = data.inputs([DOWN], tokens=96)[DOWN].x
    weight = data.linears[DOWN].weight.detach()
    order, clip = state[f"{DOWN}.order"].long(), state[f"{DOWN}.clip"]
    codes, scale = eight_bits(weight[:, order])
    begin, gained = 0, 0
    for g, size in enumerate(ragged(len(order), 16)):
        part = codes[:, begin : begin + size]
        inputs = x[:, order[begin : begin + size]]
        begin += size
        losses = torch.stack([
            ((integer_groups(part, ratio) - part) @ inputs.t()).square().sum(1) for ratio in RATIOS
        ])  # fmt: skip
        own = ((integer_groups(part, clip[:, g : g + 1]) - part) @ inputs.t()).square().sum(1)
        assert bool((own <= losses.amin(0) * 1.001 + 1e-3).all())
        gained += int((own < losses[0] * 0.999).sum())
    assert gained > 10
    assert bool((scale > 0).all())


def test_one_clip_of_q_and_k_by_the_output_of_attention(uneven, tiny_windows) -> None:
    method = parse(f"qoq:{PLAIN},group=16,reorder=false")
    data = CalibrationData(uneven, tiny_windows)
    state = method.calibrate(data)
    names = [f"{LAYER}.self_attn.{each}_proj" for each in "qk"]

    def run(ratio: float) -> Tensor:
        seen: list[Tensor] = []

        def keep(y):
            seen.append(y[0])
            return y

        with torch.no_grad(), Patch(uneven) as patch:
            patch.output(uneven.get_submodule(f"{LAYER}.self_attn"), keep)
            for name in names if ratio else ():
                weight = data.linears[name].weight.detach()
                clip = torch.full((len(weight), 3), ratio)
                order = torch.arange(36)
                patch.weight(name, by_hand(weight, order, [16, 16, 4], clip))
            for ids in tiny_windows:
                uneven(ids[None], use_cache=False)
        return torch.cat(seen)

    wanted = run(0)  # as they are
    losses = [float((run(ratio) - wanted).square().sum()) for ratio in RATIOS]
    best = RATIOS[losses.index(min(losses))]
    for name in names:
        found = state[f"{name}.clip"]
        assert torch.allclose(found, torch.full_like(found, best))
    assert len(state[f"{OUT}.clip"].unique()) > 2


# ---- inputs, K and V


def test_inputs_of_eight_bits_per_token(uneven, tiny_windows) -> None:
    method = parse(f"qoq:weight_bits=16,kv_bits=16,{PLAIN}")
    state = method.calibrate(CalibrationData(uneven, tiny_windows))
    data = CalibrationData(uneven, tiny_windows)
    x = data.inputs([Q], tokens=96)[Q].x
    with Site(uneven) as site:
        method.install(site, state)
        found = CalibrationData(uneven, tiny_windows).inputs([Q], tokens=96)[Q].x
    assert torch.equal(found, rtn_symmetric(x, 8))


def test_keys_and_values_on_a_grid_per_head(uneven, tiny_windows) -> None:
    method = parse("qoq:weight_bits=16,activation_bits=16,rotate=false,smooth=false")
    data = CalibrationData(uneven, tiny_windows)
    state = method.calibrate(data)
    k, v = (each.reshape(32, 3, 8) for each in data.kv(tiny_windows[0])[0])
    seen: dict[tuple[int, int], Tensor] = {}
    with Site(uneven) as site:
        method.install(site, state)
        site.kv(lambda layer, kv, x: seen.setdefault((layer, kv), x))
        logits(uneven, tiny_windows[:1])
    for kv, x in enumerate((k / state["0.keys"], v)):
        wanted = uniform_grid(x, 4, -1)
        assert torch.allclose(seen[0, kv][0].reshape(32, 3, 8), wanted, atol=1e-5), kv
        assert len(seen[0, kv][0, 5, :8].unique()) <= 16
    assert not torch.allclose(state["0.keys"], torch.ones(3, 8), atol=0.1)
    assert K == 0


# ---- bits and refusals


def test_bits_count_both_levels_and_orders(tiny, tiny_windows) -> None:
    methods = parse_all("qoq:group=16")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "qoq", methods, tiny_windows, states)
    # A group: step of 8 bits, zero point of 4. A row: FP16 scale. A channel: 16 bits of its index.
    stored = sum(n * k * 4 + n * -(-k // 16) * 12 + n * 16 + k * 16 for n, k in SHAPES)
    assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))
    assert found.bits["activations"] == pytest.approx(
        sum(8 * k + 16 for _, k in SHAPES) / sum(k for _, k in SHAPES)
    )
    assert found.bits["kv"] == pytest.approx(4 + 32 / 8)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("qoq:group=16,reorder=false", [4, 12, 16, 0]),
        ("qoq:group=0", [4, 0, 20, 0]),
        ("qoq:weight_bits=16,kv_bits=8", None),
    ],
)
def test_bits_of_variants(tiny, tiny_windows, text: str, stored: list[int] | None) -> None:
    methods = parse_all(text)
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "qoq", methods, tiny_windows, states)
    if stored is None:
        assert found.bits["weights"] == 32
        assert found.bits["kv"] == pytest.approx(8 + 32 / 8)
        return
    code, group, row, channel = stored
    total = sum(n * k * code + n * -(-k // 16) * group + n * row + k * channel for n, k in SHAPES)
    assert found.bits["weights"] == pytest.approx(total / sum(n * k for n, k in SHAPES))


def test_one_calibration_serves_every_run() -> None:
    one, other = parse("qoq"), parse("qoq:activation_bits=16,kv_bits=16")
    assert one.calibration_fields() == other.calibration_fields()
    assert one.calibration_fields() != parse("qoq:group=64").calibration_fields()


@pytest.mark.parametrize(
    "text",
    [
        "weight_bits=8", "activation_bits=4", "kv_bits=5", "group=-1", "alpha=2", "rotate=perhaps",
        "smooth=false,alpha=0.5", "attention=false,attention_alpha=0.25",
    ],
)  # fmt: skip
def test_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="must be") as caught:
        parse(f"qoq:{text}")
    assert len(str(caught.value).splitlines()) == 1
