"""Layers of all kinds on the golden machine, against transformers and against float64.

Each of these fails ``test_machine_computes_the_layer``: PLANTED
"""

import functools

import pytest

from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.layer.compiler import compile_layer
from golden.kllm.layer.host import history_of, run_layer
from golden.kllm.layer.quantized import QuantizedLayer, norm_factors, quantize_layer
from golden.kllm.layer.shape import LayerOptions
from golden.llm.kllm.example import KINDS, example
from tests.kllm.plain_layer import Plain, plain

CACHED = MachineConfig.parse(
    MACHINES["small_cache"], ["cache.pages=512", "cache.page_bytes=512", "cache.max_tokens=160"]
)
assert isinstance(CACHED, MachineConfig)
OPTIONS = (
    (LayerOptions(), 1),
    (LayerOptions(fuse=False, glu="exact", center=True), 2),
)


@functools.cache
def quantized_example(name: str, options: LayerOptions) -> QuantizedLayer:
    found = example(name)
    return quantize_layer(found.weights, found.seen, options=options)


@pytest.mark.parametrize(("options", "tokens"), OPTIONS, ids=["usual", "not fused"])
@pytest.mark.parametrize("name", KINDS)
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
