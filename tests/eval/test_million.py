"""MILLION's method: codes of the nearest entries, windows, sinks, outliers, scopes, stored bits.

Shown to fail:

- the codebook of K used for V;
- the window of a query one token too long;
- sinks that are encoded;
- outliers that are not put back.
"""

import math

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.ops import float_from_bits
from golden.llm.capture import capture_kv
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.evaluate import Settings, evaluate
from golden.llm.eval.method import Method, State
from golden.llm.methods import parse
from golden.llm.methods.million import Million, attend, recent_tokens
from golden.llm.patch import K, Patch, Scores, V

SMALL = "subspaces=2,bits=4,few=true"


@pytest.fixture(scope="module")
def states(tiny, tiny_windows) -> dict[str, State]:
    """Calibrated states by method, each made once."""
    return {}


def _state(tiny, tiny_windows, method: Method, states: dict[str, State]) -> State:
    key = str(method.calibration_fields())
    if key not in states:
        states[key] = method.calibrate(CalibrationData(tiny.model, tiny_windows[:2]))
    return states[key]


def _run(tiny, tiny_windows, fields: str, states: dict[str, State], exact: tuple[str, ...] = ()):
    method = parse(f"million:{SMALL},{fields}" if fields else f"million:{SMALL}")
    state = _state(tiny, tiny_windows, method, states)
    return evaluate(
        tiny, "million", [method], tiny_windows[2:], [state], Settings(exact=exact)
    )  # fmt: skip


def _books(state: State) -> Tensor:
    """(books, 2, M, entries, sub) real numbers."""
    words = float_from_bits(state["words"].long() & 0xFFFF)
    return words * 2.0 ** state["exponent"].double()[..., None, None, None]


def _decoded(x: Tensor, book: Tensor) -> Tensor:
    """Nearest entries of the parts of x (..., d), by exact differences."""
    parts = x.double().unflatten(-1, (book.shape[0], -1))
    index = ((parts[..., None, :] - book) ** 2).sum(-1).argmin(-1)
    return book[torch.arange(len(book)), index].flatten(-2).float()


# ---- names and refusals


def test_names_give_the_shapes_of_the_paper() -> None:
    """Footnote 2 of the paper swaps the two."""
    for name, head_dim, subspaces, bits in (
        ("million-4b", 128, 64, 8),
        ("million-3b", 128, 32, 12),
        ("million-4b", 64, 32, 8),
        ("million-3b", 64, 16, 12),
        ("million-2b", 64, 16, 8),
        ("million:subspaces=8,bits=6", 64, 8, 6),
    ):
        shape = parse(name).shape(head_dim)
        assert (shape.subspaces, shape.bits) == (subspaces, bits)


@pytest.mark.parametrize("name", ["million:subspaces=32,bits=8,rate=3", "cq4:subspaces=32,bits=4"])
def test_a_rate_beside_a_shape_is_honoured_or_refused(name):
    """Shown to fail: the rate was ignored."""
    with pytest.raises(
        ConfigError, match=r"rate must be subspaces \* bits / 64 = [42], or left out"
    ):
        parse(name).shape(64)
    assert parse("million:subspaces=32,bits=8,rate=4").shape(64).bits == 8
    assert parse("million").shape(64) == parse("million-4b").shape(64)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("million-5b", "rate must be 4 or 3 or 2, not 5"),
        ("million:subspaces=8", "bits must be given together with subspaces, not 0"),
        ("million-4b:scope=token", "scope must be model or layer or head, not 'token'"),
        ("million-4b:policy=fifo", "policy must be flush or sliding, not 'fifo'"),
        ("million-4b:keys=false,values=false", "values must be true where keys is false"),
        ("million-4b:pre_rope=true,window=4", "window must be 0 where K is quantized before RoPE"),
        ("million-4b:share=0.6", r"share must be 0\.\.0\.5, not 0\.6"),
    ],
)
def test_rejects(spelling: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(spelling)


def test_refuses_few_vectors_and_head_sizes(tiny, tiny_windows) -> None:
    data = CalibrationData(tiny.model, tiny_windows[:2])
    message = r"^training vectors must be at least 9984 for 256 entries, not 384$"
    with pytest.raises(ConfigError, match=message):
        parse("million-4b").calibrate(data)
    with pytest.raises(ConfigError, match=r"^training vectors must be at least 624 for 16 entries"):
        parse("million:subspaces=2,bits=4,scope=head").calibrate(data)
    with pytest.raises(ConfigError, match="dim must be a multiple of subspaces = 3, not 8"):
        parse("million:subspaces=3,bits=4").calibrate(data)


# ---- codes


@pytest.mark.parametrize("scope", ["model", "layer", "head"])
def test_reads_the_nearest_entries(scope, tiny, tiny_windows, states) -> None:
    method = parse(f"million:{SMALL},scope={scope}")
    state = _state(tiny, tiny_windows, method, states)
    books = _books(state)
    assert books.shape == ({"model": 1, "layer": 2, "head": 6}[scope], 2, 2, 16, 4)
    assert float(float_from_bits(state["words"].long() & 0xFFFF).abs().max()) <= 1
    seen: dict[tuple[int, int], Tensor] = {}

    def wanted(layer: int, kv: int, x: Tensor) -> Tensor:
        x = x.half().float().unflatten(-1, (3, 8))
        number = {"model": [0] * 3, "layer": [layer] * 3, "head": [3 * layer + h for h in range(3)]}
        parts = [_decoded(x[:, :, h], books[number[scope][h], kv]) for h in range(3)]
        seen[layer, kv] = torch.stack(parts, 2).flatten(2)
        return seen[layer, kv]

    with Patch(tiny.model) as patch, torch.no_grad():
        patch.kv(wanted)
        logits = tiny.model(tiny_windows[2][None]).logits
    found = evaluate(tiny, "million", [method], tiny_windows[2:], [state])
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tiny_windows[2][1:])
    assert found.perplexity == pytest.approx(math.exp(float(loss)), rel=1e-5)
    assert not torch.equal(seen[0, K], seen[0, V])


def test_codebooks_are_trained_on_what_is_cached(tiny, tiny_windows, states) -> None:
    """Decoded K and V are closer to the cached ones than any constant."""
    state = _state(tiny, tiny_windows, parse(f"million:{SMALL},scope=layer"), states)
    books = _books(state)
    for layer, pair in enumerate(capture_kv(tiny.model, tiny_windows[0])):
        for kv, x in enumerate(pair):
            vectors = x.unflatten(-1, (3, 8))
            error = (_decoded(vectors, books[layer, kv]) - vectors) ** 2
            assert float(error.mean()) < 0.6 * float(vectors.var())


def test_same_seed_same_codebooks(tiny, tiny_windows) -> None:
    method = parse(f"million:{SMALL}")
    first, second, third = (
        method.calibrate(CalibrationData(tiny.model, tiny_windows[:2], seed)) for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["words"], third["words"])


def test_exact_codes_are_those_of_the_fast_path(tiny, tiny_windows, states) -> None:
    fast = _run(tiny, tiny_windows, "", states)
    layers = [f"model.layers.{i}.self_attn" for i in range(2)]
    exact = _run(tiny, tiny_windows, "", states, tuple(layers))
    assert exact.perplexity == pytest.approx(fast.perplexity, rel=1e-4)
    assert set(exact.bit_true) == set(layers)
    for each in exact.bit_true.values():
        assert each["equal"] > 0.999


def test_k_alone_and_v_alone(tiny, tiny_windows, states) -> None:
    plain = evaluate(tiny, "fp32", [parse("fp32")], tiny_windows[2:], [{}]).perplexity
    both = _run(tiny, tiny_windows, "", states)
    found = {}
    for fields in ("values=false", "keys=false"):
        found[fields] = _run(tiny, tiny_windows, fields, states)
        assert found[fields].bits["kv"] == pytest.approx((both.bits["kv"] + 32) / 2)
    assert len({plain, both.perplexity, *(each.perplexity for each in found.values())}) == 4


# ---- what stays exact


def test_recent_tokens() -> None:
    assert recent_tokens(9, 2, 3, "flush").tolist() == [0, 0, 1, 2, 3, 1, 2, 3, 1]
    assert recent_tokens(9, 2, 3, "sliding").tolist() == [0, 0, 1, 2, 3, 3, 3, 3, 3]
    assert recent_tokens(4, 0, 1, "flush").tolist() == [1] * 4
    assert recent_tokens(4, 0, 0, "sliding").tolist() == [0] * 4


@pytest.mark.parametrize("tokens", [5, 300])
def test_attention_query_by_query(tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randn(1, 4, tokens, 8, generator=generator)
    k, v, k_coded, v_coded = (torch.randn(1, 2, tokens, 8, generator=generator) for _ in range(4))
    recent = torch.randint(0, 4, (tokens,), generator=generator)
    found = attend(q, (k, v), (k_coded, v_coded), recent, Scores(0.3))
    for t in (*range(min(tokens, 5)), tokens - 1):
        for head in range(4):
            kv = head // 2
            first = max(0, t + 1 - int(recent[t]))
            keys = torch.cat([k_coded[0, kv, :first], k[0, kv, first : t + 1]])
            values = torch.cat([v_coded[0, kv, :first], v[0, kv, first : t + 1]])
            wanted = (0.3 * keys @ q[0, head, t]).softmax(0) @ values
            torch.testing.assert_close(found[0, head, t], wanted, rtol=1e-4, atol=1e-5)


def test_windows_between_nothing_and_everything(tiny, tiny_windows, states) -> None:
    exact = evaluate(tiny, "fp16-kv", [parse("fp16-kv")], tiny_windows[2:], [{}]).perplexity
    none = _run(tiny, tiny_windows, "", states).perplexity
    for fields in ("window=32,policy=sliding", "window=32", "sink=32"):
        found = _run(tiny, tiny_windows, fields, states).perplexity
        assert found == pytest.approx(exact, rel=1e-5)
    one = [_run(tiny, tiny_windows, f"window=1,policy={each}", states).perplexity
           for each in ("flush", "sliding")]  # fmt: skip
    assert one[0] == one[1]
    partly = _run(tiny, tiny_windows, "window=8", states).perplexity
    assert len({exact, none, one[0], partly}) == 4


def test_outliers_stay_exact(tiny, tiny_windows, states) -> None:
    method = parse(f"million:{SMALL},share=0.1")
    state = _state(tiny, tiny_windows, method, states)
    captured = [capture_kv(tiny.model, ids) for ids in tiny_windows[:2]]
    for layer in range(2):
        for kv in (K, V):
            magnitude = torch.cat([each[layer][kv] for each in captured]).abs()
            outlier = magnitude > state["threshold"][layer, kv]
            assert float(outlier.float().mean()) == pytest.approx(0.1, abs=0.01)
    exact = evaluate(tiny, "fp16-kv", [parse("fp16-kv")], tiny_windows[2:], [{}]).perplexity
    state = dict(state, threshold=torch.zeros(2, 2))  # every value but 0 is an outlier
    found = evaluate(tiny, "million", [method], tiny_windows[2:], [state])
    assert found.perplexity == pytest.approx(exact, rel=1e-6)


# ---- bits


def test_stored_bits(tiny, tiny_windows, states) -> None:
    """Codes of 2 x 4 bits for 8 elements; 2 layers, 3 KV heads."""
    book = 16 * 16 * 8 + 8
    for fields, wanted in (
        ("context=1000", 1 + book / (1000 * 6 * 8)),
        ("context=1000,scope=layer", 1 + book / (1000 * 3 * 8)),
        ("context=1000,scope=head", 1 + book / (1000 * 8)),
        ("context=1000,sink=4,window=31", 1 + 0.02 * 15 + book / (1000 * 6 * 8)),
        ("context=1000,policy=sliding,window=10", 1 + 0.01 * 15 + book / (1000 * 6 * 8)),
    ):
        assert _run(tiny, tiny_windows, fields, states).bits["kv"] == pytest.approx(wanted)


def test_bits_of_outliers() -> None:
    method = Million(subspaces=2, bits=4, share=0.01, context=1 << 24)
    found = method._stored_bits(method.shape(8), 6, 0.02, 24)
    assert found == pytest.approx(1 + 0.02 * 32 + 32 / 24, abs=1e-4)
