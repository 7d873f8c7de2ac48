"""A decoder layer of a random LLaMA model on KllmAccelerator: every status, every word read back.

Odd sizes, heads in groups, two new tokens after a cached context, the host's append between the
two programs, through golden.pack's files. SmolLM2's own layer: ``python -m tb.runs.layer``.
Shown to fail: without the host's append, and with one weight port's words changed. One index of q
alone may change nothing: scores become integers of 8 bits.
"""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from golden.kllm.layer import (
    LayerOptions,
    compile_layer,
    layer_weights,
    quantize_cache,
    quantize_layer,
    reference,
    run_layer,
)
from golden.pack import load, write
from hdl.kllm.accelerator import KllmAccelerator
from hdl.kllm.room import BLOCKS
from tb.run import simulate
from tb.runs.layer import parameters

SMALL = BLOCKS["kllm_accelerator"].configs["small"]
HIDDEN, CONTEXT = 80, 9


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (LayerOptions(), 1),
        (LayerOptions(fuse=False, glu="exact"), 2),
        (LayerOptions(scores="index"), 1),
    ],
)
def test_layer(options, tokens, seed, tmp_path):
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
    seen = reference(weights, x, cos, sin)
    quantized = quantize_layer(weights, seen, 4, 4, options)
    compiled = compile_layer(quantized, SMALL.machine, tokens, CONTEXT)
    new = slice(CONTEXT, CONTEXT + tokens)
    cache = quantize_cache(quantized, seen["k"][:CONTEXT], seen["v"][:CONTEXT])
    run = run_layer(compiled, x[new], cos[new], sin[new], cache)
    write(tmp_path, compiled, run, {"name": "random"}, {})
    pack = load(tmp_path, SMALL.machine)
    simulate(
        KllmAccelerator(SMALL), "tb.kllm.tb_layer", params=parameters(pack, latency=5), seed=seed
    )
