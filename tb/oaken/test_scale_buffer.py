"""OakenScaleBuffer against golden.oaken.dequantize.repeat_scales.

Shown to fail:

- rows freed by the first head;
- without the return to the first row;
- without the refusal of more tokens than rows (it hangs).
"""

import numpy as np
import pytest

from golden.oaken.dequantize import repeat_scales
from hdl.oaken.scale_buffer import OakenScaleBuffer, OakenScaleBufferConfig
from hdl.paging.layouts import TOKEN_BITS
from tb.oaken.support.dequant_vectors import as_bytes
from tb.run import simulate
from tb.words import join

CONFIGS = {
    "default": OakenScaleBufferConfig(depth=1024),
    "smallest": OakenScaleBufferConfig(depth=4),
    "odd": OakenScaleBufferConfig(depth=37),
}
BITS = 97


def phase(config, rng, name: str, requests: list[tuple[int, int]]) -> dict:
    need = sum(tokens for tokens, heads in requests if heads)
    words = [
        (int.from_bytes(rng.bytes(12), "little"), bool(rng.random() < 0.2)) for _ in range(need)
    ]
    golden = repeat_scales(words, requests, config.depth)
    return {
        f"{name}.i": as_bytes([join((scale, 96), (error, 1)) for scale, error in words], BITS),
        f"{name}.request": as_bytes(
            [join((tokens, TOKEN_BITS), (heads, 8)) for tokens, heads in requests], TOKEN_BITS + 8
        ),
        f"{name}.o": as_bytes([join((s or 0, 96), (error, 1)) for s, error in golden], BITS),
        f"{name}.mask": as_bytes(
            [join(((1 << 96) - 1 if s is not None else 0, 96), (1, 1)) for s, _ in golden], BITS
        ),
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_scale_buffer(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 44])
    depth, most = config.depth, min(config.depth, 60)
    mixed = [
        (int(rng.integers(1, most + 1)), int(rng.choice([1, 1, 2, 3, 8]))) for _ in range(40)
    ] + [(0, 3), (5, 0), (1, 1), (1, 255), (2 * depth + 3, 1), (1, 2)]
    vectors = phase(config, rng, "mixed", [mixed[k] for k in rng.permutation(len(mixed))])
    # Half the ring is free for the words of the next request.
    half = depth // 2
    vectors |= phase(
        config, rng, "full", [(half, 2), (1, 2), (half, 3), (1, 1), (1, 1), (half, 4), (half, 2)]
    )
    edge = [(depth, 3), (depth + 1, 2), (depth - 1, 2), (depth, 1), (2, 2), (3 * depth, 3), (4, 2)]
    vectors |= phase(config, rng, "edge", edge)
    vectors |= phase(config, rng, "through", [(2 * depth + 9, 1), (3, 1), (depth, 1)])
    simulate(
        OakenScaleBuffer(config),
        "tb.oaken.tb_scale_buffer",
        vectors=vectors,
        params={"phases": ["mixed", "full", "edge", "through"]},
        seed=seed,
    )


@pytest.mark.parametrize("depth", [3, 65_537])
def test_rejects(depth):
    with pytest.raises(ValueError, match=r"depth must be 4\.\.65536"):
        OakenScaleBufferConfig(depth=depth)
