"""Each field of each kind's configuration, at odd values: used, without effect, or refused.

What has no effect is held against transformers: its logits are the same to the last bit. What is
used is held against transformers' own reading of the same fields: layers, RoPE, and the number of
weights.

Seen to fail, each by a test of this file, with:

- a default that differs: Gemma 2's cap, the router of DeepSeek-V3, the base of SmolLM3;
- ``mlp_only_layers``, ``moe_layers`` or ``no_rope_layers`` that nobody reads;
- ``router_scale`` left out of the description;
- ``rope_interleave`` or ``residual_multiplier`` in ``NO_EFFECT``, also where nothing reads it.
"""

import contextlib
import json
from typing import Any

import pytest

from golden.config import ConfigError
from golden.llm.decoder import ARCHITECTURES, KINDS, Decoder
from golden.llm.decoder.reading import NO_EFFECT
from sim.model import Model

Fields = dict[str, Any]
SIZES: Fields = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 256,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    "intermediate_size_mlp": 80, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "ffn_dim": 96, "word_embed_proj_dim": 64, "attention_chunk_size": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OWN: dict[str, Fields] = {
    "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 8},
    "opt": {"num_key_value_heads": 4},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
_QWEN = {
    "sliding_window": "use_sliding_window is false",
    "use_sliding_window": "layer_types are full",
    "max_window_layers": "layer_types stand beside it",
}
# Fields without effect while others have the value of ``MORE``'s first configuration, and why.
IDLE: dict[str, dict[str, str]] = {
    "deepseek_v3": {"num_nextn_predict_layers": "further modules are no part of the decoder"},
    "gemma3_text": {"_sliding_window_pattern": "layer_types stand beside it"},
    "llama4_text": {
        "interleave_moe_layer_step": "moe_layers stand beside it",
        "no_rope_layer_interval": "no_rope_layers stand beside it",
    },
    "phi3": {"original_max_position_embeddings": "RoPE is not longrope"},
    "qwen2": _QWEN,
    "qwen2_moe": _QWEN,
    "qwen3": _QWEN,
    "qwen3_moe": {"sliding_window": "use_sliding_window is false",
                  "use_sliding_window": "sliding_window is null"},
    "smollm3": {
        "sliding_window": "use_sliding_window is false",
        "use_sliding_window": "layer_types are full",
        "no_rope_layer_interval": "no_rope_layers stand beside it",
    },
}  # fmt: skip
# Configurations in which such fields have an effect: what is added, what is left out, the fields.
MORE: list[tuple[str, Fields, tuple[str, ...], tuple[str, ...]]] = [
    ("llama4_text", {}, ("moe_layers", "no_rope_layers", "layer_types"),
     ("interleave_moe_layer_step", "no_rope_layer_interval")),
    ("phi3", {"rope_scaling": LONG}, ("rope_parameters",), ("original_max_position_embeddings",)),
    *((kind, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
       ("layer_types",), ("sliding_window", "use_sliding_window", "max_window_layers"))
      for kind in ("qwen2", "qwen2_moe", "qwen3")),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, (),
     ("sliding_window", "use_sliding_window")),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 8},
     ("layer_types", "no_rope_layers"),
     ("sliding_window", "use_sliding_window", "no_rope_layer_interval")),
    ("gemma3_text", {"sliding_window_pattern": 3}, ("layer_types",), ("sliding_window_pattern",)),
    ("deepseek_v3", {"rope_parameters": {**YARN, "mscale_all_dim": 1.0}}, (),
     ("rope_parameters",)),
    ("granite", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0,
     "high_freq_factor": 4.0}}, (), ("rope_parameters",)),
]  # fmt: skip


def config_of(kind: str, fields: Fields) -> Any:
    from transformers import AutoConfig

    own = {name: value for name, value in fields.items() if name != "model_type"}
    return AutoConfig.for_model(kind, **own)


def tiny(kind: str) -> Fields:
    """The configuration of a tiny model as transformers writes it."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(kind).to_dict()
    own = {name: value for name, value in {**SIZES, **OWN.get(kind, {})}.items() if name in known}
    return json.loads(json.dumps(AutoConfig.for_model(kind, **own).to_dict()))


def cases() -> dict[str, tuple[str, Fields, tuple[str, ...]]]:
    """Lists by name: the kind, its fields, and those that have an effect in this configuration."""
    made = {kind: (kind, tiny(kind), ()) for kind in KINDS}
    for number, (kind, more, less, fields) in enumerate(MORE):
        kept = {name: value for name, value in tiny(kind).items() if name not in less}
        made[f"{kind} {number}"] = (kind, {**kept, **more}, fields)
    return made


@pytest.fixture(scope="module")
def all_cases() -> dict[str, tuple[str, Fields, tuple[str, ...]]]:
    pytest.importorskip("transformers")
    return cases()


def odd_values(value: Any) -> list[Any]:
    """Other values, of the same type and of others."""
    if isinstance(value, bool):
        return [not value, "yes", 3, None]
    if isinstance(value, int):
        return [value + 1, 2 * value, -1, 0, "odd", 2.5, True, None]
    if isinstance(value, float):
        return [1.5 * value + 0.125, -1.0, 0.0, "odd", True, float("nan"), float("inf"), None]
    if isinstance(value, str):
        return ["odd", 7, None]
    if isinstance(value, list):
        odd = [[], value[:-1], value + value[:1], ["odd"] * len(value), value[::-1], [7], [-1]]
        return [*odd, "odd", None]
    if isinstance(value, dict):
        inner = ({**value, name: odd} for name, each in value.items() for odd in odd_values(each))
        return [*inner, {**value, "odd": 1}, {}, "odd", None]
    return [3, -1, "odd", 0.5, True, [1], {"odd": 1}]


def decoded(fields: Fields) -> Decoder | None:
    """None: it is refused."""
    with contextlib.suppress(ConfigError):
        return Decoder.of("x", fields)
    return None


def differs(a: Any, b: Any) -> bool:
    return type(a) is not type(b) or a != b


CASES = [*KINDS, *(f"{kind} {number}" for number, (kind, *_) in enumerate(MORE))]


@pytest.mark.parametrize("name", CASES)
def test_no_field_is_ignored(name, all_cases):
    kind, fields, effective = all_cases[name]
    base = Decoder.of("x", fields)
    free = NO_EFFECT - {"model_type"}
    idle = free | IDLE.get(kind, {}).keys() - {*effective}
    used = set()
    for field, value in fields.items():
        for odd in filter(lambda odd, value=value: differs(odd, value), odd_values(value)):
            try:
                made = Decoder.of("x", {**fields, field: odd})
            except ConfigError as error:
                text = str(error)
                assert text.startswith("x: "), (field, odd)
                assert "\n" not in text, (field, odd)
                assert field not in free, (field, odd)
                continue
            if made != base:
                used.add(field)
                assert field not in free, (field, odd)
                continue
            # A null is what an absent field is, an empty object of RoPE too, and no order of
            # layers is another one.
            less = {each: fields[each] for each in fields if each != field}
            is_set = field == "moe_layers" and isinstance(odd, list) and {*odd} == {*value}
            is_absent = not odd and decoded(less) == made
            is_inner = isinstance(odd, dict) and isinstance(value, dict)
            is_inner = is_inner and all(not odd[e] or odd[e] == value[e] for e in value if e in odd)
            is_fixed = odd is None and field in ("head_dim", "num_key_value_heads")
            assert field in idle or is_set or is_absent or is_inner or is_fixed, (field, odd)
    assert {"vocab_size", *effective} <= used
    assert len(used) >= 8


@pytest.mark.parametrize("name", CASES)
def test_a_field_that_nobody_knows(name, all_cases):
    _, fields, _ = all_cases[name]
    for value in (False, 0, "", [], {}, 1.5):
        with pytest.raises(ConfigError, match="x: made_up must not be in a configuration of"):
            Decoder.of("x", {**fields, "made_up": value})
    assert Decoder.of("x", {**fields, "made_up": None}) == Decoder.of("x", fields)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_has_no_effect_by_transformers(kind, all_cases):
    """Logits of a tiny model are the same with all such fields changed at once."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    fields = all_cases[kind][1]
    skipped = {"dtype", "model_type", "transformers_version", "return_dict", "architectures"}
    names = (NO_EFFECT | IDLE.get(kind, {}).keys()) & fields.keys() - skipped
    changed = {**fields}
    for name in sorted(names):
        value = fields[name]
        if isinstance(value, bool):
            # Idle by each other: both together would be another model.
            changed[name] = value if name == "use_sliding_window" else not value
        elif isinstance(value, int | float):
            changed[name] = value + 1 if isinstance(value, int) else value + 0.25
    assert changed != fields
    assert Decoder.of("x", changed) == Decoder.of("x", fields)
    torch.manual_seed(0)
    ids = torch.randint(0, 100, (1, 48))
    first = AutoModelForCausalLM.from_config(config_of(kind, fields)).eval()
    for weight in first.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    other = AutoModelForCausalLM.from_config(config_of(kind, changed)).eval()
    other.load_state_dict(first.state_dict())
    with torch.no_grad():
        assert torch.equal(first(ids, use_cache=False).logits, other(ids, use_cache=False).logits)


def layers_of(config: Any, layers: int) -> list[tuple[int, int]]:
    """Window and chunk of each layer, as transformers reads them."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or 0
    chunk = getattr(config, "attention_chunk_size", None) or 0
    if types is None:
        return [(window, 0)] * layers
    return [
        (window if each == "sliding_attention" else 0, chunk if each == "chunked_attention" else 0)
        for each in types
    ]


ABSENT = object()  # in the place of a value: the field is left out
# Fields of transformers that a field of the description has in another form or by another name.
SCALARS: dict[str, Any] = {
    "rms_norm_eps": lambda made: made.norm_eps,
    "norm_epsilon": lambda made: made.norm_eps,
    "tie_word_embeddings": lambda made: made.tied,
    "num_key_value_heads": lambda made: made.kv_heads,
    "num_experts_per_tok": lambda made: made.active,
    "num_local_experts": lambda made: made.experts,
    "attention_bias": lambda made: bool({"o"} & {*made.biases}),
    "mlp_bias": lambda made: bool({"down"} & {*made.biases}),
    "use_bias": lambda made: bool(made.biases),
    "qkv_bias": lambda made: bool({"q"} & {*made.biases}),
    "norm_topk_prob": lambda made: made.router_norm,
    "routed_scaling_factor": lambda made: made.router_scale,
    "n_group": lambda made: made.expert_groups,
    "topk_group": lambda made: made.active_groups,
    "v_head_dim": lambda made: made.value,
    "rope_interleave": lambda made: made.rope_interleaved,
    "first_k_dense_replace": lambda made: sum(made.dense),
    "attn_logit_softcapping": lambda made: made.attention_cap or None,
    "final_logit_softcapping": lambda made: made.logit_cap or None,
    "query_pre_attn_scalar": lambda made: pytest.approx(made.attention_scale**-2),
    "attention_multiplier": lambda made: made.attention_scale,
    "embedding_multiplier": lambda made: made.embedding_scale,
    "residual_multiplier": lambda made: made.residual_scale,
    "logits_scaling": lambda made: pytest.approx(1 / made.logit_scale),
    "use_qk_norm": lambda made: made.qk_norm == "after",
    "floor_scale": lambda made: made.temper_floor or 8192,
    "attn_temperature_tuning": lambda made: bool(made.temper_floor),
    "hidden_activation": lambda made: made.activation,
}


def agree(made: Model, config: Any) -> None:
    """A description states what transformers reads from the same fields."""
    layers = range(made.layers)
    for field, of in SCALARS.items():
        if hasattr(config, field):
            assert getattr(config, field) == of(made), field
    assert [(made.window_of(n), made.chunk_of(n)) for n in layers] == layers_of(config, made.layers)
    turned = getattr(config, "no_rope_layers", None) or [1] * made.layers
    assert [made.is_rotated(n) for n in layers] == [bool(made.rope and each) for each in turned]
    if made.rope:
        stated = config.rope_parameters
        if "full_attention" in stated:
            assert made.rope_local == stated["sliding_attention"]["rope_theta"]
            stated = stated["full_attention"]
        assert (made.rope, made.rope_base) == (stated["rope_type"], stated["rope_theta"])
        names = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
        own = {
            field: tuple(value) if isinstance(value, list) else value
            for field, value in stated.items()
            if field not in names and value is not None
        }
        assert dict(made.rope_scaling) == own
    dense = getattr(config, "mlp_only_layers", None) or []
    if getattr(config, "moe_layers", None) is not None:
        dense = [n for n in layers if n not in config.moe_layers]
    if made.experts > 1 and not hasattr(config, "first_k_dense_replace"):
        step = getattr(config, "decoder_sparse_step", 1)
        plain = [n in dense or bool((n + 1) % step) for n in layers]
        assert [made.is_dense(n) for n in layers] == plain


@pytest.mark.parametrize("name", CASES)
def test_transformers_reads_the_same(name, all_cases):
    """Layers, RoPE and the number of weights agree for each odd value that both accept."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    kind, fields, _ = all_cases[name]
    base, compared = Model.of("x", fields), 0
    for field, odd in [
        ("vocab_size", fields["vocab_size"]),
        *((field, ABSENT) for field in fields),
        *((field, odd) for field, value in fields.items() for odd in odd_values(value)),
    ]:
        changed, made = {**fields, field: odd}, None
        if odd is ABSENT:
            del changed[field]
        with contextlib.suppress(ConfigError):
            made = Model.of("x", changed)
        if made is None or odd is None or (made == base and odd not in (ABSENT, fields[field])):
            continue
        try:
            config = config_of(kind, json.loads(json.dumps(changed)))
        except Exception:  # transformers refuses in many ways
            continue
        agree(made, config)
        compared += 1
        if isinstance(odd, float | str | dict):
            continue  # no number of weights follows it
        if field == "pad_token_id" and odd is ABSENT:
            continue  # its default may be no word of a tiny vocabulary
        with torch.device("meta"):
            network = AutoModelForCausalLM.from_config(config)
        matrices = [
            each.numel()
            for label, each in network.named_parameters()
            if each.dim() > 1 and "bias" not in label and "embed_positions" not in label
        ]
        assert sum(matrices) == made.weights, (field, odd)
    assert compared >= 4


@pytest.mark.parametrize("kind", ["gemma3", "llama4"])
def test_a_decoder_inside(kind):
    inner = {"gemma3": "gemma3_text", "llama4": "llama4_text"}[kind]
    pytest.importorskip("transformers")
    text = tiny(inner)
    fields = {"model_type": kind, "text_config": text, "vision_config": {}, "image_token_index": 9}
    assert Decoder.of("x", fields) == Decoder.of("x", text)
    assert Decoder.of("x", fields).architecture == inner
    for change, line in (
        ({"made_up": 1}, f"x: made_up must not be in a configuration of {kind}, which"),
        ({"text_config": None}, "x: text_config must be an object, not None"),
        ({"text_config": {**text, "made_up": 1}}, "x: text_config.made_up must not be in a"),
        ({"text_config": {**text, "hidden_size": -1}},
         "x: text_config.hidden_size must be a whole number of 1 or more, not -1"),
        ({"text_config": {**text, "model_type": "llama"}},
         f"x: text_config.model_type must be {inner}, not 'llama'"),
        ({"tie_word_embeddings": not text["tie_word_embeddings"]},
         "x: tie_word_embeddings must be"),
        ({"quantization_config": {"bits": 4}}, "x: quantization_config must be null in a model"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as error:
            Decoder.of("x", {**fields, **change})
        assert str(error.value).startswith(line)
    with pytest.raises(ConfigError, match=r"x: lacks text_config\.\w+"):
        Decoder.of("x", {"model_type": kind, "text_config": {"model_type": inner}})


def test_architectures():
    assert set(ARCHITECTURES) == {*KINDS, "gemma3", "llama4"}
    assert len(ARCHITECTURES) >= 18
