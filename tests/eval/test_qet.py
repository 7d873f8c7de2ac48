"""``qet``: bits in full, matrices of golden.qet, refusals by the layer's name.

Shown to fail:

- the ratio of FP32 in the place of that of FP16;
- words that lose their sign;
- the same seed for each layer;
- bits of the last codebook alone;
- a refusal without the layer;
- the same share for both stages;
- K's codebooks for V, and those of layer 0 for every layer;
- codebooks of the evaluated window in ``qet-kv``;
- codebooks of all sequences of a batch together in ``qet-kv-noncausal``;
- bits without the maps, and codebooks counted for the window instead of the context;
- entries that calibration's tokens do not bound;
- shared codebooks whose words go to the layers in another order, or whose bits all go to one.
"""

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.llm.capture import capture_kv
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import evaluate
from golden.llm.eval.method import Site
from golden.llm.methods import parse
from golden.llm.patch import K, Patch, V
from golden.qet.matrix import encode, quantize
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


def test_layers_may_share_codebooks(tiny, tiny_windows):
    """Matrices of a kind are one matrix with the rows of both layers; others keep their own."""
    method = parse(f"{SMALL},together=2")
    data = CalibrationData(tiny.model, tiny_windows[:1])
    names = list(data.linears)
    groups = method.shared(names)
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert [len(each) for each in groups] == [2] * (len(names) // 2)
    assert all(first.replace(".0.", ".1.") == second for first, second in groups)
    state = method.calibrate(data)
    for group in groups[:3]:
        own = [data.linears[name].weight.detach() for name in group]
        number = names.index(group[0])
        made = method.matrix(torch.cat(own), number * 16)
        words = [state[f"{name}.words"].long() & 0xFFFF for name in group]
        assert torch.equal(torch.cat(words), made.dequantized())
        bits = [float(state[f"{name}.bits"]) for name in group]
        assert bits == [made.shape.stored_bits / 2] * 2
    found = evaluate(tiny, "qet", [method], tiny_windows, [state])
    assert found.bits["weights"] <= 8


def test_codebooks_of_other_widths_are_refused(tiny, tiny_windows, monkeypatch):
    method = parse(f"{SMALL},together=2")
    monkeypatch.setattr(type(method), "shared", lambda self, names: [names])
    with pytest.raises(ConfigError, match=r"together: .* has other inputs"):
        method.calibrate(CalibrationData(tiny.model, tiny_windows[:1]))


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
        ("qet-4b:together=0", r"together must be 1\.\.1024, not 0"),
        ("qet-4b:rate=3", "rate is in the name already"),
        ("qet-kv-0b", r"rate must be 1\.\.16, not 0"),
        ("qet-kv-4b:per_entry=0", r"per_entry must be 1\.\.1048576, not 0"),
        ("qet-kv-4b:context=0", r"context must be 1\.\.16777216, not 0"),
        ("qet-kv-noncausal-4b:context=9", "has no field 'context'"),
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


# ---- K and V

KV = "qet-kv-6b:levels=1,group=4,iterations=3"
NONCAUSAL = "qet-kv-noncausal-8b:levels=1,group=4,entry_bits=4,iterations=3"


@pytest.fixture(scope="module")
def kv_state(tiny, tiny_windows):
    return parse(KV).calibrate(CalibrationData(tiny.model, tiny_windows[:2]))


def tapped(tiny, method, state, ids):
    """K and V of each layer before and after the method: (layers, 2, B, T, channels) each."""
    seen: dict[tuple[str, int, int], torch.Tensor] = {}

    def tap(label):
        return lambda layer, which, x: seen.__setitem__((label, layer, which), x.clone())

    with Patch(tiny.model) as before, Site(tiny.model) as site, Patch(tiny.model) as after:
        before.kv(tap("before"))
        method.install(site, state)
        after.kv(tap("after"))
        with torch.no_grad():
            tiny.model(ids, use_cache=False)
        layers = len(site.attentions)
        bits = site.bits.mean("kv")
    return *(
        [[seen[label, layer, which] for which in (K, V)] for layer in range(layers)]
        for label in ("before", "after")
    ), bits


def test_a_cache_has_codebooks_of_the_calibration(tiny, tiny_windows, kv_state):
    """K and V of each layer have some, after RoPE; a token's codes are the same in any company."""
    method = parse(KV)
    ids = torch.stack(tiny_windows[1:])
    before, after, _ = tapped(tiny, method, kv_state, ids)
    seen = [capture_kv(tiny.model, window) for window in tiny_windows[:2]]
    for layer in range(2):
        for which in (K, V):
            learned = torch.cat([each[layer][which] for each in seen]).half().float()
            books = method.books(learned, (2 * layer + which) * 16)
            assert [stage.stage.entries for stage in books.stages] == [8, 8]  # 64 tokens
            x = before[layer][which]
            assert torch.equal(after[layer][which][1], encode(x[1], books).real().float())
            assert torch.equal(after[layer][which][0, :9], encode(x[0, :9], books).real().float())
            error = (after[layer][which] - x).square().mean() / x.var()
            assert 0.005 < float(error) < 0.3


def test_bits_of_a_cache_are_those_of_its_context(tiny, tiny_windows, kv_state):
    """24 channels: one level of maps, two stages of 6 codes; 8 entries of 10 bits, two ranges."""
    for spelling, context in ((KV, 32768), (f"{KV},context=4096", 4096)):
        method = parse(spelling)
        found = evaluate(tiny, "kv", [method], tiny_windows, [kv_state])
        books = 2 * (8 * 24 * 10 + 64) + 8
        assert found.bits["kv"] == pytest.approx(1 / 2 + 2 * 3 / 4 + books / (context * 24))
        assert found.bits["weights"] == found.bits["activations"] == 32


def test_entries_are_those_of_the_budget_or_of_the_tokens():
    method = parse("qet-kv-4b")
    asked = method.shape(32768, 192)
    assert [stage.entries for stage in asked.stages] == [1228, 32]
    assert asked.stored_bits <= 4 * 32768 * 192
    torch.manual_seed(0)
    made = parse("qet-kv-4b:per_entry=40,iterations=1").books(torch.randn(400, 64))
    assert [stage.stage.entries for stage in made.stages] == [10, 10]


@pytest.mark.parametrize(("spelling", "reads_later"), [(KV, False), (NONCAUSAL, True)])
def test_what_is_not_causal_says_so(tiny, tiny_windows, kv_state, spelling, reads_later):
    """Earlier tokens change with the last one where the name has ``noncausal``."""
    method = parse(spelling)
    state = kv_state if method.calibrated else {}
    ids = tiny_windows[0][None].clone()
    _, one, _ = tapped(tiny, method, state, ids)
    ids[0, -1] = (ids[0, -1] + 1) % 64
    _, two, _ = tapped(tiny, method, state, ids)
    same = torch.equal(one[0][K][:, :-1], two[0][K][:, :-1])
    assert same != reads_later
    assert ("noncausal" in spelling) == ("not causal" in (type(method).__doc__ or "").lower())
    assert ("noncausal" in spelling) == reads_later


def test_a_window_has_codebooks_of_its_own(tiny, tiny_windows):
    method = parse(NONCAUSAL)
    before, after, bits = tapped(tiny, method, {}, torch.stack(tiny_windows[:2]))
    shape = method.shape(32, 24)
    assert bits == pytest.approx(shape.stored_bits / (32 * 24))
    assert bits <= 8
    # All of it: maps, codes and entries of two stages, ranges, the exponent.
    entries = [stage.entries for stage in shape.stages]
    codes = sum((each - 1).bit_length() for each in entries) * 32 * 6
    books = sum(entries) * 24 * 4 + 2 * 64 + 8
    assert shape.stored_bits == 32 * 12 + codes + books
    for layer in range(2):
        for which in (K, V):
            for sequence in range(2):
                x = before[layer][which][sequence]
                made = method.matrix(x, (2 * layer + which) * 16)
                assert torch.equal(after[layer][which][sequence], made.real().float())


@pytest.mark.parametrize(
    ("spelling", "line"),
    [
        ("qet-kv-1b:levels=1,residual_levels=1,group=4", "K of layer 0: ratio must be at most "),
        (
            "qet-kv-noncausal-1b:levels=1,residual_levels=1,group=4",
            "K of layer 0: ratio must be at most ",
        ),
    ],
)
def test_a_rate_out_of_reach_names_k_and_the_layer(tiny, tiny_windows, spelling, line):
    method = parse(spelling)

    def measured():
        data = CalibrationData(tiny.model, tiny_windows[:1])
        state = method.calibrate(data) if method.calibrated else {}
        evaluate(tiny, "kv", [method], tiny_windows, [state])

    with pytest.raises(ConfigError) as error:
        measured()
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)
