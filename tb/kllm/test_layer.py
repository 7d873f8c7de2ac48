"""A decoder layer of a random LLaMA model on KllmAccelerator, equal to golden in every bit.

Compares every answer of the cache, every status and every word read back. After the layer it
compares every row of the vector memory and every slot, whether a command wrote it or not. Sizes are
odd, heads in groups. The accelerator appends K and V of a context to its pages, and takes two new
tokens then, through golden.llm.pack's files. What the pages hold shows in what ATTEND gives.
SmolLM2's own layer: ``python -m senbazuru.runs.layer``.

Shown to fail: one weight port's words changed; words after a vector's end that are not 0
(test_all_rows_are_compared).
"""

import unittest.mock

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hdl.kllm.function.unit
from golden.kllm.cache import Place
from golden.kllm.layer.compiler import compile_layer
from golden.kllm.layer.host import history_of, run_layer
from golden.kllm.layer.quantized import quantize_layer
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.layer.weights import layer_weights
from golden.llm.kllm.reference import reference
from golden.llm.pack import load, write
from hdl.kllm.accelerator import KllmAccelerator
from hdl.kllm.function.result_rows import KllmResultRows
from hdl.kllm.room import BLOCKS
from tb.faults.plant import plant
from tb.kllm.support.packs import parameters
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_accelerator"].configs["small_cache"]
TWO = BLOCKS["kllm_accelerator"].configs["small_cache2"]
HIDDEN, CONTEXT = 80, 9


@pytest.mark.telling("options0-1", "options3-2")
@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (LayerOptions(), 1),
        (LayerOptions(fuse=False, glu="exact"), 2),
        (LayerOptions(center=True), 2),
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
    """The context and the layer, then the final state."""
    pack = packed(options, tokens, seed, folder)
    params = parameters(pack, pack.ports, SMALL.machine, latency=5)
    simulate(accelerator, "tb.kllm.tb_layer", params=params, seed=seed)


@pytest.mark.telling("one")
@pytest.mark.parametrize("config", [SMALL, TWO], ids=["one", "two"])
def test_sequences(config, seed):
    """A token of each of two sequences, the longest one too, and a place without a token."""
    options = LayerOptions(glu="exact", center=True)
    weights, cos, sin, x, seen = random_layer(seed)
    quantized = quantize_layer(weights, seen, 4, 4, options)
    machine = config.machine
    lengths = [CONTEXT, machine.cache.max_tokens - 1]
    histories = [history_of(quantized, seen["k"][:n], seen["v"][:n]) for n in lengths]
    new = slice(CONTEXT, CONTEXT + 3)
    batch = [Place(0, lengths[0]), None, Place(1, lengths[1])]
    compiled = compile_layer(quantized, machine, 3)
    made = run_layer(compiled, x[new], cos[new], sin[new], histories, batch)
    params = parameters(made, made.weights, machine, latency=5)
    simulate(KllmAccelerator(config), "tb.kllm.tb_layer", params=params, seed=seed)


def packed(options, tokens, seed, folder):
    """A random layer for SMALL, written to ``folder`` and read back."""
    weights, cos, sin, x, seen = random_layer(seed)
    quantized = quantize_layer(weights, seen, 4, 4, options)
    compiled = compile_layer(quantized, SMALL.machine, tokens, CONTEXT)
    new = slice(CONTEXT, CONTEXT + tokens)
    history = history_of(quantized, seen["k"][:CONTEXT], seen["v"][:CONTEXT])
    made = run_layer(compiled, x[new], cos[new], sin[new], [history])
    write(folder, compiled, made, {"name": "random", "context": CONTEXT}, {})
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
