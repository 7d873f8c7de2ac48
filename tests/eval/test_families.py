"""Every family in golden.llm.eval: the model stays what it is, and every method runs on it.

Shown to fail with each of 23 faults:

- gate and up of experts exchanged; 1 + w as w; LLaMA's norms for all families;
- a router that misses a norm's factor, of three methods; outputs of norms not rotated;
- no cap or scale of logits; no mask, cap or sinks in ``Scores``; a mask of 0 and 1 added to scores;
- K centred under a soft cap or sinks; down scaled through gpt-oss's up;
- K before its norm; heads and tokens exchanged;
- pickles read; shapes not compared; a Hessian of zeros for an expert without tokens;
- angles and masks of the first layer for all; the middle of a layer at its beginning.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm import checkpoint
from golden.llm.checkpoint import Checkpoint, CheckpointError
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.command import exact_layers
from golden.llm.eval.evaluate import Settings, evaluate
from golden.llm.eval.fake.products import Inputs
from golden.llm.eval.llama2c import tokenizer_of
from golden.llm.eval.method import Site
from golden.llm.eval.perplexity import loss
from golden.llm.eval.state import calibrate
from golden.llm.eval.walk import LayerWalk, Tap
from golden.llm.methods import built_in, parse_all
from golden.llm.patch import K, Patch, Scores, V
from golden.llm.structure import FAMILIES, block_of, logits
from tests.families import LAYERS, Letters, family, token_ids

NAMES = sorted(FAMILIES)
IDS = token_ids(2, 96)
# A spelling of each method, with options that the tiny size asks for.
OPTIONS = {
    "kllm-w4a4": "kllm-w4a4:steps=4", "kllm-w4a3": "kllm-w4a3:steps=1,glu=index,fuse=false",
    "cq4": "cq4:few=true", "cq2": "cq2:few=true", "aqlm3": "aqlm2x8", "aqlm1x16": "aqlm2x4",
    "million-4b": "million-4b:few=true", "million-3b": "million:few=true,subspaces=4,bits=6",
}  # fmt: skip
MORE = [
    "kllm-w4a4:fit=feedback,steps=0,norm=unfolded", "kllm-w4a4:fit=squares,steps=0",
    "kllm-plain-w4a4:norm=exact,scores=index", "million-4b:few=true,window=8,sink=2",
    "quarot-w4a4:rounding=gptq", "atom-like-w4a4:rounding=gptq", "smoothquant-w4a4:scope=all",
    "kllm-w4a4:integer_bits=16,steps=0+oaken", "awq4:group=32", "qoq:group=32", "qoq:group=0",
]  # fmt: skip
METHODS = [OPTIONS.get(each, each) for method in built_in()[0] for each in method.spellings] + MORE


def difference(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.fixture(scope="module", params=NAMES)
def own(request):
    """(model in golden.llm.structure, what transformers gives without that)"""
    name = request.param
    with torch.no_grad():
        wanted = family(name, unified=False)(IDS, use_cache=False).logits
    return family(name), wanted


@pytest.fixture
def folder(request, tmp_path) -> Path:
    path = tmp_path / request.param
    family(request.param, unified=False).save_pretrained(path)
    tokenizer_of(["<unk>", *(chr(97 + i) for i in range(63))]).save_pretrained(path)
    return path


@pytest.mark.parametrize("folder", NAMES, indirect=True)
def test_a_checkpoint_gives_what_transformers_gives(folder):
    """``golden.llm.checkpoint.load`` reads its files; equal to 1e-5 of the largest logit."""
    with torch.no_grad():
        wanted = family(folder.name, unified=False)(IDS, use_cache=False).logits
        loaded = checkpoint.load(folder, FAMILIES)
        found = loaded.model(IDS, use_cache=False).logits
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5
    described = checkpoint.decoder(loaded)
    assert described.architecture == folder.name
    assert described.layers == LAYERS


def test_every_matrix_is_a_linear_layer(own):
    """None of the model's parameters with two axes is outside, but embedding, head and routers."""
    model, wanted = own
    with torch.no_grad(), Patch(model) as patch:
        assert torch.equal(model(IDS, use_cache=False).logits, wanted)
        hidden = model.base_model(IDS, use_cache=False).last_hidden_state
        assert torch.equal(logits(model, hidden), wanted)
        blocks = [block_of(layer) for layer in patch.layers]
        inside = {f"{name}.weight" for name in patch.linears}
    routers = {
        f"model.layers.{i}.{block.router}.weight" for i, block in enumerate(blocks) if block.router
    }
    others = {"model.embed_tokens.weight", "lm_head.weight"}
    matrices = {name for name, value in model.named_parameters() if value.ndim > 1}
    assert matrices - inside - routers <= others
    assert inside == {
        f"model.layers.{i}.{place}.weight"
        for i, block in enumerate(blocks)
        for place in block.linears.values()
    }


def _first_down(layer: torch.nn.Module) -> torch.nn.Module:
    block = block_of(layer)
    return layer.get_submodule(block.linears[block.of_kind("down")[0]])


def test_a_walk_goes_the_models_way(own):
    """Layer by layer, and from the middle of each layer on."""
    model, _ = own
    wanted: list[Tensor] = []
    with torch.no_grad(), Patch(model) as patch:
        for layer in patch.layers:
            patch.watch(layer, after=lambda y: wanted.append(y[0] if isinstance(y, tuple) else y))
        model(IDS[:1], use_cache=False)
        downs = [_first_down(layer) for layer in patch.layers]
    walk = LayerWalk(model, [IDS[0]])
    for i, down in enumerate(downs):

        def put(patch: Patch, tap: Tap, down: torch.nn.Module = down) -> None:
            patch.input(down, tap)

        middle = walk.after_attention(i, walk.hidden)
        assert not torch.equal(middle[0], walk.hidden[0])
        whole, half = walk.seen(i, walk.hidden, put), walk.seen_after_attention(i, middle, put)
        assert torch.equal(whole[0], half[0])
        walk.hidden = walk.run(i, walk.hidden)
        assert torch.equal(walk.hidden[0], wanted[i])


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, rule: Scores) -> Tensor:
    """The equation, by what ``Scores`` says."""
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    scores = rule.capped(q @ k.mT * rule.scaling)
    hidden = ~rule.seen(0, q.shape[2], q.device)
    return rule.softmax(scores.masked_fill(hidden, -torch.inf)) @ v


def test_an_attention_of_our_own_has_all_of_the_model(own):
    model, wanted = own
    with torch.no_grad(), Patch(model) as patch:
        patch.query(lambda _layer, q: q)
        assert torch.equal(model(IDS, use_cache=False).logits, wanted)
        patch.attention(attend)
        assert difference(model(IDS, use_cache=False).logits, wanted) < 2e-5


def test_taps_before_rope_are_those_after_it_turned(own):
    """K's vectors keep their length, which RoPE does not change; V is the same."""
    model, _ = own
    seen: dict[tuple[str, int, int], Tensor] = {}
    with torch.no_grad(), Patch(model) as patch:
        for where, pre in (("after", False), ("before", True)):

            def keep(layer: int, kv: int, x: Tensor, where: str = where) -> None:
                seen[where, layer, kv] = x

            patch.kv(keep, pre)
        model(IDS, use_cache=False)
        sizes = [int(each.head_dim) for each in patch.attentions]
    for layer, size in enumerate(sizes):
        before, after = (
            seen[where, layer, K].unflatten(-1, (-1, size)).norm(dim=-1)
            for where in ("before", "after")
        )
        ratio = after / before
        assert torch.allclose(ratio, ratio[:1, :1, :1].expand_as(ratio), atol=1e-3)
        assert torch.equal(seen["before", layer, V], seen["after", layer, V])


# Methods that change nothing at full width: what they fold has to be taken back everywhere.
SAME = [
    ("quarot-w16a16", 5e-5), ("smoothquant-w16a16", 5e-5), ("smoothquant-w16a16:scope=all", 5e-5),
    ("atom-like-w16a16", 5e-5), ("kllm-w16a16:cache_bits=16,integer_bits=16,center=false", 5e-5),
    ("awq16:alpha=0.5", 1e-5), ("qoq:weight_bits=16,activation_bits=16,kv_bits=16", 5e-5),
    ("kllm-w16a16:cache_bits=16,integer_bits=15", 0.03), ("fp16-kv", 0.03),
    ("fp16-kv:pre_rope=true", 0.03), ("million-4b:few=true,window=128", 0.03),
]  # fmt: skip


def test_full_width_leaves_the_model_as_it_is(own):
    model, wanted = own
    with Patch(model) as patch:
        has_norm = bool(block_of(patch.layers[0]).before)
    no_norm = () if has_norm else ("smoothquant-w16a16",)  # which changes norms alone
    found = {}
    for text, most in SAME:
        changed = run(model, text)
        assert not torch.equal(changed, wanted) or text in no_norm, text
        # Of the median token: a rounding may give a token another expert.
        own = (changed - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        found[text] = float(own.median()) / most
    assert max(found.values()) < 1, found


def run(model, text: str) -> Tensor:
    """The logits of a combination, calibrated on other tokens."""
    methods = parse_all(text)
    data = CalibrationData(model, list(token_ids(3, 96, seed=14)))
    states = calibrate(methods, data)
    with torch.no_grad(), Site(model) as site:
        for method, state in zip(methods, states, strict=True):
            method.install(site, state)
        return model(IDS, use_cache=False).logits


def test_every_method_runs(own):
    """Each gives finite logits, changes the model, and leaves it as it was."""
    model, wanted = own
    for text in METHODS:
        found = run(model, text)
        assert bool(torch.isfinite(found).all()), text
        assert torch.equal(found, wanted) == (text == "fp32"), text
    with torch.no_grad():
        assert torch.equal(model(IDS, use_cache=False).logits, wanted)
    measured = loss(model, [IDS]).windows
    own = torch.nn.functional.cross_entropy(wanted[:, :-1].mT, IDS[:, 1:], reduction="none")
    assert torch.allclose(torch.tensor(measured), own.mean(1), atol=1e-5)


# Of each family a linear layer that the exact arithmetic of KLLM runs, with what is special there.
EXACT = {
    "llama": ["*.1.*.q_proj", "*.1.*.v_proj", "*.1.*.o_proj", "*.1.mlp.gate_proj",
              "*.1.*.down_proj"],
    "olmo2": ["*.1.*.q_proj", "*.1.mlp.gate_proj", "*.1.*.down_proj"],
    "gpt_oss": ["*.1.*.k_proj", "*.1.*.2.down_proj"],
    "gemma2": ["*.1.*.q_proj", "*.1.mlp.up_proj"],
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("glu", ["exact", "index"])
def test_exact_layers_are_near_the_fast_ones(name, glu):
    """Biases, a token without a norm before it, experts. Indices may move by one rounding.

    Shown to fail: no biases; tokens without a norm quantized twice.
    """
    checkpoint = Checkpoint(family(name), Letters(), name)
    method = parse_all(f"kllm-plain-w4a4:glu={glu}")
    states = calibrate(method, CalibrationData(checkpoint.model, list(token_ids(3, 96, seed=14))))
    layers = exact_layers(checkpoint, EXACT[name])
    settings = Settings(exact=layers)
    found = evaluate(checkpoint, "kllm", method, list(IDS[:, :32]), states, settings).bit_true
    assert found.keys() == set(layers)
    assert max(each["relative"] for each in found.values()) < 0.02, found


def test_gate_and_up_of_an_expert_have_no_exact_arithmetic():
    checkpoint = Checkpoint(family("mixtral"), Letters(), "mixtral")
    method = parse_all("kllm-plain-w4a4")
    states = calibrate(method, CalibrationData(checkpoint.model, list(token_ids(3, 96, seed=14))))
    settings = Settings(exact=["model.layers.0.mlp.experts.1.gate_proj"])
    with pytest.raises(ConfigError, match="kllm has no bit-true arithmetic for"):
        evaluate(checkpoint, "kllm", method, list(IDS), states, settings)


def test_words_of_products_are_of_what_the_layers_read(monkeypatch):
    """No norm comes before q of OLMo 2: its tokens of products are what it reads.

    Shown to fail: tokens without a norm quantized twice.
    """
    model = family("olmo2")
    (method,) = parse_all("kllm-plain-w4a4:glu=exact,product=fixed16")
    state = method.calibrate(CalibrationData(model, list(token_ids(3, 96, seed=14))))
    held: list[Tensor] = []
    add = Inputs.add

    def noted(self, *words):
        held.append(self.tokens.value)
        return add(self, *words)

    monkeypatch.setattr(Inputs, "add", noted)
    read: list[Tensor] = []
    with torch.no_grad(), Site(model) as site:
        method.install(site, state)
        q = site.linears["model.layers.0.self_attn.q_proj"]
        site.input(q, lambda x: (read.append(x), x)[1])
        model(IDS, use_cache=False)
    assert torch.equal(held[0], read[0])


def test_an_expert_without_tokens_keeps_its_weights_in_reach():
    """Nothing is known of its inputs, so each method rounds its weights as they are."""
    model = family("gpt_oss")
    for layer in model.model.layers:
        layer.mlp.router.bias.data[3] = -1e6
    unseen = {
        f"model.layers.{i}.mlp.experts.3.{name}_proj"
        for i in range(LAYERS)
        for name in ("gate", "up", "down")
    }
    for text in ("gptq-like-w4a16", "squeezellm-like-w4a16", "smoothquant-w4a16:scope=all", "quip4",
                 "gptvq3", "aqlm2x8", "kllm-w4a4:steps=0", "kllm-w4a4:steps=0,fit=feedback",
                 "quarot-w16a4:rounding=rtn", "atom-like-w16a4", "awq4:group=32", "qoq:group=32",
                 ):  # fmt: skip
        methods = parse_all(text)
        states = calibrate(methods, CalibrationData(model, list(token_ids(1, 128, seed=14))))
        with torch.no_grad(), Site(model) as site:
            real = {name: site.linears[name].weight.clone() for name in unseen}
            methods[0].install(site, states[0])
            assert bool(torch.isfinite(model(IDS, use_cache=False).logits).all())
            for name, weight in real.items():
                found = site.linears[name].weight
                assert bool(torch.isfinite(found).all())
                if not methods[0].folds and not methods[0].reorders:
                    assert difference(found, weight) < 0.3, (text, name)


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_bad_checkpoints_are_one_line(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())

    def refused(change: dict, reason: str) -> None:
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=reason) as caught:
            checkpoint.load(folder, FAMILIES)
        assert len(str(caught.value).splitlines()) == 1

    refused({"model_type": "deepseek_v3"}, "llama has the architecture deepseek_v3; supported")
    shape = r"the shape of model.layers.0.mlp.down_proj.weight must be \[64, 100\] by its conf"
    refused({"intermediate_size": 100}, shape)
    refused({"auto_map": {"AutoModelForCausalLM": "model.Model"}}, "auto_map must be null")
    refused({"num_hidden_layers": 3}, "has no tensor model.layers.2")
    refused({"num_hidden_layers": 1}, "has a tensor that its model does not know, model.layers.1")
    (folder / "config.json").write_text(json.dumps(config))
    pickled = tmp_path / "pickled"
    shutil.copytree(folder, pickled, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(family("llama", unified=False).state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"cannot read .*safetensors"):
        checkpoint.load(pickled, FAMILIES)
