"""``aqlm``, ``gptvq``, ``cq``: their codes, bits, padding, exact layers, and refusals."""

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.lloyd import kmeans
from golden.llm.capture import capture_kv
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import Settings, evaluate
from golden.llm.methods import parse
from golden.llm.methods.vqllm import matrix_of
from golden.llm.patch import K, V
from golden.vqllm.config import NAMED
from golden.vqllm.gptvq import quantize_with_feedback
from golden.vqllm.matrix import quantize
from golden.vqllm.product import by_dequantizing
from tests.tiny import SHAPES, Q

SMALL = "aqlm2x4"  # 16 entries
FEW = "few=true"


@pytest.fixture(scope="module")
def states(tiny, tiny_windows):
    """Calibrated states by spelling, each made once."""
    made = {}

    def state(spelling: str):
        if spelling not in made:
            data = CalibrationData(tiny.model, tiny_windows[:2])
            made[spelling] = parse(spelling).calibrate(data)
        return made[spelling]

    return state


@pytest.mark.parametrize("name", ["aqlm3", "aqlm2x8", "aqlm1x16", "gptvq2"])
def test_names_are_the_shapes_of_the_paper(name):
    assert parse(name).vq == NAMED[name]


@pytest.mark.parametrize("name", ["cq4", "cq2"])
def test_groups_of_channels_are_those_of_the_paper(name):
    """A head of 64 has groups of channels with a codebook each."""
    vq, shape = NAMED[name], parse(name).shape(64)
    assert (shape.sub, shape.entries) == (vq.size, vq.entries)
    assert shape.subspaces == 64 // vq.tile_columns


def test_other_shapes():
    assert parse("aqlm2x12") == parse("aqlm3")
    shapes = {"gptvq3": (2, 64), "gptvq4": (2, 256), "gptvq1": (8, 256), "gptvq2:size=2": (2, 16)}
    for spelling, (size, entries) in shapes.items():
        assert (parse(spelling).vq.size, parse(spelling).vq.entries) == (size, entries)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("aqlm5x8", r"codebooks must be 1\.\.4, not 5"),
        ("aqlm2x17", r"bits must be 2\.\.16, not 17"),
        ("aqlm3:beam=0", r"beam must be 1\.\.64, not 0"),
        ("gptvq5", r"rate must be 1\.\.4, not 5"),
        ("gptvq4:size=8", r"size must be such that a code of rate \* size has 2\.\.16 bits at 4"),
        ("gptvq2:tile=30", "tile must be a multiple of size = 4, not 30"),
        ("cq5", "rate must be 4 or 3 or 2, not 5"),
        ("cq4:scope=model", "scope must be head, not 'model'"),
    ],
)
def test_rejects(spelling, message):
    with pytest.raises(ConfigError, match=message):
        parse(spelling)


# ---- weights


@pytest.mark.parametrize("spelling", [SMALL, "aqlm1x4:weighted=false,scaled=false,beam=1"])
def test_a_layer_is_a_matrix_with_codebooks_of_its_own(spelling, tiny, tiny_windows, states):
    """The first layer's inputs are the model's own; 4 columns of zeros follow its 36."""
    method, state = parse(spelling), states(spelling)
    found = matrix_of(state, Q, method.vq)
    data = CalibrationData(tiny.model, tiny_windows[:2])
    square = data.accumulate("squares", lambda x: x.square().sum(0), names=[Q])[Q]
    square = torch.nn.functional.pad(square, (0, 4))
    weight = torch.nn.functional.pad(data.linears[Q].weight.detach(), (0, 4))
    known = square + 0.01 * square.mean() if method.weighted else None
    wanted = quantize(weight, found.shape, known, beam=1, scaled=method.scaled,
                      training=_training(0, 8, "random"))  # fmt: skip
    share = (encoded(found) - encoded(wanted)).abs() < 2e-2 * float(weight.abs().max())
    assert float(share.float().mean()) > 0.9  # a beam of two, and sums in another order


def _training(seed: int, iterations: int, seeds: str):
    from golden.index.lloyd import Training

    return Training(seed=seed, iterations=iterations, seeds=seeds)


def encoded(matrix) -> torch.Tensor:
    return matrix.real()[:, :36]


def test_feedback_is_that_of_the_hessian(tiny, tiny_windows, states):
    method, state = parse("gptvq3:tile=16"), states("gptvq3:tile=16")
    found = matrix_of(state, Q, method.vq)
    data = CalibrationData(tiny.model, tiny_windows[:2])
    hessian = data.accumulate("hessian", lambda x: x.t() @ x, names=[Q])[Q]
    weight = data.linears[Q].weight.detach()
    wanted = quantize_with_feedback(weight, found.shape, hessian, _training(0, 12, "plus_plus"))
    assert float((found.codes == wanted.codes).float().mean()) > 0.95


def test_bits_count_codes_codebooks_scales_and_padding(tiny, tiny_windows, states):
    for spelling, scale in ((SMALL, 16), (f"{SMALL}:scaled=false", 0)):
        method = parse(spelling)
        found = evaluate(tiny, "aqlm", [method], tiny_windows, [states(spelling)])
        stored = sum(
            n * -(-k // 8) * 2 * 4 + 2 * 16 * 8 * 16 + 8 + n * scale for n, k in SHAPES
        )  # fmt: skip
        assert found.bits["weights"] == pytest.approx(stored / sum(n * k for n, k in SHAPES))
        assert found.bits["activations"] == found.bits["kv"] == 32


def test_many_entries_are_close_to_the_model(tiny, tiny_windows, states):
    plain = evaluate(tiny, "fp32", [], tiny_windows, [])
    for spelling in ("aqlm3", "gptvq4:tile=16"):
        found = evaluate(tiny, spelling, [parse(spelling)], tiny_windows, [states(spelling)])
        assert found.perplexity == pytest.approx(plain.perplexity, rel=0.1)


def test_exact_layers_are_those_of_the_engine(tiny, tiny_windows, states):
    method, state = parse(SMALL), states(SMALL)
    found = evaluate(tiny, "x", [method], tiny_windows[2:], [state], Settings(exact=[Q]))
    assert found.bit_true[Q]["relative"] < 1e-3

    class Linears:
        linears = CalibrationData(tiny.model, tiny_windows).linears

    x = torch.randn(3, 36, generator=torch.Generator().manual_seed(1))
    words = bits_from_float(torch.nn.functional.pad(x, (0, 4)))
    y, _ = by_dequantizing(words, matrix_of(state, Q, method.vq))
    exact = method.bit_true(Linears, state, Q)
    assert torch.equal(exact(x), float_from_bits(y).float())


def test_seeds_are_of_the_calibration_and_the_layer(tiny, tiny_windows):
    one, two, other = (
        parse(SMALL).calibrate(CalibrationData(tiny.model, tiny_windows[:1], seed))
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one[f"{Q}.words"], other[f"{Q}.words"])


# ---- K and V


def test_cq_is_million_with_a_codebook_for_each_head(states):
    """One image serves both attention engines."""
    small = "subspaces=4,bits=4,few=true"
    ours, theirs = states(f"cq2:{small},iterations=25"), states(f"million:{small},scope=head")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert ours["words"].shape == (6, 2, 4, 16, 2)


def test_cq_refuses_few_tokens(tiny, tiny_windows):
    message = r"^training vectors must be at least 9984 for 256 entries, not 64$"
    with pytest.raises(ConfigError, match=message):
        parse("cq4").calibrate(CalibrationData(tiny.model, tiny_windows[:2]))


def test_fisher_weights_are_squared_gradients(tiny, tiny_windows, states):
    """A group's weight is the mean of each head's own channels, K and V apart."""
    spelling = f"cq2:subspaces=4,bits=4,{FEW},fisher=true,iterations=25"
    state, method = states(spelling), parse(spelling)
    data = CalibrationData(tiny.model, tiny_windows[:2])
    books = float_from_bits(state["words"].long() & 0xFFFF)
    books = books * 2.0 ** state["exponent"].double()[..., None, None, None]
    layer, head = 1, 2
    here = slice(8 * head, 8 * head + 8)
    for which in (K, V):
        x = torch.cat([capture_kv(tiny.model, ids)[layer][which] for ids in data.windows])
        g = torch.cat([data.kv_gradients(ids)[layer][2 + which] for ids in data.windows])
        samples = x[:, here].half().float().unflatten(1, (4, 2)).transpose(0, 1)
        weight = (g[:, here] ** 2).unflatten(1, (4, 2)).mean(-1).T
        seed = 2 * (3 * layer + head) + which
        wanted = kmeans(samples, 16, weight, _training(seed, 25, "plus_plus")).centroids
        assert torch.allclose(books[3 * layer + head, which].float(), wanted, atol=2e-3)
    plain = states(f"cq2:subspaces=4,bits=4,{FEW}")
    assert not torch.equal(plain["words"], state["words"])
    assert method.calibration_fields() != parse("cq2:few=true").calibration_fields()


def test_cq_counts_its_codebooks():
    """A codebook of 256 entries takes an eighth of a bit at 32,768 tokens."""
    for name, bits in (("cq4", 4), ("cq2", 2)):
        method = parse(name)
        found = method._stored_bits(method.shape(64), 1, 0.0, 192)
        assert found == pytest.approx(bits + (16 * 256 * 64 + 8) / (32768 * 64))
