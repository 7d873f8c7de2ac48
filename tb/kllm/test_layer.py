"""A decoder layer of a random LLaMA model on KllmAccelerator, equal to golden in every bit.

Compares every status and every word read back. After the layer it compares every row of the vector
memory and every slot, whether a command wrote it or not. Odd sizes, heads in groups, two new tokens
after a cached context, the host's append between the two programs, through golden.llm.pack's files.
SmolLM2's own layer: ``python -m senbazuru.runs.layer``. Shown to fail: without the host's append,
with one weight port's words changed, and with words after a vector's end that are not 0
(test_all_rows_are_compared).
"""

import unittest.mock

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hdl.kllm.function.unit
from golden.fp16.ops import float_from_bits
from golden.kllm.cache import Place
from golden.kllm.isa import FAILED
from golden.kllm.layer.compiler import compile_layer
from golden.kllm.layer.host import run_layer
from golden.kllm.layer.quantized import quantize_cache, quantize_layer
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.layer.weights import layer_weights
from golden.llm.kllm.reference import reference
from golden.llm.pack import load, write
from hdl.kllm.accelerator import KllmAccelerator
from hdl.kllm.function.result_rows import KllmResultRows
from hdl.kllm.room import BLOCKS
from tb.faults.plant import plant
from tb.kllm.support.packs import History, Paged, parameters
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_accelerator"].configs["small"]
CACHED = BLOCKS["kllm_accelerator"].configs["small_cache"]
TWO = BLOCKS["kllm_accelerator"].configs["small_cache2"]
HIDDEN, CONTEXT = 80, 9


@pytest.mark.telling("options0-1", "options3-2")
@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (LayerOptions(), 1),
        (LayerOptions(fuse=False, glu="exact"), 2),
        (LayerOptions(scores="index"), 1),
        (LayerOptions(glu="exact", center=True), 2),
    ],
)
def test_layer(options, tokens, seed, tmp_path):
    run(KllmAccelerator(SMALL), options, tokens, seed, tmp_path)


@pytest.mark.telling
def test_all_rows_are_compared(seed, tmp_path):
    """Words after the end of a vector reach no status and no word of the layer's result."""
    faulty = plant(
        KllmResultRows, "elaborate", "written[e].eq(Mux(beyond, 0, word))", "written[e].eq(word)"
    )
    with (
        unittest.mock.patch.object(hdl.kllm.function.unit, "KllmResultRows", faulty),
        pytest.raises(AssertionError, match=r"of 2\d\d\d words differ"),
    ):
        run(KllmAccelerator(SMALL), LayerOptions(), 1, seed, tmp_path)


def run(accelerator, options, tokens, seed, folder):
    """The layer's two programs, then the final state."""
    params = parameters(packed(options, tokens, seed, folder), SMALL.machine, latency=5)
    simulate(accelerator, "tb.kllm.tb_layer", params=params, seed=seed)


@pytest.mark.telling("one-2-exact")
@pytest.mark.parametrize(("tokens", "glu"), [(1, "index"), (2, "exact"), (2, "index")])
@pytest.mark.parametrize("config", [CACHED, TWO], ids=["one", "two"])
def test_paged_layer(config, tokens, glu, seed):
    """cache=oaken: one part, without the host, next to another sequence and an empty place.

    The tokens are of one sequence, one after the other, and the last one is of another sequence.
    """
    options = LayerOptions(cache="oaken", center=True, glu=glu)
    weights, cos, sin, x, seen = random_layer(seed)
    quantized = quantize_layer(weights, seen, 4, 4, options)
    assert quantized.offset is not None
    machine = config.machine
    compiled = compile_layer(quantized, machine, tokens, CONTEXT)
    keys = seen["k"].double() + float_from_bits(quantized.offset)
    values = seen["v"].double()
    longest = machine.cache.max_tokens - tokens
    lengths = [CONTEXT, longest]
    sequences = [
        History(keys[:length].flatten(1), values[:length].flatten(1)) for length in lengths
    ]
    new = slice(CONTEXT, CONTEXT + tokens)
    paged = Paged(compiled, x[new], cos[new], sin[new], sequences)
    batch = [Place(0, CONTEXT + t) for t in range(tokens)]
    if tokens > 1:
        batch[-1] = Place(1, longest)
    paged.part(compiled.parts[0], batch)
    assert not any(status & FAILED for *_, status in paged.parts[-1]["results"])
    simulate(
        KllmAccelerator(config), "tb.kllm.tb_layer", params=paged.parameters(latency=5), seed=seed
    )


def packed(options, tokens, seed, folder):
    """A random layer for SMALL, written to ``folder`` and read back."""
    weights, cos, sin, x, seen = random_layer(seed)
    quantized = quantize_layer(weights, seen, 4, 4, options)
    compiled = compile_layer(quantized, SMALL.machine, tokens, CONTEXT)
    new = slice(CONTEXT, CONTEXT + tokens)
    cache = quantize_cache(quantized, seen["k"][:CONTEXT], seen["v"][:CONTEXT])
    made = run_layer(compiled, x[new], cos[new], sin[new], cache)
    write(folder, compiled, made, {"name": "random"}, {})
    return load(folder, SMALL.machine)


def random_layer(seed):
    """(weights, cos, sin, x, what the real layer makes of it), 64 tokens."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=100, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, vocab_size=50,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    weights = layer_weights(model.model.layers[0], config)
    positions = torch.arange(64)[None]
    cos, sin = (
        angles[0, :, :16] for angles in model.model.rotary_emb(torch.zeros(1, 64, 1), positions)
    )
    x = torch.randn(64, HIDDEN)
    return weights, cos, sin, x, reference(weights, x, cos, sin)
