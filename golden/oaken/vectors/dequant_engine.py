"""Requests to OakenDequantEngine, sound ones and faulty ones."""

import torch

from golden.oaken.quantize import Encoded
from golden.oaken.vectors.dequant_job import Job
from golden.oaken.vectors.dequant_tokens import some_tokens


def with_odd_scales(rng, encoded: Encoded) -> Encoded:
    """Some tokens with any words for scales, NaN and infinities among them."""
    odd = torch.from_numpy(rng.integers(0, 1 << 16, encoded.scale.shape))
    odd = torch.where(torch.from_numpy(rng.random(odd.shape) < 0.3), odd | 0x7C00, odd)
    take = torch.from_numpy(rng.random((len(odd), 1)) < 0.3)
    scale = torch.where(take, odd, encoded.scale)
    return Encoded(scale, encoded.code, encoded.group, encoded.fifth)


def mixed(config, rng, count=60) -> Job:
    job = Job(config, rng)
    for n in range(count):
        blocks = int(rng.integers(1, min(config.blocks_max, 3) + 1))
        skip, behind = int(rng.choice([0, 0, 1, 3])), int(rng.choice([0, 0, 0, 2]))
        tokens = skip + behind + int(rng.integers(1, 7))
        encoded, thresholds = some_tokens(rng, tokens, blocks * config.block, config.block)
        if n % 3 == 0:
            encoded = with_odd_scales(rng, encoded)
        job.add(
            encoded, thresholds[0], skip=skip, behind=behind, damage=n % 4 == 1, errors=n % 5 == 2
        )
    assert job.bad >= 3
    return job
