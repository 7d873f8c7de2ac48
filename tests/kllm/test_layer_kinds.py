"""Layers of all kinds on the golden machine, against transformers and against float64.

Each of these fails ``test_machine_computes_the_layer``:

- biases of q, k, v, of o and down, or of gate left out; q's bias without the scale of scores;
- gamma of 1, or that of q without the scale of scores;
- another divisor of the mean; epsilon left out, or without the square of the factor;
- the scale of the first head for all heads;
- gamma and statistics of a norm where there is none;
- the elements of a head in the model's order, in k alone too; ROTARY in a layer without it;
- SiLU in the place of GELU, GELU's tanh form in the place of the exact one;
- gate without its limit, up without its least or without its 1;
- the cap of scores left out, or that of twice its size; sinks left out, in another order, or
  with the scale of scores;
- the factor of what a layer adds left out, or that of down alone;
- with experts: weights that are not divided by their sum, or are where the model does not;
- with experts: the weight, the packet or the base of another rank.

The last ones stop at the comparison with transformers.
"""

import dataclasses
import functools

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import add, bits_from_float, float_from_bits, mul
from golden.kllm.cache import Place
from golden.kllm.config import MACHINES, FunctionShape, MachineConfig
from golden.kllm.flow import kind_of
from golden.kllm.functional import axpy, function
from golden.kllm.isa import COMMAND_WORDS, Function, Opcode
from golden.kllm.layer.compiler import compile_layer, sink_rows
from golden.kllm.layer.host import history_of, run_layer
from golden.kllm.layer.layout import Job
from golden.kllm.layer.program import cap_scalar, head_program, layer_program
from golden.kllm.layer.quantized import QuantizedLayer, norm_factors, quantize_layer
from golden.kllm.layer.shape import LayerOptions, LayerShape, network_parts
from golden.kllm.layer.weights import layer_weights
from golden.kllm.machine import Machine
from golden.kllm.model.compiler import ModelImage, compile_model
from golden.kllm.model.host import ModelHost
from golden.kllm.model.program import pass_program, step_program
from golden.llm.checkpoint import Checkpoint
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Bits, Site
from golden.llm.eval.state import calibrate
from golden.llm.kllm import pack
from golden.llm.kllm.example import KINDS, MODELS, Kind, example, random_model
from golden.llm.kllm.reference import check_reference, layer_inputs, reference
from golden.llm.methods.kllm import KllmPlain
from golden.llm.methods.oaken import Oaken
from golden.llm.pack import Calibrated
from golden.oaken.kv_engine import Request
from golden.paging.format import Kv, Op
from tests.kllm.plain_layer import Plain, plain

CACHED = MachineConfig.parse(
    MACHINES["small_cache"],
    [
        "cache.pages=512",
        "cache.page_bytes=512",
        "cache.max_tokens=160",
        "experts=4",
        *(f"cache.{name}=true" for name in ("windows", "caps", "sinks")),
        *(f"extra.{name}=true" for name in ("tanh", "gelu_erf", "quick_gelu", "bounds")),
    ],
)
assert isinstance(CACHED, MachineConfig)
OPTIONS = (
    (LayerOptions(), 1),
    (LayerOptions(fuse=False, glu="exact", center=True), 2),
    (LayerOptions(parts=3), 1),
    (LayerOptions(fuse=False, glu="exact", parts=2), 1),
)


@functools.cache
def quantized_example(name: str, options: LayerOptions) -> QuantizedLayer:
    found = example(name)
    return quantize_layer(found.weights, found.seen, options=options)


# Networks of experts have no parts.
CASES = {
    f"{name}-{what}": (name, options, tokens)
    for name in KINDS
    for what, (options, tokens) in zip(
        ("usual", "not fused", "three parts", "two parts"), OPTIONS, strict=True
    )
    if not (options.parts and "experts" in name)
}


@pytest.mark.parametrize(("name", "options", "tokens"), CASES.values(), ids=CASES)
def test_machine_computes_the_layer(name: str, options: LayerOptions, tokens: int) -> None:
    """Roundings to FP16 are all that is left: 0.003, unless one of them moves an index.

    Of the tokens at some places of the text one at least has no such index.
    """
    found, quantized = example(name), quantized_example(name, options)
    other = Plain(quantized, found.weights, norm_factors(found.weights, options, found.seen))
    errors: list[float] = []
    for context in range(2, 50, 3):
        new = slice(context, context + tokens)
        history = history_of(quantized, found.seen["k"][:context], found.seen["v"][:context])
        x = found.inputs.x[new].half().double()
        given = x, found.inputs.cos[new], found.inputs.sin[new]
        run = run_layer(compile_layer(quantized, CACHED, tokens, context), *given, [history])
        expected = plain(other, CACHED, *given, history)
        errors += ((run.value - expected).norm(dim=1) / (expected - x).norm(dim=1)).tolist()
        assert max(errors) < 0.5, errors
        if min(errors) < 0.003:
            return
    raise AssertionError(errors)


@pytest.mark.parametrize("size", [8, 40, 80, 96])
def test_heads_have_room(size: int) -> None:
    """Shown to fail: zeros before the elements of a head of o."""
    model = random_model(Kind("llama", {"head_dim": size}))
    inputs = layer_inputs(model, torch.arange(32), 1)
    weights = layer_weights(model.model.layers[1], model.config)
    assert weights.shape.head_size == -(-size // 32) * 32
    seen = reference(weights, inputs.x, inputs.cos, inputs.sin)
    check_reference(seen["y"], inputs, 1)


def test_norms_of_heads_have_no_room() -> None:
    model = random_model(Kind("qwen3", {"head_dim": 16}))
    with pytest.raises(ConfigError, match="multiple of 32 with norms of q and k, not 16"):
        layer_weights(model.model.layers[1], model.config)


@pytest.mark.parametrize("name", KINDS)
def test_weights_have_their_factors(name: str) -> None:
    """A quantized weight is that of the model times gamma before it and the scale of scores.

    Shown to fail: another scale of scores; scales without the factor of the norm that follows.
    """
    found, options = example(name), LayerOptions()
    weights, quantized = found.weights, quantized_example(name, options)
    factor = norm_factors(weights, options, found.seen)
    made = Plain(quantized, weights, factor).matrix
    before = dict.fromkeys("qkv", weights.input_norm)
    before |= dict.fromkeys(("gate", "up", "router"), weights.post_norm)
    for linear, real in weights.linear.items():
        kind = kind_of(linear)
        wanted = real.t() * factor.get(kind, 1.0)
        if kind in before and weights.shape.norm_places != "after":
            wanted = wanted * before[kind][:, None]
        if linear == "q" and linear not in weights.norm:
            wanted = wanted * weights.scaling
        assert float((made[linear] - wanted).norm() / wanted.norm()) < 0.15, linear


def test_kv_heads_may_be_there_several_times() -> None:
    """Shown to fail: all KV heads one after the other, instead of each several times."""
    model = random_model(KINDS["norms of rows, norms after"])
    layer, inputs = model.model.layers[1], layer_inputs(model, torch.arange(20), 1)
    made = [
        reference(layer_weights(layer, model.config, heads), inputs.x, inputs.cos, inputs.sin)["y"]
        for heads in (2, 4)
    ]
    torch.testing.assert_close(*made, rtol=1e-12, atol=1e-12)
    with pytest.raises(ConfigError, match="kv_heads must be a multiple of 2, not 1"):
        layer_weights(layer, model.config, 1)


@pytest.mark.parametrize(
    "name",
    ["no RoPE", "factors", "norms before and after", "a cap of scores", "a window",
     "a cap of logits", "angles of windowed layers"],
)  # fmt: skip
def test_a_model_of_such_layers(name: str) -> None:
    """Logits are near those of the real model, and of their size; k and q are rotated in turn.

    Shown to fail: embeddings or logits without their factor; all layers rotated; logits that are
    not multiplied by their cap.
    """
    loaded = Checkpoint(random_model(MODELS[name]), None, "random")
    ids = torch.randint(0, 50, (128,), generator=torch.Generator().manual_seed(2))
    options = LayerOptions(glu="exact")
    source = pack.trained(loaded, ids, options, CACHED)
    layout = pack.checked_layout(loaded, options, CACHED, None, 40)
    image = compile_model(
        pack.quantize_model(loaded, source, layout, [ids], lambda _line: None), layout
    )
    words = pass_program(layout, Job()).words
    opcodes = [words[n] & 0xFF for n in range(0, len(words), COMMAND_WORDS)]
    assert opcodes.count(Opcode.ROTARY) == 2 * (1 if name == "no RoPE" else 2)
    host, made = ModelHost(image), []
    for place, token in enumerate(ids[:12].tolist()):
        made.append(host.run(pass_program(layout, Job(1, place), 1), [token]).logits)
    found = float_from_bits(torch.cat(made)).flatten()
    with torch.no_grad():
        real = loaded.model(ids[None, :12]).logits[0].double().flatten()
    both = torch.stack((found, real))
    assert float(torch.corrcoef(both)[0, 1]) > 0.9
    assert 0.85 < float((found @ real) / (real @ real)) < 1.15


def _image(name: str, **fields: object) -> ModelImage:
    """A model of MODELS on the accelerator, with other fields of its configuration."""
    kind = MODELS[name]
    kind = dataclasses.replace(kind, fields={**kind.fields, **fields})
    loaded = Checkpoint(random_model(kind), None, "random")
    ids = torch.randint(0, 50, (64,), generator=torch.Generator().manual_seed(2))
    options = LayerOptions(glu="exact")
    source = pack.trained(loaded, ids, options, CACHED)
    layout = pack.checked_layout(loaded, options, CACHED, None, 40)
    quantized = pack.quantize_model(loaded, source, layout, [ids], lambda _line: None)
    return compile_model(quantized, layout)


def test_a_cap_changes_no_word_but_by_its_function() -> None:
    """Under a cap of 2 the words are twice TANH of half of the logits without a cap.

    Shown to fail: logits without TANH; 1/cap left out of the head; another factor of AXPY.
    """
    made = []
    for cap in (2.0, None):
        host = ModelHost(_image("a cap of logits", final_logit_softcapping=cap))
        runs = (host.run(pass_program(host.layout, Job(1, n), 1), [7 * n]) for n in range(6))
        made.append(torch.cat([run.logits for run in runs]))
    t = function(Function.TANH, mul(made[1], torch.full_like(made[1], 0x3800)))  # 1/2
    assert torch.equal(made[0], add(t, t))
    assert not torch.equal(made[0], made[1])


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("angles of windowed layers", {}),
        ("one KV head", {"rope_type": "linear", "factor": 2.0}),
        *(
            ("one KV head",
             {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
              "truncate": truncate})
            for truncate in (True, False)
        ),
    ],
    ids=["two bases", "linear", "yarn", "yarn without truncate"],
)  # fmt: skip
def test_angles_of_each_layer(name: str, rope: dict[str, object]) -> None:
    """The rows that a layer's commands name have what transformers gives the layer.

    Shown to fail: the first table for a layer with a window; both tables of one base.
    """
    fields = {"rope_parameters": {"rope_theta": 100.0, **rope}} if rope else {}
    image = _image(name, **fields)
    kind = MODELS[name]
    model = random_model(dataclasses.replace(kind, fields={**kind.fields, **fields}))
    rows = image.data.view("<u2").reshape(-1, 16)
    found = []
    for number in range(2):
        inputs = layer_inputs(model, torch.arange(20), number)
        place = image.layout.of_layer(number, Job(20)).place
        for table, real in (("cos", inputs.cos), ("sin", inputs.sin)):
            words = [rows[place[f"{table}{t}"][0]].astype("int64").tolist() for t in range(20)]
            assert words == bits_from_float(real.double()).tolist(), (number, table)
            found.append(words)
    assert (found[0] == found[2]) == (name == "one KV head")


@pytest.mark.parametrize(
    ("name", "fields"),
    [("a cap of logits", {"final_logit_softcapping": 0.25}), ("angles of windowed layers", {})],
    ids=["a cap", "two bases"],
)
def test_steps_of_such_models(name: str, fields: dict[str, object]) -> None:
    """A step's ids are the lowest of the largest logits that a pass gives, token by token.

    Under a low cap many logits are equal. Shown to fail: a step whose layers all have the first
    table of angles; one without the cap.
    """
    image = _image(name, **fields)
    generator, equal = torch.Generator().manual_seed(3), 0
    layout, ids = image.layout, torch.randint(0, 50, (12,), generator=generator).tolist()
    alone, together = ModelHost(image), ModelHost(image)
    program = step_program(layout, 2)
    for first in range(0, 12, 2):
        wanted = []
        for place in (first, first + 1):
            made = alone.run(pass_program(layout, Job(1, place), 1), [ids[place]]).logits[0]
            largest = float_from_bits(made).max()
            among = (float_from_bits(made) == largest).nonzero()
            wanted.append(int(among[0]))
            equal += len(among) > 1
        places = [Place(together.sequence, n, ids[n]) for n in (first, first + 1)]
        assert together.step(program, places).ids == wanted
    assert bool(equal) == bool(fields)
    reads = [
        each.machine.cache.request(Request(Op.READ, each.sequence, 1, kv, 0, 2, 12)).words
        for each in (alone, together) for kv in Kv if each.machine.cache is not None
    ]  # fmt: skip
    assert reads[:2] == reads[2:]


@pytest.mark.parametrize("name", ["exact GELU", "clamped SwiGLU"])
def test_a_machine_without_the_function(name: str) -> None:
    """Shown to fail: a machine that has one function and not the other taken."""
    plain_machine = dataclasses.replace(CACHED, extra=FunctionShape())
    some = dataclasses.replace(CACHED, extra=FunctionShape(quick_gelu=True))
    field = "gelu_erf" if name == "exact GELU" else "quick_gelu"
    with pytest.raises(ConfigError, match=f"MachineConfig.extra.{field} must be True for this lay"):
        layer_program(example(name).weights.shape, LayerOptions(), plain_machine)
    field = "gelu_erf" if name == "exact GELU" else "bounds"
    with pytest.raises(ConfigError, match=f"MachineConfig.extra.{field} must be True for this lay"):
        layer_program(example(name).weights.shape, LayerOptions(), some)


def test_numbers_of_a_clamped_network() -> None:
    """ConfigError names the field."""
    model = random_model(KINDS["clamped SwiGLU"])
    layer = model.model.layers[0]
    layer.mlp.activate = dataclasses.replace(layer.mlp.activate, limit=5.0)
    with pytest.raises(ConfigError, match="swiglu_limit must be 7, not 5"):
        layer_weights(layer, model.config)
    layer.mlp.activate = dataclasses.replace(layer.mlp.activate, limit=7.0, alpha=1.0)
    with pytest.raises(ConfigError, match=r"swiglu_alpha must be 1\.702, not 1"):
        layer_weights(layer, model.config)


def test_caps_of_logits() -> None:
    """The cap's product is rounded once; a cap that no AXPY multiplies by is refused."""
    assert (cap_scalar(30.0), cap_scalar(0.5)) == (29.0, -0.5)
    for cap in (30.01, -2.0, 1e6):
        with pytest.raises(ConfigError, match="final_logit_softcapping must be above 0 and 1 more"):
            cap_scalar(cap)
    shape = dataclasses.replace(example("one KV head").weights.shape, kv_heads=2)
    bare = dataclasses.replace(CACHED, extra=FunctionShape())
    with pytest.raises(ConfigError, match=r"extra\.tanh must be True for this model, whose logits"):
        head_program(shape, bare, 50, cap=30.0)
    y = torch.arange(0x3800, 0xC000, 7)
    t = function(Function.TANH, y)
    capped = float_from_bits(axpy(torch.tensor(0x4F40), t, t))  # 29.0
    assert torch.equal(bits_from_float(30 * float_from_bits(t)), bits_from_float(capped))
    assert torch.equal(capped.sign(), float_from_bits(y).sign())


@pytest.mark.parametrize(
    "name",
    ["biases of q, k, v", "a window", "a cap of scores", "norms of heads",
     "norms of rows, norms after", "norms before and after", "a part of a head rotated", "factors",
     "clamped SwiGLU", "experts", "experts, norms of heads", "experts of gpt-oss"],
)  # fmt: skip
def test_a_calibrated_layer_is_what_the_method_measures(name: str) -> None:
    """golden.llm.eval's codebooks and weights in a program, against the model with the method.

    K and V are Oaken's in both. A rounding may move an index: so, some token. Shown to fail:

    - without the factor of what a layer adds, or the order of a head's elements;
    - q's norm with another epsilon than k's;
    - without the images of the router.
    """
    model = random_model(KINDS[name])
    method = KllmPlain(glu="exact", center=True, rotate=True, tokens=64)
    methods = [dataclasses.replace(method, cache_bits=16, integer_bits=16), Oaken()]
    ids = torch.randint(0, 50, (200,), generator=torch.Generator().manual_seed(2))
    states = calibrate(methods, CalibrationData(model, [ids]))
    both = Calibrated(methods, [states[0], states[1]], {}, lambda: ids)
    real, quantized = both.layer(model, 0)
    seen: dict[str, torch.Tensor] = {}
    with Site(model, Bits()) as site:
        site.kv(lambda layer, kv, x: seen.setdefault(f"{layer}.{kv}", x))  # before the offset
        both.install(site)
        inputs = layer_inputs(model, ids[:20], 0)
    k, v = (_in_order(seen[f"0.{kv}"][0], real.order.get("kv"[kv])) for kv in (0, 1))
    errors = []
    for t in range(2, 20):
        new = slice(t, t + 1)
        run = run_layer(
            compile_layer(quantized, CACHED, 1, t),
            inputs.x[new], inputs.cos[new], inputs.sin[new],
            [history_of(quantized, k[:t], v[:t])],
        )  # fmt: skip
        x = inputs.x[t].double()
        update = inputs.y[t].double() - x
        errors.append(float((run.value[0] - x - update).norm() / update.norm()))
        assert errors[-1] < 0.6, errors
        if errors[-1] < 0.003:
            return
    raise AssertionError(errors)


def test_a_calibrated_layer_with_limits_has_its_gate_exact() -> None:
    """The method quantizes gate and up before their limits, the machine after these.

    Shown to fail: a layer of another flow, without a word.
    """
    model = random_model(KINDS["clamped SwiGLU"])
    ids = torch.randint(0, 50, (80,), generator=torch.Generator().manual_seed(2))
    kllm = KllmPlain(glu="index", center=True, tokens=64, cache_bits=16, integer_bits=16)
    states = calibrate([kllm, Oaken()], CalibrationData(model, [ids]))
    both = Calibrated([kllm, Oaken()], [states[0], states[1]], {}, lambda: ids)
    with pytest.raises(ConfigError, match="glu must be exact for a clamped network of the accel"):
        both.layer(model, 0)


def test_a_layer_without_its_router_is_refused() -> None:
    """Shown to fail: zeros in the place of what is missing, by which the first experts are chosen.
    """
    quantized = quantized_example("experts", LayerOptions())
    weight = {name: each for name, each in quantized.weight.items() if name != "router.1"}
    with pytest.raises(ConfigError, match=r"weight must have .*, router\.1, router\.2 for this"):
        dataclasses.replace(quantized, weight=weight)


def _in_order(x: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """(T, kv_heads, head_size) of what a model's layers attend to."""
    return (x if order is None else x[:, order]).unflatten(-1, (-1, 32))


@pytest.mark.parametrize(
    ("name", "field", "line"),
    [("a cap of scores", "caps", "whose scores have a cap of 3"),
     ("sinks", "sinks", "whose softmax has sinks")],
)  # fmt: skip
def test_a_cache_without_caps_or_sinks(name: str, field: str, line: str) -> None:
    machine = dataclasses.replace(
        CACHED, cache=dataclasses.replace(CACHED.cache, **{field: False})
    )
    wanted = rf"MachineConfig\.cache\.{field} must be True for this layer, {line}"
    with pytest.raises(ConfigError, match=wanted):
        compile_layer(quantized_example(name, LayerOptions()), machine)


@pytest.mark.parametrize("name", ["a cap of scores", "sinks"])
def test_keys_get_no_offset(name: str) -> None:
    """A cap and sinks see a constant in all scores, so K's is 0.

    Shown to fail: the offset of other layers.
    """
    quantized = quantized_example(name, OPTIONS[1][0])
    assert quantized.offset is not None
    assert not quantized.offset.any()
    with pytest.raises(ConfigError, match="offset must be 0 for a layer with a cap of scores or"):
        dataclasses.replace(quantized, offset=quantized.offset + 1)


@pytest.mark.parametrize(
    ("heads", "groups", "engines"), [(4, 1, 1), (4, 2, 1), (4, 2, 2), (40, 1, 1)]
)
def test_rows_of_sinks(heads: int, groups: int, engines: int) -> None:
    """Those of each job begin with a row; a machine reads back what the compiler wrote.

    Shown to fail: sinks one after the other, whatever the jobs.
    """
    kv = dataclasses.replace(CACHED.cache.kv, groups=groups)
    machine = dataclasses.replace(
        CACHED, engines=engines, cache=dataclasses.replace(CACHED.cache, kv=kv)
    )
    words = torch.arange(1, heads + 1)
    rows = sink_rows(words, machine).reshape(-1, 16)
    jobs = max(groups, engines)
    assert len(rows) == machine.sink_rows(heads) == jobs * -(-heads // jobs // 16)
    assert rows[:: len(rows) // jobs, 0].tolist() == [1 + n * heads // jobs for n in range(jobs)]
    golden = Machine(machine)
    golden.vector[5 : 5 + len(rows)] = rows
    assert torch.equal(golden._sinks(5, heads), words)


# Hidden size, query heads, KV heads, inner elements of published models, and their parts.
WIDE = {
    "Qwen2.5-7B": (3584, 28, 4, 18944, 2),
    "LLaMA-30B": (6656, 52, 52, 17920, 2),
    "Llama-2-70B": (8192, 64, 8, 28672, 2),
    "Llama-2-13B": (5120, 40, 40, 13824, 1),
}


@pytest.mark.parametrize("name", WIDE)
def test_networks_wider_than_a_vector(name: str) -> None:
    """Programs whose commands have lengths of 14 bits; each part has its images."""
    hidden, heads, kv_heads, intermediate, parts = WIDE[name]
    shape = LayerShape(
        hidden=hidden, heads=heads, kv_heads=kv_heads, head_size=128, intermediate=intermediate
    )
    base = MACHINES["table1_wide"]
    kv = dataclasses.replace(base.cache.kv, heads=kv_heads, groups=max(1, kv_heads // 4))
    machine = dataclasses.replace(
        base, cache=dataclasses.replace(base.cache, kv=kv), queries=shape.group, engines=1,
        slot=dataclasses.replace(base.slot, elements=max(hidden, intermediate // parts)),
    )  # fmt: skip
    program = layer_program(shape, LayerOptions(), machine, 1, 100)
    downs = [each for image, each in program.layout.image.items() if image.startswith("down")]
    assert [each[1:] for each in downs] == [(intermediate // parts, hidden)] * parts
    assert len({each[0] for each in downs}) == parts


@pytest.mark.parametrize(
    ("intermediate", "wanted", "parts"),
    [(96, 0, 1), (96, 3, 3), (96, 6, 6), (16383, 0, 1), (16384, 0, 2), (18944, 0, 2),
     (53248, 0, 4), (100, 0, 1), (100, 1, 1)],
)  # fmt: skip
def test_parts_of_a_network(intermediate: int, wanted: int, parts: int) -> None:
    assert network_parts(intermediate, wanted) == parts


@pytest.mark.parametrize(("intermediate", "wanted"), [(96, 4), (100, 2), (16400, 1), (16390, 0)])
def test_networks_without_such_parts(intermediate: int, wanted: int) -> None:
    with pytest.raises(ConfigError, match="equal parts of whole rows of 16 elements"):
        network_parts(intermediate, wanted)


def test_groups_take_turns_around_a_network_in_parts() -> None:
    """Two groups of tokens in a step: each token as in a step of its own.

    Shown to fail: a norm after the network in another stage than its last matmul, whose codebook
    the lanes hold then.
    """
    machine = dataclasses.replace(
        CACHED, batch=8, slot=dataclasses.replace(CACHED.slot, slots=16),
        vectors=dataclasses.replace(CACHED.vectors, rows=4096),
    )  # fmt: skip
    loaded = Checkpoint(random_model(KINDS["norms of rows, norms after"]), None, "random")
    ids = torch.randint(0, 50, (128,), generator=torch.Generator().manual_seed(2))
    options = LayerOptions(glu="exact", parts=2)
    source = pack.trained(loaded, ids, options, machine)
    layout = pack.checked_layout(loaded, options, machine, None, 40)
    quantized = pack.quantize_model(loaded, source, layout, [ids], lambda _line: None)
    image = compile_model(quantized, layout)
    cached = []
    for size in (1, 8):
        host = ModelHost(image)
        program = step_program(layout, size)
        for first in range(0, 8, size):
            places = [Place(host.sequence, first + t, int(ids[first + t])) for t in range(size)]
            host.step(program, places)
        reads = [Request(Op.READ, host.sequence, 1, kv, 0, 2, 8) for kv in Kv]
        assert host.machine.cache is not None
        cached.append([host.machine.cache.request(each).words for each in reads])
    assert cached[0] == cached[1]
