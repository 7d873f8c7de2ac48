"""``qet``: bits in full, matrices of golden.qet, refusals by the layer's name.

Shown to fail:

- the ratio of FP32 in the place of that of FP16;
- words that lose their sign;
- the same seed for each layer;
- bits of the last codebook alone;
- a refusal without the layer;
- the same share for both stages.
"""

import pytest
import torch

from golden.config import ConfigError
from golden.eval.calibration import CalibrationData
from golden.eval.evaluate import evaluate
from golden.eval.method import Site
from golden.eval.methods import parse
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.qet.matrix import quantize
from tests.tiny import Q

SMALL = "qet-8b:levels=1,group=4,iterations=3"


@pytest.fixture(scope="module")
def state(tiny, tiny_windows):
    return parse(SMALL).calibrate(CalibrationData(tiny.model, tiny_windows[:2]))


@pytest.mark.parametrize(
    ("rows", "columns", "spelling", "entries"),
    [
        (1536, 576, "qet-4b", [128, 19]),
        (11008, 4096, "qet-8b", [3357, 770]),
    ],
)
def test_shapes(rows, columns, spelling, entries):
    shape = parse(spelling).shape(rows, columns)
    assert shape.element_bits == 16
    assert shape.stored_bits <= parse(spelling).rate * rows * columns
    assert [stage.entries for stage in shape.stages] == entries


def test_one_stage_has_all_the_memory():
    shape = parse("qet-4b:stages=1").shape(1536, 576)
    assert len(shape.stages) == 1
    assert shape.stored_bits > 0.9 * 4 * 1536 * 576


def test_installed_weights_are_those_of_golden(tiny, tiny_windows, state):
    method = parse(SMALL)
    found = evaluate(tiny, "qet", [method], tiny_windows, [state])
    linears = CalibrationData(tiny.model, tiny_windows[:1]).linears
    stored = sum(method.shape(*each.weight.shape).stored_bits for each in linears.values())
    count = sum(each.weight.numel() for each in linears.values())
    assert found.bits["weights"] == pytest.approx(stored / count)
    assert found.bits["weights"] <= 8
    first = next(iter(linears))
    weight = linears[first].weight.detach()
    words = state[f"{first}.words"].long() & 0xFFFF
    assert torch.equal(words, method.matrix(weight, 0).dequantized())
    error = float(((method.matrix(weight).real() - weight) ** 2).mean() / weight.var())
    assert error < 0.05
    with Site(tiny.model) as site:
        method.install(site, state)
        weight_now = site.linears[first].weight.detach()
        assert torch.equal(weight_now, float_from_bits(words, FP16).float())


def test_layers_have_seeds_of_their_own(tiny, tiny_windows, state):
    method = parse(SMALL)
    data = CalibrationData(tiny.model, tiny_windows[:1])
    number, name = len(data.linears) - 1, list(data.linears)[-1]
    words = state[f"{name}.words"].long() & 0xFFFF
    weight = data.linears[name].weight.detach()
    assert torch.equal(words, method.matrix(weight, number * 16).dequantized())
    other = CalibrationData(tiny.model, tiny_windows[:1], 1)
    assert not torch.equal(method.calibrate(other)[f"{Q}.words"], state[f"{Q}.words"])


def test_more_bits_are_closer(tiny):
    torch.manual_seed(0)
    weight = torch.randn(256, 128) * 0.02
    errors = []
    for rate in (3, 4, 6, 8):
        made = parse(f"qet-{rate}b").matrix(weight)
        assert isinstance(made, type(quantize(weight, made.shape)))
        errors.append(float(((made.real() - weight) ** 2).mean()))
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("qet-0b", r"rate must be 1\.\.16, not 0"),
        ("qet-17b", r"rate must be 1\.\.16, not 17"),
        ("qet-4b:levels=6", r"levels must be 0\.\.5, not 6"),
        ("qet-4b:stages=3", r"stages must be 1\.\.2, not 3"),
        ("qet-4b:share=1", r"share must be 0\.01\.\.0\.99, not 1\.0"),
        ("qet-4b:entry_bits=1", r"entry_bits must be 2\.\.16, not 1"),
        ("qet-4b:rate=3", "rate is in the name already"),
    ],
)
def test_rejects(spelling, message):
    with pytest.raises(ConfigError, match=message):
        parse(spelling)


def test_a_rate_out_of_reach_names_the_layer(tiny, tiny_windows):
    with pytest.raises(ConfigError) as error:
        parse("qet-2b").calibrate(CalibrationData(tiny.model, tiny_windows[:1]))
    assert str(error.value).startswith("model.layers.0.")
    assert ": ratio must be at most " in str(error.value)
    assert "\n" not in str(error.value)
