"""VqRowFinish against golden.vqllm.product.rounded: ties, ends, scales, NaN, each exponent.

Shown to fail with:

- an exponent one off; FP16 before the scale
- ``bad`` of vector 0 for all; flags that leave while ``y`` stalls; too few places for them
- a sum that does not wait for its scale; a scale taken without a sum
- a scale for each group of a row; the end of a row that leaves without its scale
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.limbs import LIMB_BITS, Limbs
from golden.index.format import GRID_PRODUCT_EXACT
from golden.vqllm.product import rounded
from golden.words import layout_words
from hdl.vqllm.row.config import VqRowSumsConfig
from hdl.vqllm.row.finish import VqRowFinish, VqRowFinishConfig
from tb.simulate.run import simulate

SCALES = (0, 0x8000, 1, 0x3FF, 0x7BFF, 0x3C00, 0x7C00, 0x7E00)
CONFIGS = {
    "default": (VqRowFinishConfig(), (-8, 0, 15)),
    "scaled": (VqRowFinishConfig(scaled=True), (-8, -3, 15)),
    "batch": (VqRowFinishConfig(sums=VqRowSumsConfig(batch=3), scaled=True), (2, 7)),
    "groups": (VqRowFinishConfig(sums=VqRowSumsConfig(groups=4), scaled=True), (1,)),
    "narrow": (
        VqRowFinishConfig(sums=VqRowSumsConfig(macs=1, largest=1, columns=1, rows=1, batch=2)),
        (4, 10),
    ),
    "widest": (
        VqRowFinishConfig(sums=VqRowSumsConfig(macs=256, largest=4, columns=1 << 20)),
        (-8, 15),
    ),
}


def sums_of(rng, config, exponent: int) -> np.ndarray:
    """(rows, batch) integers: of every size, ends, ties of FP16 and FP32, and a unit from them."""
    bits, batch = config.sums.sum_bits, config.sums.batch
    most = (1 << bits - 1) - 1
    rows = []

    def row(make):
        rows.append([make() for _ in range(batch)])

    def signed(value):
        return max(-most - 1, min(most, int(value) * (1, -1)[rng.integers(2)]))

    def size(most_bits):
        return int.from_bytes(rng.bytes(12), "little") >> 96 - int(rng.integers(1, most_bits + 1))

    for _ in range(90):
        row(lambda: signed(size(bits - 1)))
    for value in (most, -most - 1, 0, 1, -1):
        row(lambda value=value: value)
    for kept in (12, 25):  # a bit more than FP16, or FP32, has
        for _ in range(60):
            odd = int(rng.integers(1 << kept - 2, 1 << kept - 1)) * 2 + 1
            shift = int(rng.integers(0, max(1, bits - kept)))
            unit = int(rng.integers(-1, 2))
            row(lambda odd=odd, shift=shift, unit=unit: signed((odd << shift) + unit))
    # The least and the largest results of FP16
    least = max(0, -24 - 1 - GRID_PRODUCT_EXACT - exponent)
    large = 16 - GRID_PRODUCT_EXACT - exponent
    for at in (least, least + 1, large, large - 1):
        for unit in (-1, 0, 1):
            row(lambda at=at, unit=unit: signed((1 << at) + unit))
    return np.array(rows, dtype=object)[rng.permutation(len(rows))]


@pytest.mark.telling("scaled", "batch", "groups", "narrow")
@pytest.mark.parametrize("name", CONFIGS)
def test_row_finish(name, seed):
    config, exponents = CONFIGS[name]
    for exponent in exponents:
        rng = np.random.default_rng([seed, 163, exponent + 8])
        values = sums_of(rng, config, exponent)
        rows, batch = values.shape
        low = torch.tensor((values & (1 << LIMB_BITS) - 1).astype(np.int64))
        high = torch.tensor((values >> LIMB_BITS).astype(np.int64))
        scale = rng.normal(0, 1, rows).astype(np.float16).view(np.uint16).astype(np.int64)
        scale[::7] = rng.choice(SCALES, len(scale[::7]))
        ends = np.full(rows, True)  # sums that are the last of their row
        if config.sums.groups > 1:
            ends = rng.random(rows) < 0.4
            ends[-1] = True
        count = int(ends.sum())
        scale = scale[:count][np.cumsum(ends) - ends]  # of each sum
        scales = torch.tensor(scale)[:, None] if config.scaled else None
        word = rounded(Limbs(high, low), GRID_PRODUCT_EXACT + exponent, scales).numpy()
        bad = rng.random((rows, batch)) < 0.2
        last = rng.integers(0, 2, rows)
        row_end = {"row_end": ends.astype(int)} if config.sums.groups > 1 else {}
        vectors = {
            "sum": layout_words(
                config.sums.sum_layout,
                value=values,
                bad=(bad << np.arange(batch)).sum(1),
                last=last,
                **row_end,
            ),
            "y": layout_words(
                config.y_layout, word=np.where(bad, FP16.canonical_nan, word), last=last
            ),
        }
        if config.scaled:
            vectors["scale"] = layout_words(config.scale_layout, word=scale[ends])
        simulate(
            VqRowFinish(config), "tb.vqllm.tb_row_finish", vectors=vectors,
            params={"exponent": exponent, "ends": (ends.nonzero()[0] + 1).tolist()}, seed=seed,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sums": None}, "sums must be a VqRowSumsConfig, not None"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqRowFinishConfig(**wrong)
    assert str(error.value).startswith(f"VqRowFinishConfig.{message}")
