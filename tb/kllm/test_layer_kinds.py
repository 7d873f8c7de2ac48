"""Layers of all kinds that the compiler serves on KllmAccelerator, equal to golden in every bit.

A kind is another program. One accelerator is that of tb.kllm.test_layer, with its comparisons. One
has windows, and one has all that a machine may have.

Shown to fail:

- the last bit of golden's GELU;
- the last bit of golden's exact GELU;
- golden's MATMUL DIRECT without its stride of rows;
- the last bit of a bias, or of a gamma, on the chip alone.
"""

import dataclasses

import pytest

from golden.kllm.config import FunctionShape
from golden.kllm.layer.compiler import compile_layer
from golden.kllm.layer.host import history_of, run_layer
from golden.kllm.layer.quantized import quantize_layer
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.llm.kllm.example import KINDS, example
from hdl.kllm.accelerator import KllmAccelerator
from hdl.kllm.room import BLOCKS
from tb.kllm.support.packs import parameters
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_accelerator"].configs["small_cache"]


def machine_with(rules: tuple[str, ...], **fields):
    """The accelerator whose cache has some ``rules``, with other ``fields`` of its machine."""
    cache = dataclasses.replace(SMALL.machine.cache, **dict.fromkeys(rules, True))
    return dataclasses.replace(
        SMALL, machine=dataclasses.replace(SMALL.machine, cache=cache, **fields)
    )


WINDOWED = machine_with(("windows",))
EVERY = machine_with(
    ("windows", "caps", "sinks"),
    extra=FunctionShape(tanh=True, gelu_erf=True, quick_gelu=True, bounds=True),
    experts=3,
)


def machine_of(shape: LayerShape):
    """One of three accelerators: with nothing optional, with windows, with all."""
    if shape.cap or shape.sinks or shape.experts or shape.extra != FunctionShape():
        return EVERY
    return WINDOWED if shape.window else SMALL


CONTEXT = 9
# What is fused, quantized and centred, parts, and new tokens; each kind has one of them.
OPTIONS = (
    (LayerOptions(), 1),
    (LayerOptions(fuse=False, glu="exact", center=True), 2),
    (LayerOptions(parts=3), 1),
)


@pytest.mark.parametrize(("number", "name"), list(enumerate(KINDS)), ids=list(KINDS))
def test_layer(number, name, seed):
    """The context and the layer, then the final state."""
    found = example(name)
    options, tokens = OPTIONS[number % len(OPTIONS)]
    has_experts = bool(found.weights.shape.experts)
    if has_experts:  # in no parts; each token of two has experts of its own
        options, tokens = OPTIONS[number % 2]
    quantized = quantize_layer(found.weights, found.seen, options=options)
    shape = found.weights.shape
    config = machine_of(shape)
    compiled = compile_layer(quantized, config.machine, tokens, CONTEXT)
    new = slice(CONTEXT, CONTEXT + tokens)
    history = history_of(quantized, found.seen["k"][:CONTEXT], found.seen["v"][:CONTEXT])
    given = found.inputs.x[new], found.inputs.cos[new], found.inputs.sin[new]
    made = run_layer(compiled, *given, [history])
    params = parameters(made, made.weights, config.machine, latency=5)
    simulate(KllmAccelerator(config), "tb.kllm.tb_layer", params=params, seed=seed)
