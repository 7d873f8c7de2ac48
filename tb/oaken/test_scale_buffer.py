"""OakenScaleBuffer against golden.oaken.dequantize.repeat_scales.

Shown to fail:

- rows freed by the first head;
- without the return to the first row;
- without the refusal of more tokens than rows (it hangs);
- a cycle lost between requests (full_rate);
- ``o`` valid only with ready (late_ready);
- a request kept over a reset (reset_in_mid_packet).
"""

import numpy as np
import pytest

from golden.oaken.dequantize import repeat_scales
from golden.words import layout_words
from hdl.oaken.scale_buffer import OakenScaleBuffer, OakenScaleBufferConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenScaleBufferConfig(depth=1024),
    "smallest": OakenScaleBufferConfig(depth=4),
    "odd": OakenScaleBufferConfig(depth=37),
}


def phase(config, rng, name: str, requests: list[tuple[int, int]]) -> dict:
    """Words of the streams, the bits of ``o`` that are specified, and words after each request."""
    need = sum(tokens for tokens, heads in requests if heads)
    words = [
        (int.from_bytes(rng.bytes(12), "little"), bool(rng.random() < 0.2)) for _ in range(need)
    ]
    golden = repeat_scales(words, requests, config.depth)
    tokens, heads = np.array(requests).T
    taken, given = np.cumsum(tokens * (heads > 0)), np.cumsum(tokens * heads)
    return {
        f"{name}.i": layout_words(
            config.scale_layout, scale=[scale for scale, _ in words], error=[e for _, e in words]
        ),
        f"{name}.request": layout_words(config.request_layout, tokens=tokens, heads=heads),
        f"{name}.o": layout_words(
            config.scale_layout, scale=[s or 0 for s, _ in golden], error=[e for _, e in golden]
        ),
        f"{name}.mask": layout_words(
            config.scale_layout,
            scale=[(1 << 96) - 1 if scale is not None else 0 for scale, _ in golden],
            error=np.ones(len(golden), bool),
        ),
        f"{name}.ends": np.stack([taken, np.arange(len(requests)) + 1, given], axis=1),
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
        seed=seed,
    )


@pytest.mark.parametrize("depth", [3, 65_537])
def test_rejects(depth):
    with pytest.raises(ValueError, match=r"depth must be 4\.\.65536"):
        OakenScaleBufferConfig(depth=depth)
