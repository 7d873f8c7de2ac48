"""KllmResultRows against golden.kllm.phases.walk_rows and result_rows.

Shown to fail with:

- words kept after the tail
- the tail of a walk in pairs cleared
- the tail of each row cleared
- ``idle`` before the last row was taken
- a row overwritten in a stall
- words taken without a walk
- a row that ends after one of several transfers too many, or a place that advances by one word
- the first word of a transfer taken for all
- no words of the next row taken while a row waits
- a bit of the token's number, or of the step's, stuck at 0 (the longest walks alone)
- bit 12 of the step's number stuck at 0 (widths 8 and 16 alone)
"""

import numpy as np
import pytest
import torch

from golden.kllm.phases import result_rows, walk_rows
from golden.words import pack, unpack_ints
from hdl.kllm.engine import row_write_layout
from hdl.kllm.function.job import result_walk_layout
from hdl.kllm.function.result_rows import KllmResultRows, KllmResultRowsConfig
from tb.simulate.run import simulate

CONFIGS = {f"width_{width}": KllmResultRowsConfig(width=width) for width in (1, 2, 4, 8, 16)}
CONFIGS |= {
    f"width_{width}_functions_{functions}": KllmResultRowsConfig(width=width, functions=functions)
    for width, functions in ((4, 8), (8, 2), (16, 4))
}
WALKS = 40


def make_walk(rng, config, kind: int, extent: tuple[int, int] | None = None) -> dict:
    """A walk, the words that it takes, and the rows that it writes. kind 1: pairs; 2: single.

    extent: (tokens, steps), with a stride of 3; None: up to 4 of each.
    """
    pair, single = kind == 1, kind == 2
    tokens, steps = extent or map(int, rng.integers(1, 5, 2))
    tail = 0 if pair else int(rng.integers(0, 16))
    rows = {
        "first": int(rng.integers(0, 1 << 16)), "second": int(rng.integers(0, 1 << 16)),
        "stride": 3 if extent else int(rng.integers(0, 50)), "steps": steps, "tokens": tokens,
        "pair": int(pair),
    }  # fmt: skip
    words = rng.integers(0, 1 << 16, (tokens, steps * (1 + pair) * 16))
    length = words.shape[1] - (16 - tail if tail else 0)
    golden = result_rows([torch.tensor(token[:length]) for token in words], pair)
    written = [
        row_write_layout.const({"row": row, "word": word}).as_bits()
        for row, word in zip(walk_rows(**rows), golden.tolist(), strict=True)
    ]
    walk = {"rows": rows, "tail": tail, "single": int(single)}
    if pair and rng.random() < 0.5:
        walk["tail"] = int(rng.integers(1, 16))  # does not count
    size = config.functions if single else config.width
    return {
        "walk": result_walk_layout.const(walk).as_bits(),
        "source": "element" if single else "i",
        "words": unpack_ints(pack((words.reshape(-1, size), 16))),
        "write": written,
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_result_rows(name, seed):
    rng = np.random.default_rng([seed, 84])
    kinds = [0, 1, 2, *rng.integers(0, 3, WALKS - 3).tolist()]
    config = CONFIGS[name]
    walks = [make_walk(rng, config, kind) for kind in kinds]
    # Every bit of the number of a token, and of that of a step: four words per cycle are slow.
    most = (1 << 13) - 1 if config.width > 4 else (1 << 11) - 1
    longest = [make_walk(rng, config, 0, extent) for extent in ((255, 1), (1, most))]
    simulate(
        KllmResultRows(config), "tb.kllm.tb_result_rows",
        params={"walks": walks, "longest": longest}, seed=seed,
    )  # fmt: skip
