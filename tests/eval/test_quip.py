"""``quip4`` on a small model: its matrices, bits, exact layers, widths of any kind, refusals.

Shown to fail with: the Hessian not rotated; the bias left out of the exact layer; the weight
installed as it is rotated.
"""

import pytest
import torch

from golden.config import ConfigError
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.methods import parse
from golden.llm.methods.quip import matrix_of
from golden.vqllm.config import NAMED
from tests.tiny import SHAPES, Q, uneven_llama


@pytest.fixture(scope="module")
def states(tiny, tiny_windows):
    made = {}

    def state(spelling: str):
        if spelling not in made:
            data = CalibrationData(tiny.model, tiny_windows[:2])
            made[spelling] = parse(spelling).calibrate(data)
        return made[spelling]

    return state


def test_name_is_the_shape_of_the_paper(states):
    assert matrix_of(states("quip4"), Q).matrix.shape.vq == NAMED["quip4"]
    assert matrix_of(states("quip2"), Q).matrix.shape.vq.stages == 1


def test_bits_are_counted_in_full(tiny, tiny_windows, states):
    """Widths of 36 are 5 vectors of 8; 24, 36, 56 and 72 have rotations without random factors."""
    found = evaluate(tiny, "quip4", [parse("quip4")], tiny_windows, [states("quip4")])
    stored = sum(n * -(-k // 8) * 32 + 2 * 256 * 8 * 16 + 16 * n + n + k for n, k in SHAPES)
    assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))


def test_weights_are_near_and_nearer_with_more_points(tiny, states):
    errors = []
    for spelling in ("quip2:feedback=false", "quip4:feedback=false"):
        found = matrix_of(states(spelling), Q).real()
        weight = tiny.model.get_submodule(Q).weight.detach()
        errors.append(float((found - weight).square().sum() / weight.square().sum()))
    assert errors[1] < 0.02
    assert errors[0] < 0.13


def test_feedback_lowers_the_error_of_outputs(tiny, tiny_windows, states):
    data = CalibrationData(tiny.model, tiny_windows[:2])
    seen = []
    with Site(tiny.model) as site:
        site.input(site.linears[Q], lambda x: seen.append(x.detach()) or x)
        for ids in data.windows:
            data.run(ids)
    x = torch.cat([each.flatten(0, -2) for each in seen]).double()
    weight = tiny.model.get_submodule(Q).weight.detach().double()
    errors = [
        float((x @ (matrix_of(states(name), Q).real() - weight).T).square().sum())
        for name in ("quip4:feedback=false", "quip4")
    ]
    assert errors[1] < 0.9 * errors[0]


def test_exact_layer_is_the_matrix_of_the_engine(tiny_windows):
    """The layer adds its bias to the engine's product, and is near the fast path."""
    uneven = uneven_llama()
    method = parse("quip4")
    state = method.calibrate(CalibrationData(uneven.model, tiny_windows[:1]))
    with Site(uneven.model) as site:
        linear = site.linears[Q]
        exact = method.bit_true(site, state, Q)
        x = torch.randn(5, linear.in_features, generator=torch.Generator().manual_seed(1))
        matrix = matrix_of(state, Q)
        assert torch.equal(exact(x), matrix.product(x).float() + linear.bias)
        method.install(site, state)
        assert torch.allclose(exact(x), linear(x), rtol=0, atol=2e-2)


def test_equal_seeds_give_equal_states(tiny, tiny_windows, states):
    again = parse("quip4").calibrate(CalibrationData(tiny.model, tiny_windows[:2]))
    assert again.keys() == states("quip4").keys()
    assert all(torch.equal(value, again[name]) for name, value in states("quip4").items())


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("quip3", "rate must be 2 or 4, not 3"),
        ("quip4:damping=0", "damping must be 1e-06..1, not 0.0"),
    ],
)
def test_rejects(spelling, message):
    with pytest.raises(ConfigError, match=message):
        parse(spelling)
