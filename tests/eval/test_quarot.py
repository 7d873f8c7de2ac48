"""QuaRot: matrices that are orthogonal, a model that does not feel them, and what they are for."""

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm import checkpoint
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.eval.state import calibrate
from golden.llm.methods import parse, parse_all
from golden.llm.methods.rtn import best_clip, rtn_symmetric
from golden.rotation import Rotation, factors, hadamard, paley, small_matrix
from tests.tiny import Q, logits, uneven_llama


def matrix(width: int, signs: Tensor | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rotation = Rotation(width, small_matrix(width, generator), signs)
    return rotation(torch.eye(width, dtype=torch.float64))


def test_paley_gives_hadamard_matrices() -> None:
    orders = [order for order in range(1, 70) if paley(order) is not None]
    # Of multiples of 4, those with a prime q; 16, 40, 52, 56, 64 need other constructions.
    assert orders == [4, 8, 12, 20, 24, 28, 32, 36, 44, 48, 60, 68]
    for order in orders:
        found = paley(order)
        assert found is not None
        assert torch.equal(found.abs(), torch.ones_like(found))
        assert torch.equal(found @ found.t(), order * torch.eye(order, dtype=torch.float64))


def test_sylvester_is_the_recursive_transform() -> None:
    for order in (1, 2, 16):
        found = hadamard(order)
        signs = [[(-1.0) ** (i & j).bit_count() for j in range(order)] for i in range(order)]
        assert torch.equal(found, torch.tensor(signs, dtype=torch.float64))


@pytest.mark.parametrize(
    ("width", "expected"),
    [(1, (1, 1)), (64, (1, 64)), (576, (36, 16)), (1536, (12, 128)), (352, (44, 8)), (9, (9, 1)),
     (13824, (108, 128)), (11008, (43, 256)), (92, (23, 4)), (254, (127, 2))],
)  # fmt: skip
def test_factors(width: int, expected: tuple[int, int]) -> None:
    assert factors(width) == expected


@pytest.mark.parametrize("width", [1, 2, 3, 9, 36, 56, 72, 92, 128, 576, 1536, 344])
def test_rotation_is_orthogonal(width: int) -> None:
    signs = torch.randint(0, 2, (width,), generator=torch.Generator().manual_seed(2)) * 2 - 1
    found = matrix(width, signs)
    assert torch.allclose(
        found @ found.t(), torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-12
    )
    small = small_matrix(width, torch.Generator().manual_seed(0))
    assert torch.allclose(
        Rotation(width, small, signs).inverse(found), torch.eye(width, dtype=torch.float64),
        rtol=0, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("width", [4, 36, 72, 576, 1536])
def test_an_outlier_is_spread_evenly(width: int) -> None:
    """One channel of a token becomes all channels of equal magnitude."""
    assert torch.allclose(
        matrix(width).abs() * width**0.5, torch.ones(width, width, dtype=torch.float64)
    )


def test_odd_width_is_random_orthogonal() -> None:
    assert not torch.allclose(matrix(9, seed=0), matrix(9, seed=1))
    assert torch.equal(matrix(36, seed=0), matrix(36, seed=1))


def test_kronecker_order() -> None:
    """R = D (M x H), rows first."""
    signs = torch.tensor([1.0, -1.0] * 36)
    expected = torch.kron(paley(36), hadamard(2)) / 72**0.5  # type: ignore[arg-type]
    assert torch.allclose(matrix(72, signs), signs[:, None] * expected)
    generator = torch.Generator().manual_seed(0)
    for m, rest in ((11, 64), (11, 256), (23, 256)):  # steps 64 and 11; 64 and 44; 64, 4 and 23
        small = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64)).Q
        x = torch.randn(2, m, rest, generator=generator, dtype=torch.float64)
        expected = torch.einsum("bij,ik,jl->bkl", x, small, hadamard(rest) / rest**0.5)
        found = Rotation(m * rest, small)(x.flatten(1))
        assert torch.allclose(found, expected.flatten(1))


@pytest.mark.parametrize("seed", [0, 1])
def test_rotation_alone_changes_nothing(tiny_windows, seed: int) -> None:
    """Norm weights, biases of all linear layers, tied head: all in other coordinates."""
    model = uneven_llama().model
    data = CalibrationData(model, tiny_windows, seed=seed)
    method = parse("quarot-w16a16")
    plain = logits(model, tiny_windows)
    rotated = logits(model, tiny_windows, method, method.calibrate(data))
    assert 0 < float((plain - rotated).abs().max()) < 2e-5 * float(plain.abs().max())
    assert torch.equal(logits(model, tiny_windows), plain)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_rotated_inputs_and_same_cache(tiny, tiny_windows) -> None:
    """Inputs keep their length and change; K and V are those of the model."""
    data = CalibrationData(tiny.model, tiny_windows)
    method = parse("quarot-w16a16")
    state = method.calibrate(data)
    plain, cache = data.inputs(tokens=8), data.kv(tiny_windows[0])
    seen: dict[str, Tensor] = {}

    def watch(name: str):
        def function(x: Tensor) -> Tensor:
            seen[name] = x[0]
            return x

        return function

    with Site(tiny.model) as site:
        method.install(site, state)
        for name, linear in site.linears.items():
            site.input(linear, watch(name))
        rotated_cache = data.kv(tiny_windows[0])
    whole = CalibrationData(tiny.model, tiny_windows[:1]).inputs(tokens=32)
    for name, x in seen.items():
        assert torch.allclose(x.norm(dim=1), whole[name].x.norm(dim=1), rtol=1e-4), name
        assert not torch.allclose(x, whole[name].x, atol=0.1), name
    assert len(seen) == len(plain) == 14
    for layer, other in zip(cache, rotated_cache, strict=True):
        for value, same in zip(layer, other, strict=True):
            assert torch.allclose(value, same, atol=1e-4)


def test_seed_decides(tiny, tiny_windows) -> None:
    one, again, other = (
        parse("quarot-w4a4").calibrate(CalibrationData(tiny.model, tiny_windows, seed=seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one["signs"], again["signs"])
    assert not torch.equal(one["signs"], other["signs"])


@pytest.mark.parametrize("rounding", ["rtn", "gptq"])
def test_eight_bit_weights_are_close(tiny, tiny_windows, rounding: str) -> None:
    methods = parse_all(f"quarot-w8a16:rounding={rounding}")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    plain = evaluate(tiny, "fp32", parse_all("fp32"), tiny_windows, [{}])
    found = evaluate(tiny, "quarot", methods, tiny_windows, states)
    assert found.perplexity == pytest.approx(plain.perplexity, rel=0.02)
    assert found.perplexity != pytest.approx(plain.perplexity, rel=1e-6)


def test_bits(tiny, tiny_windows) -> None:
    methods = parse_all("quarot-w4a3")
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    found = evaluate(tiny, "quarot", methods, tiny_windows, states)
    assert found.bits == evaluate(tiny, "", parse_all("rtn-w4a3"), tiny_windows, [{}]).bits


@pytest.mark.parametrize(
    "text", ["w1a4", "w4a4:clip=0", "w4a4:rounding=down", "w16a4:rounding=gptq"]
)
def test_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        parse(f"quarot-{text}")


def test_changes_of_coordinates_leave_a_real_model(smollm2) -> None:
    """Rotations of 576 and 1536, smoothing, scaling, and reordering alone, on SmolLM2."""
    ids = checkpoint.windows(smollm2, None, 2, 24)
    plain = logits(smollm2.model, ids)
    for name in (
        "quarot-w16a16", "smoothquant-w16a16:scope=all", "atom-like-w16a16", "awq16:alpha=0.5",
        "qoq:weight_bits=16,activation_bits=16,kv_bits=16",
    ):  # fmt: skip
        method = parse(name)
        state = method.calibrate(CalibrationData(smollm2.model, ids))
        changed = logits(smollm2.model, ids, method, state)
        distance = float((plain - changed).abs().max())
        assert 0 < distance < 1e-4 * float(plain.abs().max()), name


@pytest.mark.parametrize(("search", "clip"), [(True, 0.9), (False, 0.7)])
def test_rotated_layer_by_hand(tiny, tiny_windows, search, clip):
    method = parse(f"quarot-w4a3:search={search},clip={clip}")
    state = method.calibrate(CalibrationData(tiny.model, tiny_windows))
    with Site(tiny.model) as site:
        parse("quarot-w16a16").install(site, state)
        weight = site.linears[Q].weight.detach().clone()
    x = torch.randn(2, 5, 36, generator=torch.Generator().manual_seed(1))
    own = best_clip(weight, 4) if search else 1.0
    wanted = rtn_symmetric(x, 3, clip) @ rtn_symmetric(weight, 4, own).t()
    with torch.no_grad(), Site(tiny.model) as site:
        method.install(site, state)
        assert torch.allclose(site.linears[Q](x), wanted, atol=1e-5)


def test_gptq_searches_the_clipping(tiny, tiny_windows):
    data = CalibrationData(tiny.model, tiny_windows)
    found, whole = (
        parse(f"quarot-w3a16:rounding=gptq,search={each}").calibrate(data)[f"{Q}.scale"]
        for each in ("true", "false")
    )
    assert bool((found <= whole).all())
    assert bool((found < whole).any())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("smoothquant-w16a16+gptq-like-w8a16", "its weights are those of the unchanged model"),
        ("quarot-w16a16+squeezellm-like-w4a16", "its weights are those of the unchanged model"),
        ("kllm-plain-w4a4+gptq-like-w4a16", "its weights are those of the unchanged model"),
        ("quarot-w16a16+kllm-w4a4", "its weights are those of the unchanged model"),
        ("smoothquant-w4a4+atom-like-w4a4:rounding=gptq", "its weights are those"),
        ("atom-like-w16a16+fp16+quarot-w16a16", "the channels are in another order by then"),
        ("atom-like-w16a16+kllm-plain-w4a4", "the channels are in another order by then"),
    ],
)
def test_combinations_that_cannot_work_are_refused(name: str, reason: str) -> None:
    before, behind = name.split("+")[0], name.split("+")[-1]
    with pytest.raises(ConfigError) as caught:
        parse_all(name)
    assert f"{behind} cannot stand behind {before}: {reason}" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["smoothquant-w16a16+quarot-w16a16", "quarot-w16a16+atom-like-w16a16"]
)
def test_changes_of_coordinates_combine(name: str, tiny, tiny_windows) -> None:
    methods = parse_all(name)
    states = calibrate(methods, CalibrationData(tiny.model, tiny_windows))
    plain = evaluate(tiny, "fp32", parse_all("fp32"), tiny_windows, [{}])
    found = evaluate(tiny, name, methods, tiny_windows, states)
    assert found.perplexity == pytest.approx(plain.perplexity, rel=1e-3)


@pytest.mark.parametrize(
    "text", ["quarot-w4a4:weight_bits=3", "rtn-w4a4:activation_bits=8", "rtn-w" + "4" * 5000 + "a4"]
)
def test_a_name_is_not_contradicted(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text)
    with pytest.raises(ConfigError, match="outliers must be"):
        parse("kllm-s-w4a4:outliers=dynamic")
