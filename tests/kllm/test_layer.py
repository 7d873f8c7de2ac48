"""A decoder layer on the golden machine, against the real layer and against a plain float64 one.

Each of these fails ``test_machine_computes_the_quantized_layer``:

- heads of a KV head taken from the next one;
- sin negated;
- the epsilon of the norm dropped;
- a position that is one too high (with two tokens);
- an offset added to q, or to one token of two;
- K appended where V belongs.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from golden.config import ConfigError
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.nearest import midpoints
from golden.kllm.assembler import Assembler, AssemblyError
from golden.kllm.bounds import CYCLES, Bound, Rates, bounds, schedule
from golden.kllm.cache import Place
from golden.kllm.config import MACHINES, MachineConfig, PortShape, VectorShape
from golden.kllm.isa import MatmulMode, Opcode, Outliers, Unit
from golden.kllm.layer.compiler import CompiledLayer, compile_layer, write_image
from golden.kllm.layer.host import (
    History,
    LayerRun,
    counted_after,
    history_of,
    memories,
    replay,
    run_layer,
    run_part,
)
from golden.kllm.layer.program import head_program, layer_program
from golden.kllm.layer.quantized import QuantizedLayer, quantize_layer
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.layer.weights import LayerWeights, layer_weights
from golden.kllm.machine import Machine
from golden.kllm.quantize import (
    QuantizedWeight,
    quantize_weight,
    train_activation_codebook,
)
from golden.kllm.vectors.requests import codebook_packet
from golden.llm import checkpoint, text
from golden.llm.eval.accuracy.bench import code_version
from golden.llm.kllm.reference import LayerInputs, layer_inputs, reference
from tests.kllm.plain_layer import Plain, plain

SMALL = MACHINES["small"]
CACHED = MachineConfig.parse(
    MACHINES["small_cache"], ["cache.pages=512", "cache.page_bytes=512", "cache.max_tokens=160"]
)
assert isinstance(CACHED, MachineConfig)
TOKENS = 64


@functools.cache
def tiny() -> tuple[LlamaForCausalLM, LayerWeights, tuple[Tensor, Tensor]]:
    """A random model whose layers do more than pass their input on; angles of 64 positions."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=80, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, vocab_size=50,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight.uniform_(0.5, 2)
            layer.post_attention_layernorm.weight.uniform_(0.5, 2)
            for parameter in (*layer.self_attn.parameters(), *layer.mlp.parameters()):
                parameter *= 4
    positions = torch.arange(TOKENS)[None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, TOKENS, 80), positions)
    return model, layer_weights(model.model.layers[1], config), (cos[0, :, :16], sin[0, :, :16])


@functools.cache
def tiny_quantized(options: LayerOptions, bits_a: int = 4) -> QuantizedLayer:
    _, weights, (cos, sin) = tiny()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, 80, generator=generator)
    return quantize_layer(weights, reference(weights, x, cos, sin), bits_a, 4, options)


def relative(y: Tensor, expected: Tensor) -> float:
    return float((y - expected).norm() / expected.norm())


def test_reference_is_the_layer_of_transformers() -> None:
    model, weights, _ = tiny()
    inputs = layer_inputs(model, torch.arange(1, 21), 1)
    made = reference(weights, inputs.x, inputs.cos, inputs.sin)
    assert relative(made["y"], inputs.y.double()) < 1e-5
    assert relative(made["x"], inputs.y.double()) > 0.1


@pytest.mark.parametrize(
    ("options", "tokens", "context"),
    [
        (LayerOptions(), 1, 20),
        (LayerOptions(), 2, 33),
        (LayerOptions(fuse=False), 1, 15),
        (LayerOptions(glu="exact"), 2, 1),
        (LayerOptions(), 1, 0),
        (LayerOptions(center=True), 2, 18),
    ],
    ids=["usual", "two tokens", "not fused", "vector", "no context", "centred keys"],
)
def test_machine_computes_the_quantized_layer(
    options: LayerOptions, tokens: int, context: int
) -> None:
    """Roundings to FP16 are all that is left: 0.001, unless one of them moves an index.

    Then the softmax of these random heads may jump; of six inputs one at least has no such index.
    """
    quantized = tiny_quantized(options)
    compiled = compile_layer(quantized, CACHED, tokens, context)
    errors = []
    for seed in range(6):
        run, expected, x = compared(quantized, compiled, seed, context)
        errors.append(float((run.value - expected).norm() / (expected - x).norm()))
    assert min(errors) < 0.003, errors
    assert max(errors) < 0.5, errors


def history_and_inputs(
    quantized: QuantizedLayer, tokens: int, context: int, seed: int
) -> tuple[History, tuple[Tensor, Tensor, Tensor]]:
    """K and V of random tokens, and those after them with their angles."""
    _, weights, (cos, sin) = tiny()
    end = context + tokens
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(end, 80, generator=generator).half().double()
    whole = reference(weights, x, cos[:end], sin[:end])
    history = history_of(quantized, whole["k"][:context], whole["v"][:context])
    return history, (x[context:], cos[context:end], sin[context:end])


def compared(
    quantized: QuantizedLayer, compiled: CompiledLayer, seed: int, context: int
) -> tuple[LayerRun, Tensor, Tensor]:
    """The machine's run on random tokens, what ``plain`` makes of them, and the tokens."""
    history, inputs = history_and_inputs(quantized, compiled.tokens, context, seed)
    run = run_layer(compiled, *inputs, [history])
    made = Plain(quantized, tiny()[1], {})
    return run, plain(made, CACHED, *inputs, history), inputs[0]


def test_a_recorded_run_is_repeated() -> None:
    """Memories, requests, batches and programs of a run are all that a testbench needs."""
    quantized = tiny_quantized(LayerOptions())
    history, inputs = history_and_inputs(quantized, 2, 7, 3)
    run = run_layer(compile_layer(quantized, CACHED, 2, 7), *inputs, [history])
    assert len(run.parts) == 3 + 1  # 7 tokens by 3 places
    assert len(run.requests) == 2 + 1
    assert len(run.parts[-1].readback) * 2 == 2 * 80
    replay(Machine(CACHED, run.data, run.weights), run.requests, run.parts)
    other = dataclasses.replace(run.parts[0], batch=run.parts[1].batch)
    with pytest.raises(ArithmeticError, match=r"command \d+ \(CACHE\): .*SLOT_MISMATCH"):
        replay(Machine(CACHED, run.data, run.weights), run.requests, [other])


def test_tokens_of_several_sequences() -> None:
    """Each token of a batch gives what it gives alone, after its own history.

    Shown to fail: sequence 0 for all tokens.
    """
    quantized = tiny_quantized(LayerOptions())
    alone, histories, inputs = [], [], []
    lengths = (5, 11)
    for n, context in enumerate(lengths):
        history, given = history_and_inputs(quantized, 1, context, 10 + n)
        compiled = compile_layer(quantized, CACHED, 1, context)
        alone.append(run_layer(compiled, *given, [history]).y)
        histories.append(history)
        inputs.append(given)
    x, cos, sin = (torch.cat(each) for each in zip(*inputs, strict=True))
    batch = [Place(n, context) for n, context in enumerate(lengths)]
    run = run_layer(compile_layer(quantized, CACHED, 2), x, cos, sin, histories, batch)
    assert torch.equal(run.y, torch.cat(alone))


def test_a_chained_layer_takes_x_where_it_is() -> None:
    """It leaves its result in the rows that held x, without LOAD and READ."""
    options = LayerOptions()
    quantized = tiny_quantized(options)
    history, (x, cos, sin) = history_and_inputs(quantized, 1, 3, 7)
    compiled = compile_layer(quantized, CACHED, 1, 3)
    run = run_layer(compiled, x, cos, sin, [history])
    program = layer_program(quantized.shape, options, CACHED, 1, 3, chained=True)
    assert program.layout == compiled.program.layout
    machine = Machine(CACHED, run.data, run.weights)
    replay(machine, run.requests, run.parts[:-1])
    machine.data.data, _ = memories(compiled, torch.zeros_like(x), cos, sin)
    machine.vector[:5] = bits_from_float(x[0].double()).reshape(5, 16)
    base = [machine.issued[unit] for unit in machine.issued]
    run_part(machine, run.parts[-1].batch, counted_after(program.words, base))
    assert torch.equal(machine.vector[:5].flatten(), run.y[0])


def test_programs_need_no_weights() -> None:
    """``layer_program`` of sizes alone gives the words and places of a compiled layer."""
    for options in (LayerOptions(), LayerOptions(fuse=False), LayerOptions(glu="exact")):
        quantized = tiny_quantized(options)
        compiled = compile_layer(quantized, CACHED, 2, 7)
        program = layer_program(quantized.shape, options, CACHED, 2, 7)
        assert program == compiled.program


def head_readback(rows: int, weight: QuantizedWeight, book: Tensor, x: Tensor) -> Tensor:
    """(pieces of (tokens, outputs) in the order of READ) of a machine with so many rows."""
    config = dataclasses.replace(SMALL, vectors=VectorShape(rows=rows))
    shape = LayerShape(hidden=x.shape[1], heads=4, kv_heads=2, head_size=32, intermediate=96)
    outputs = weight.index.shape[1]
    vectors = [book, midpoints(book), codebook_packet(book, weight.codebook)]
    vectors += list(bits_from_float(x))
    memory = []
    for vector in vectors:
        words = np.asarray(vector, dtype="<u2")
        memory.append(np.pad(words, (0, -len(words) % 16)))
    size = config.image_words(x.shape[1], outputs) * config.port_bits // 8
    ports = [np.zeros(size, np.uint8) for _ in range(config.ports.ports)]
    write_image(ports, config, 0, weight.index, weight.scale)
    machine = Machine(config, np.concatenate(memory).view(np.uint8), ports)
    words = head_program(shape, config, outputs, len(x))
    assert not any(result.status for result in machine.run(words))
    found = torch.tensor(machine.readback)
    return torch.stack((found & 0xFFFF, found >> 16), dim=1).flatten()


@pytest.mark.parametrize("tokens", [1, 2])
def test_head_program(tokens: int) -> None:
    """Pieces give the words of one piece, and these are near the product in float64.

    Shown to fail: all pieces from the first weights.
    """
    generator = torch.Generator().manual_seed(4)
    outputs = 1000
    weight = quantize_weight(torch.randn(outputs, 80, generator=generator).double(), 4)
    x = torch.randn(tokens, 80, generator=generator).double()
    book = train_activation_codebook(bits_from_float(x), 4)
    whole = head_readback(1024, weight, book, x).reshape(tokens, -1)[:, :outputs]
    pieces = head_readback(128, weight, book, x)
    step = 128 * 16 // (3 * tokens) // 32 * 32
    assert step < outputs
    first = 0
    for start in range(0, outputs, step):
        count = min(step, outputs - start)
        wide = -(-count // 16) * 16
        part = pieces[first : first + tokens * wide].reshape(tokens, wide)[:, :count]
        assert torch.equal(part, whole[:, start : start + count])
        first += tokens * wide
    assert first == len(pieces)
    normed = x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)
    expected = normed @ weight.dequantize()
    assert relative(float_from_bits(whole), expected) < 0.2


def test_saved_layer_comes_back(tmp_path: Path) -> None:
    quantized = tiny_quantized(LayerOptions())
    quantized.save(tmp_path / "layer.npz")
    again = QuantizedLayer.load(tmp_path / "layer.npz")
    assert (again.shape, again.options) == (quantized.shape, quantized.options)
    assert torch.equal(again.thresholds, quantized.thresholds)
    first, second = (compile_layer(q, CACHED, 1, 8) for q in (quantized, again))
    assert first.program == second.program
    assert bytes(first.data) == bytes(second.data)
    assert [bytes(w) for w in first.weights] == [bytes(w) for w in second.weights]


def test_what_does_not_fit_is_named() -> None:
    quantized = tiny_quantized(LayerOptions())
    message = r"^MachineConfig.slot.slots must be 6 for this layer, not 4$"
    with pytest.raises(ConfigError, match=message):
        compile_layer(quantized, CACHED, 3, 0)
    with pytest.raises(ConfigError, match=r"cache\.max_tokens must be 161"):
        compile_layer(quantized, CACHED, 1, 160)
    with pytest.raises(ConfigError, match="batch must be 1 for this layer, not 0"):
        compile_layer(quantized, SMALL, 1, 0)
    with pytest.raises(ConfigError, match="replay_beats must be at least 8 for this layer, not 4"):
        compile_layer(quantized, MachineConfig.parse(CACHED, ["replay_beats=4"]), 2, 0)
    with pytest.raises(ConfigError, match="bits_a must be 4 for this layer, not 3"):
        compile_layer(quantized, MachineConfig.parse(CACHED, ["slot.bits_a=3"]), 1, 0)
    with pytest.raises(AssemblyError, match="rows in a row are free"):
        compile_layer(quantized, MachineConfig.parse(CACHED, ["vectors.rows=24"]), 1, 0)
    with pytest.raises(ConfigError, match="kv_heads must be a divisor of 9"):
        LayerShape(hidden=64, heads=9, kv_heads=2, head_size=32, intermediate=64)
    with pytest.raises(ConfigError, match="offset must be given with center=true alone"):
        dataclasses.replace(quantized, options=LayerOptions(center=True))


def test_three_bit_activations() -> None:
    quantized = tiny_quantized(LayerOptions(), 3)
    compiled = compile_layer(quantized, MachineConfig.parse(CACHED, ["slot.bits_a=3"]), 1, 8)
    errors = []
    for seed in range(6):
        run, expected, x = compared(quantized, compiled, seed, 8)
        errors.append(float((run.value - expected).norm() / (expected - x).norm()))
    assert min(errors) < 0.003, errors


def test_bounds_and_schedule() -> None:
    words = compile_layer(tiny_quantized(LayerOptions()), CACHED, 1, 20).program.words
    found = bounds(words, CACHED)
    planned = schedule(words, found, dict.fromkeys(Unit, 0))
    assert max(planned.busy.values()) <= planned.cycles <= sum(b.cycles for b in found)

    def first_of(opcode: Opcode, **rates: int) -> Bound:
        found = bounds(words, CACHED, Rates(**rates))
        return next(bound for bound in found if bound.opcode == opcode)

    # 256 outputs in 8 groups of 32: 6 beats each of 32 words on 3 ports against 256 bins * 16 / 32.
    matmul = first_of(Opcode.MATMUL, macs=32)
    assert (matmul.cycles, matmul.limit) == (8 * 128, "reducing")
    assert first_of(Opcode.MATMUL, macs=256).limit == "weights"
    assert first_of(Opcode.MATMUL).limit == "weights"
    assert first_of(Opcode.LANE_CODEBOOK).cycles == 272


def test_weights_ahead_of_their_matmul() -> None:
    """Weights come while a command waits, as many as the buffers hold; the ports serve in turn.

    Shown to fail with ports that serve two MATMULs at once, and with an end before the last word.
    """
    asm = Assembler(SMALL)
    source, made, slot = asm.vector(96), asm.vector(256), asm.slots()
    asm.load(address=0, dst=source)
    asm.quantize(src=source, slot=slot, outliers=Outliers(0, 0))
    for _ in range(2):
        asm.matmul(weights=0, dst=made, length=96, slot=slot)
    words = asm.words()
    found = bounds(words, SMALL)
    *_, one, other = found
    assert one.words == other.words == one.cycles > one.compute == 8 * SMALL.columns

    def ends(ahead: int) -> list[int]:
        return schedule(words, found, dict.fromkeys(Unit, 0), ahead).end

    _, start, *last = ends(0)
    assert last == [start + one.words, start + 2 * one.words]
    assert ends(4)[2:] == [start + one.words - 4, start + 2 * one.words - 4]
    lanes = start + one.compute
    assert ends(1 << 20)[2:] == [max(lanes, one.words), max(lanes + one.compute, 2 * one.words)]


def test_bound_of_a_lane_that_selects() -> None:
    """A beat of integers takes a cycle per digit; no lane gives its columns faster than these."""
    config = dataclasses.replace(SMALL, ports=PortShape(ports=64, bits=256))
    given = {"tokens": 1, "length": 160, "outputs": 32}

    def of(mode: MatmulMode) -> tuple[int, str]:
        return CYCLES[Opcode.MATMUL]({**given, "mode": mode}, config, Rates())

    assert config.columns == 16
    assert of(MatmulMode.KMEANS) == (16, "outputs")
    assert of(MatmulMode.INTEGER) == (2 * 10, "beats")
    assert of(MatmulMode.DIRECT) == (160, "outliers")


def test_append_of_k_overlaps_rotary_of_q() -> None:
    """One token: k is rotated and goes to the pages while q is rotated; ATTEND waits for both."""
    words = layer_program(tiny()[1].shape, LayerOptions(), CACHED).words
    planned = schedule(words, bounds(words, CACHED), dict.fromkeys(Unit, 0))
    at = {opcode: [n for n, each in enumerate(bounds(words, CACHED)) if each.opcode == opcode]
          for opcode in (Opcode.ROTARY, Opcode.APPEND, Opcode.ATTEND)}  # fmt: skip
    (_, q), (_, k), (attend,) = (at[name] for name in at)
    assert planned.start[k] < planned.end[q]
    assert planned.start[attend] >= max(planned.end[q], planned.end[k])


def smollm2_layer(request) -> tuple[QuantizedLayer, LayerInputs, dict[str, Tensor]]:
    """Layer 15, its inputs on 33 tokens, what it computes; in build/ by a hash of all code used."""
    key = code_version(("golden.kllm.layer", "golden.llm.checkpoint", "golden.llm.text"))[:16]
    folder = Path(__file__).parent.parent.parent / "build" / "tests"
    layer_file, seen_file = folder / f"paged_15_{key}.npz", folder / f"paged_15_{key}.pt"
    if not seen_file.exists():
        loaded = request.getfixturevalue("smollm2")
        weights = layer_weights(loaded.model.model.layers[15], loaded.model.config)
        made = []
        for part, count in ((text.CALIBRATION, 256), (text.EVALUATION, 33)):
            inputs = layer_inputs(loaded.model, checkpoint.tokens(loaded, part, count), 15)
            made.append((inputs, reference(weights, inputs.x, inputs.cos, inputs.sin)))
        folder.mkdir(parents=True, exist_ok=True)
        quantize_layer(weights, made[0][1]).save(layer_file)
        inputs, whole = made[1]
        torch.save({"inputs": dataclasses.astuple(inputs), "whole": whole}, seen_file)
    seen = torch.load(seen_file, weights_only=True)
    return QuantizedLayer.load(layer_file), LayerInputs(*seen["inputs"]), seen["whole"]


def test_layer_15_of_smollm2(request) -> None:
    """One token after 32: measured 0.081 of the FP32 layer's output, 0.253 of its update."""
    quantized, inputs, whole = smollm2_layer(request)
    history = history_of(quantized, whole["k"][:32], whole["v"][:32])
    compiled = compile_layer(quantized, MACHINES["smollm2_cache"], 1, 32)
    run = run_layer(compiled, inputs.x[32:], inputs.cos[32:], inputs.sin[32:], [history])
    expected = inputs.y[32:].double()
    assert relative(run.value, expected) < 0.1
    update = expected - inputs.x[32:].double()
    assert float((run.value - expected).norm() / update.norm()) < 0.31


@pytest.mark.parametrize(("functions", "cycles"), [(1, 33), (2, 17), (8, 5)])
def test_bound_of_functions_side_by_side(functions: int, cycles: int) -> None:
    rates = Rates(functions=functions)
    assert CYCLES[Opcode.FUNCTION]({"length": 33}, SMALL, rates) == (cycles, "elements")
