"""KllmScaler against golden.kllm.blocks.scale_outputs: three roundings, special operands, overflow.

Shown to fail: with the sparse sum on the grid 2**-24, with ``overflow`` that ignores ``finite``,
and with s_b of a word that comes later.
"""

import numpy as np
import pytest
import torch

from golden.fp16.ops import bits_from_float
from golden.kllm.blocks import scale_outputs
from golden.kllm.vectors.scaler import ONE, scaler_vectors, tie_operands
from hdl.kllm.lane.scaler import KllmScaler, KllmScalerConfig
from tb.simulate.run import simulate

CONFIGS = {
    "three_stages": KllmScalerConfig(sum_bits=72, tag_bits=10, stages=3),
    "six_stages": KllmScalerConfig(sum_bits=69, tag_bits=1, stages=6),
    "twelve_stages": KllmScalerConfig(sum_bits=69, tag_bits=1, stages=12),
    "narrow_sum": KllmScalerConfig(sum_bits=2, tag_bits=32, stages=3),
    "widest_sum": KllmScalerConfig(sum_bits=96, tag_bits=3, stages=3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_scaler(name, seed):
    config = CONFIGS[name]
    vectors = scaler_vectors(config, seed)
    simulate(KllmScaler(config), "tb.kllm.tb_scaler", vectors=vectors, seed=seed)


def test_ties_tell_two_roundings_from_one():
    """Some operands give another y if t is not rounded to FP32 first."""
    differ = 0
    for d, s, s_a, s_b in tie_operands():
        if s_a == ONE and s_b == ONE:
            y, _ = scale_outputs(torch.tensor([d]), [s], torch.tensor([s_a]), torch.tensor([s_b]))
            exact = np.uint32(d).view(np.float32).astype(np.float64) + s * 2.0**-48
            differ += int(bits_from_float(torch.tensor(exact))) != int(y[0])
    assert differ >= 8
