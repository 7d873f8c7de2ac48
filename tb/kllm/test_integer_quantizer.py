"""KllmIntegerQuantizer against golden: exact quotients, ties, clamps, subnormal scales.

Shown to fail:

- ties rounded up;
- ties that ignore the remainder;
- without the clamp of a quotient of 2**b or of larger ones;
- a scale rounded without its remainder;
- parts of a row joined in the opposite order.
"""

import numpy as np
import pytest
import torch

from golden.kllm.quantize import quantize_unsigned, unsigned_quotient, unsigned_scale
from golden.kllm.vectors.integer_quantizer import quantizer_vectors
from hdl.kllm.quantize.integer_quantizer import KllmIntegerQuantizer, KllmIntegerQuantizerConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": KllmIntegerQuantizerConfig(tag_bits=35),
    "one_row_per_cycle": KllmIntegerQuantizerConfig(lanes=16, stages=8),
    "four_bits": KllmIntegerQuantizerConfig(int_bits=4, lanes=8, stages=3, tag_bits=7),
    "one_divider": KllmIntegerQuantizerConfig(elements=3, lanes=1, stages=1),
    "one_element": KllmIntegerQuantizerConfig(int_bits=4, elements=1, lanes=1, stages=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_integer_quantizer(name, seed):
    config = CONFIGS[name]
    vectors = quantizer_vectors(config, seed)
    simulate(
        KllmIntegerQuantizer(config), "tb.kllm.tb_integer_quantizer", vectors=vectors, seed=seed
    )


@pytest.mark.parametrize("int_bits", [4, 8])
def test_vectors_are_those_of_quantize_unsigned(int_bits):
    rng = np.random.default_rng(41)
    limit = np.array([1, 300, 0x0400, 0x2000, 0x7C00, 0x7C00])[:, None]
    x = torch.tensor(rng.integers(0, limit, (6, 500)))
    value, scale = quantize_unsigned(x, int_bits)
    assert torch.equal(unsigned_scale(x.amax(dim=1), int_bits), scale)
    assert torch.equal(unsigned_quotient(x, scale[:, None], int_bits), value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 3}, "lanes must be a divisor of elements 16, not 3"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmIntegerQuantizerConfig(**wrong)
    assert str(error.value) == f"KllmIntegerQuantizerConfig.{message}"
