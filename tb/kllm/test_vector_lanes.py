"""KllmVectorLanes against golden.kllm.phases.lanes.

Shown to fail with:

- the sine's sign on the other half
- ``scale`` ignored
- a difference that adds
- +0 for -0 in a copy
- a row overwritten in a stall
- a row of b taken without one of a
- 16 transfers of a row of elements where 2 are side by side, or a transfer before its turn
- a leading zero of a subnormal word not counted, in one lane
- MINIMUM that takes the greater of two negative words, +0 for -0, or a number for a NaN of b
"""

import numpy as np
import pytest
import torch

from golden.fp16.vectors.columns import random_words
from golden.kllm.format import Operation
from golden.kllm.phases import lanes
from golden.words import pack, unpack_ints
from hdl.kllm.function.vector_lanes import BINARIES, KllmVectorLanes, KllmVectorLanesConfig
from tb.simulate.run import simulate

CONFIGS = {f"width_{width}": KllmVectorLanesConfig(width=width) for width in (1, 2, 4, 8, 16)}
CONFIGS |= {
    f"width_{width}_functions_{functions}": KllmVectorLanesConfig(width=width, functions=functions)
    for width, functions in ((4, 8), (8, 2), (16, 4))
}
CONFIGS["bounds"] = KllmVectorLanesConfig(width=8, bounds=True)
ROWS = 40
SPECIAL = [0, 0x8000, 1, 0x8001, 0x3C00, 0xBC00, 0x3C01, 0xBC01, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00,
           0x7E00, 0x7C01, 0xFE00, 0xFFFF]  # fmt: skip
_BOUNDS = (Operation.MINIMUM, Operation.MAXIMUM)
SINKS = {Operation.SCORE: "score", Operation.ELEMENT: "element"}


def words_of(rng, *shape) -> torch.Tensor:
    """Words of the ordinary range, of all ranges with infinities and NaN, and subnormal ones."""
    ordinary = rng.normal(0, 2, shape).astype(np.float16).view(np.uint16).astype(np.int64)
    every = random_words(rng, int(np.prod(shape))).reshape(shape).astype(np.int64)
    low = rng.integers(1, 2 << rng.integers(0, 10, shape)) | rng.integers(0, 2, shape) << 15
    which = rng.choice(3, shape, p=[0.5, 0.35, 0.15])
    return torch.tensor(np.choose(which, [ordinary, every, low]))


def ints(words: torch.Tensor) -> list[int]:
    return unpack_ints(pack((words.numpy(), 16)))


def make_case(operation: Operation, rng, config: KllmVectorLanesConfig) -> dict:
    """One operation on ROWS rows: the driven words, and the words of each sink."""
    scalar = int(words_of(rng, 1))
    scale = int(np.float32(rng.uniform(0.001, 1)).view(np.uint32))
    a, b = words_of(rng, ROWS, 16), words_of(rng, ROWS, 16)
    # Neighbours of the other sign: a sum of any number of leading zeros.
    near = a ^ 0x8000 ^ torch.tensor(rng.integers(0, 1 << rng.integers(0, 12, a.shape)))
    b = torch.where(torch.tensor(rng.random(a.shape) < 0.3), near, b)
    if operation in _BOUNDS:  # each of some words with each
        some = torch.tensor(SPECIAL)
        a[:16], b[:16] = some[:, None].expand(16, 16), some
    if operation == Operation.ROTATE:
        pairs = [lanes(operation, a[k : k + 2], b[k : k + 2]) for k in range(0, ROWS, 2)]
        y = torch.cat(pairs)
    else:
        y = lanes(operation, a, b, scalar, scale)
    width = config.width
    size = config.functions if operation == Operation.ELEMENT else width
    offers = {"a": ints(a)}
    if operation == Operation.SCALE:
        offers = {"weight": ints(a.reshape(-1, width))}
    if operation in (*BINARIES, Operation.ROTATE):
        offers["b"] = ints(b)
    return {
        "operation": int(operation), "scalar": scalar, "scale": scale, "offers": offers,
        "sink": SINKS.get(operation, "o"), "words": ints(y.reshape(-1, size)),
    }  # fmt: skip


@pytest.mark.telling("width_4_functions_8", "width_16", "bounds")
@pytest.mark.parametrize("name", CONFIGS)
def test_vector_lanes(name, seed):
    rng = np.random.default_rng([seed, 83])
    config = CONFIGS[name]
    operations = [each for each in Operation if each not in _BOUNDS or config.bounds]
    order = [*operations, *rng.permutation(operations).tolist()]
    simulate(
        KllmVectorLanes(config),
        "tb.kllm.tb_vector_lanes",
        params={"cases": [make_case(Operation(each), rng, config) for each in order]},
        seed=seed,
    )
