"""golden.llm.pack and the simulator refuse the same models with the same line.

Shown to fail before golden.llm.kllm.chip:

- golden.llm.pack of a layer packed GELU, dynamic RoPE, a short window, and left out the norms of q,
k;
- the simulator gave figures for all of ``REFUSED`` but experts and the head size.
"""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from golden.config import ConfigError
from golden.llm import checkpoint, pack
from golden.llm.checkpoint import Checkpoint
from golden.llm.decoder import Decoder
from golden.llm.kllm.chip import check_no_windows, chip_layer
from sim import compare, run, serve, sweep

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 96, "vocab_size": 50, "max_position_embeddings": 512, "head_dim": 32,
}  # fmt: skip
MACHINE = ["--config", "small_cache", "--set", "cache.kv.heads=1", "--set", "cache.max_tokens=64",
           "--set", "cache.pages=256", "--set", "extra.gelu_erf=true",
           "--set", "extra.quick_gelu=true", "--set", "extra.tanh=true"]  # fmt: skip
PROGRAM = "KLLM's compiler has no program for"
# Of sequences of 40 tokens.
REFUSED = [
    ("llama", {"hidden_act": "mish"}, f"{PROGRAM} this activation: hidden_act must be silu or swi"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
     f"{PROGRAM} these positions: rope_type must be default or linear or llama3 or yarn, not dyna"),
    ("gemma2", {"final_logit_softcapping": 30.01},
     "final_logit_softcapping must be above 0 and 1 more than an FP16 word, not 30.01"),
    ("starcoder2", {"head_dim": None, "hidden_act": "gelu_pytorch_tanh"},
     f"{PROGRAM} this norm: norm must be RMSNorm, not LayerNorm"),
    ("qwen2_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                   "shared_expert_intermediate_size": 48},
     f"{PROGRAM} shared experts: shared_expert_intermediate_size must be 0, not 48"),
    ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                   "mlp_only_layers": [0]},
     f"{PROGRAM} plain networks among experts: mlp_only_layers or decoder_sparse_step must be suc"),
    ("qwen3", {"head_dim": 48},
     f"{PROGRAM} norms of q and k in heads of this size: head_dim must be a multiple of 32, not"),
]  # fmt: skip
RUNS = [
    ("llama", {"hidden_act": "swish"}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("mistral", {"sliding_window": 256}),
    ("mistral", {"sliding_window": None}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("phi3", {"pad_token_id": 0, "partial_rotary_factor": 0.75}),
    ("gemma", {}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}),
    ("llama", {"hidden_act": "gelu"}),
    ("llama", {"hidden_act": "quick_gelu"}),
    ("olmo2", {}),
    ("granite", {"residual_multiplier": 0.4, "attention_multiplier": 0.3}),
    ("smollm3", {"no_rope_layers": [1, 0], "pad_token_id": 0}),
]


def folder(path: Path, kind: str, fields: dict) -> Path:
    """A random model with a configuration as given."""
    path.mkdir()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **fields}))
    model.save_pretrained(path)
    return path


class Words:
    """A tokenizer: a word's length is its number."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}


def own_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """``checkpoint.load`` with our tokenizer."""
    real = checkpoint.load

    def load(path: Path, *rest: object) -> Checkpoint:
        from transformers import AutoTokenizer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: Words())
            return real(path, *rest)

    monkeypatch.setattr(checkpoint, "load", load)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("kind", "fields", "line"), REFUSED)
def test_one_line_for_pack_and_simulator(kind, fields, line, tmp_path, monkeypatch, capsys):
    own_load(monkeypatch)
    model = str(folder(tmp_path / "model", kind, fields))
    output = ["--model", model, "-o", str(tmp_path / "out"), *MACHINE]
    assert pack.main([*output, "--layer", "1", "--context", "39"]) == 2
    found = last_line(capsys).removeprefix("golden.llm.pack: ")
    assert found.startswith(line)
    if kind == "llama":
        assert pack.main([*output, "--all", "--context", "40"]) == 2
        assert last_line(capsys) == f"golden.llm.pack: {found}"
    assert not (tmp_path / "out").exists()
    sizes = ["--prompt", "30", "--out", "10"]
    for command, chips in ((run, ["kllm-a4"]), (compare, ["kllm-a4", "kllm-a3"])):
        assert command.main(["--hw", *chips, "--model", model, *sizes]) == 2
        assert last_line(capsys) == f"{command.__name__}: {found}"
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps(
        {"hw": ["kllm-a4", "a100-80gb"], "model": [model], "prompt": [30], "out": [10]}
    ))  # fmt: skip
    made = tmp_path / "made.jsonl"
    assert sweep.main([str(file), "-o", str(made), "--workers", "1"]) == 0
    rows = [json.loads(each)["row"] for each in made.read_text().splitlines()]
    assert rows[0]["refused"] == found
    assert "refused" not in rows[1]


def test_serve_refuses_with_the_same_line(tmp_path, monkeypatch, capsys):
    model = folder(tmp_path / "model", "llama", {"hidden_act": "mish"})
    words = ["sim.serve", "--model", str(model), "--hw", "kllm-a4", "--arrivals", "poisson",
             "--requests", "3", "--rate", "1", "--prompt", "20", "--out", "4"]  # fmt: skip
    monkeypatch.setattr("sys.argv", words)
    assert serve.main() == 2
    assert f"sim.serve: {REFUSED[0][2]}" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "fields"), RUNS)
def test_what_the_chip_runs(kind, fields, tmp_path, monkeypatch, capsys):
    own_load(monkeypatch)
    model = str(folder(tmp_path / "model", kind, fields))
    output = ["--model", model, "-o", str(tmp_path / "out"), *MACHINE]
    assert pack.main([*output, "--layer", "1", "--context", "39"]) == 0
    arguments = ["--model", model, "--prompt", "30", "--out", "10"]
    assert run.main(["--hw", "kllm-a4", *arguments]) == 0


def test_a_kv_head_for_more_query_heads_than_a_machine_has(tmp_path, monkeypatch, capsys):
    """Four query heads share one KV head, which a machine of two for each has twice."""
    own_load(monkeypatch)
    model = str(folder(tmp_path / "model", "llama", {"num_attention_heads": 4}))
    output = ["--model", model, "--layer", "1", "-o", str(tmp_path / "out"), *MACHINE]
    assert pack.main(output) == 2
    assert last_line(capsys).endswith("MachineConfig.queries must be 4 for this layer, not 2")
    twice = [each.replace("cache.kv.heads=1", "cache.kv.heads=2") for each in output]
    assert pack.main(twice) == 0


@pytest.mark.parametrize(("heads", "kv_heads", "served"), [(8, 1, 1), (9, 1, 3), (32, 2, 4),
                                                           (11, 1, 11), (48, 1, 6), (71, 1, 71)])
def test_kv_heads_for_any_number_of_query_heads(heads, kv_heads, served):
    """A machine has eight query heads for each KV head at most."""
    fields = {**SIZES, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    shape = chip_layer(Decoder.of("x", {**fields, "model_type": "llama"}), 1)
    assert (shape.kv_heads, shape.group) == (served, heads // served)


def test_a_layer_that_computes_something_else(tmp_path, monkeypatch, capsys):
    """Its configuration says SiLU, its layers have GELU: the figure refuses it."""
    path = folder(tmp_path / "model", "llama", {})
    own_load(monkeypatch)
    real = checkpoint.load

    def load(path: Path) -> Checkpoint:
        loaded = real(path)
        for layer in loaded.model.model.layers:
            layer.mlp.act_fn = torch.nn.GELU()
        return loaded

    monkeypatch.setattr(checkpoint, "load", load)
    arguments = ["--model", str(path), "--layer", "1", *MACHINE]
    assert pack.main([*arguments, "-o", str(tmp_path / "out")]) == 2
    line = last_line(capsys)
    reason = "layer 1: the float reference must be within 0.0001 of wha"
    assert line.startswith(f"golden.llm.pack: {reason}")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_model(tmp_path, monkeypatch, capsys):
    """IndexError before: a word of the text is longer than the embedding."""
    path = folder(tmp_path / "model", "llama", {})
    own_load(monkeypatch)
    real = Words.__call__

    def far(self: Words, text: str) -> dict[str, list[int]]:
        return {"input_ids": [99, *real(self, text)["input_ids"]]}

    monkeypatch.setattr(Words, "__call__", far)
    output = ["--model", str(path), *MACHINE, "-o", str(tmp_path / "out")]
    for more in (["--layer", "1"], ["--all", "--context", "40"]):
        assert pack.main([*output, *more]) == 2
        expected = "golden.llm.pack: token ids must be 0..49 for this model, not 99"
        assert last_line(capsys) == expected
    assert not (tmp_path / "out").exists()


def test_a_machine_without_windows(tmp_path, monkeypatch, capsys):
    """Refused for each layer and for the model; the simulator, which has no machine with them."""
    own_load(monkeypatch)
    model = str(folder(tmp_path / "model", "mistral", {"sliding_window": 39}))
    output = ["--model", model, *MACHINE]
    line = "MachineConfig.cache.windows must be True for this layer, whose tokens attend 39 of 40"
    for n, more in enumerate((["--layer", "1", "--context", "39"], ["--all", "--context", "40"])):
        windowed = [*output, *more, "--set", "cache.windows=true"]
        assert pack.main([*output, *more, "-o", str(tmp_path / "out")]) == 2
        assert last_line(capsys) == f"golden.llm.pack: {line}"
        assert pack.main([*windowed, "-o", str(tmp_path / f"{n}")]) == 0
    assert not (tmp_path / "out").exists()
    capsys.readouterr()
    sizes = ["--prompt", "30", "--out", "10"]
    assert run.main(["--hw", "kllm-a4", "--model", model, *sizes]) == 2
    assert "sliding_window must be null or at least the 40 tokens" in last_line(capsys)


def test_a_machine_without_caps(tmp_path, monkeypatch, capsys):
    """Refused for each layer and for the model; the simulator has a machine with them.

    Shown to fail: the simulator's machine without caps.
    """
    own_load(monkeypatch)
    model = str(folder(tmp_path / "model", "gemma2", {"final_logit_softcapping": None}))
    output = ["--model", model, *MACHINE]
    line = "MachineConfig.cache.caps must be True for this layer, whose scores have a cap of 50"
    for n, more in enumerate((["--layer", "1", "--context", "39"], ["--all", "--context", "40"])):
        assert pack.main([*output, *more, "-o", str(tmp_path / "out")]) == 2
        assert last_line(capsys) == f"golden.llm.pack: {line}"
        capped = [*output, *more, "--set", "cache.caps=true", "-o", str(tmp_path / f"{n}")]
        assert pack.main(capped) == 0
    assert not (tmp_path / "out").exists()
    assert run.main(["--hw", "kllm-a4", "--model", model, "--prompt", "30", "--out", "10"]) == 0
    made = Decoder.of("x", {**SIZES, "model_type": "gemma2", "attn_logit_softcapping": 2.0**15,
                            "final_logit_softcapping": None})  # fmt: skip
    with pytest.raises(ConfigError, match=r"LayerShape.cap must be 0 or 0.000976562..16384, not"):
        chip_layer(made, 1)


MIXED = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(("kind", "fields", "shape"), [
    ("mixtral", MIXED, (4, 2, True)),
    ("qwen3_moe", {"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": False,
                   "moe_intermediate_size": 32}, (5, 3, False)),
])  # fmt: skip
def test_experts_of_a_configuration(kind, fields, shape):
    """Experts, those of a token, and whether their weights have a sum of 1."""
    layer = chip_layer(Decoder.of("x", {**SIZES, **fields, "model_type": kind}), 1)
    assert (layer.experts, layer.active, layer.router_norm) == shape


@pytest.mark.parametrize(("change", "line"), [
    ({"router": "sigmoid"}, "this router: router must be softmax or topk_softmax, not sigmoid"),
    ({"router": "sigmoid_input"}, "this router: router must be softmax or topk_softmax, not sigm"),
    ({"expert_groups": 2}, "groups of experts: n_group must be 1, not 2"),
    ({"router_scale": 2.5}, "factors of experts: routed_scaling_factor must be 1, not 2.5"),
    ({"shared": 32}, "shared experts: shared_expert_intermediate_size must be 0, not 32"),
])  # fmt: skip
def test_experts_that_are_refused(change, line):
    made = Decoder.of("x", {**SIZES, **MIXED, "model_type": "mixtral"})
    with pytest.raises(ConfigError, match=f"^{PROGRAM} {line}"):
        chip_layer(dataclasses.replace(made, **change), 1)


def test_a_machine_without_experts(tmp_path, monkeypatch, capsys):
    """Refused for a layer and for the model; the simulator has a machine with experts."""
    own_load(monkeypatch)
    model = str(folder(tmp_path / "model", "mixtral", MIXED))
    output = ["--model", model, *MACHINE]
    line = "MachineConfig.experts must be 2 for this layer, not 0"
    for n, more in enumerate((["--layer", "1", "--context", "39"], ["--all", "--context", "40"])):
        assert pack.main([*output, *more, "-o", str(tmp_path / "out")]) == 2
        assert last_line(capsys) == f"golden.llm.pack: {line}"
        assert pack.main([*output, *more, "--set", "experts=2", "-o", str(tmp_path / f"{n}")]) == 0
    assert not (tmp_path / "out").exists()
    assert run.main(["--hw", "kllm-a4", "--model", model, "--prompt", "30", "--out", "10"]) == 0


def test_the_window_is_that_of_the_longest_sequence():
    fields = {**SIZES, "model_type": "mistral", "sliding_window": 100}
    made = Decoder.of("x", fields)
    assert (chip_layer(made, 100).window, chip_layer(made, 101).window) == (0, 100)
    check_no_windows(made, 100)
    with pytest.raises(ConfigError, match="at least the 101 tokens of a sequence, not 100"):
        check_no_windows(made, 101)
    with pytest.raises(ConfigError, match=r"LayerShape\.hidden must be 16\.\.16383, not 20000"):
        chip_layer(dataclasses.replace(made, hidden=20000), 1)
