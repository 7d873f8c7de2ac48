"""KllmRowGuard against golden.kllm.walks.is_held: requests, and a front that moves.

Shown to fail with:

- a row of the front that passes: its first, or its last
- a row that waits though it is written, or is the one after the last
- a front that holds without ``valid``
- bit 15 of a row unseen
- an offered request that a front takes back
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.walks import Front
from hdl.kllm.engine import front_layout
from hdl.kllm.room import BLOCKS
from hdl.kllm.row_guard import KllmRowGuard
from tb.simulate.run import simulate

CONFIGS = BLOCKS["kllm_row_guard"].configs
CYCLES = 6000
LAST = (1 << 16) - 1


def fronts(rng) -> list[Front]:
    """A front for each cycle: it moves on, ends and begins elsewhere, also at the last row."""
    found: list[Front] = []
    while len(found) < CYCLES:
        first = int(rng.choice([0, 1, 7, LAST - 20, int(rng.integers(1 << 16))]))
        end = min(first + int(rng.integers(1, 40)), LAST + 1)
        row = first
        while row < end:
            valid = int(rng.random() < 0.5) if row == first else 1
            found += [Front(valid=valid, next=row, end=end)] * int(rng.integers(1, 9))
            row += int(rng.integers(1, 9))
        found += [Front(valid=1, next=end, end=end)] * int(rng.integers(0, 4))
        found += [Front(valid=0, next=first, end=end)] * int(rng.integers(0, 4))
    return found[:CYCLES]


@pytest.mark.parametrize("name", CONFIGS)
def test_row_guard(name, seed):
    rng = np.random.default_rng([seed, 93])
    moving, requests = fronts(rng), []
    for front in moving:
        near = front.next + int(rng.integers(-3, 4)), front.end + int(rng.integers(-2, 2))
        row = int(rng.choice([*near, int(rng.integers(1 << 16)), near[0] ^ 1 << 15])) & LAST
        requests.append(row)
    simulate(
        KllmRowGuard(CONFIGS[name]), "tb.kllm.tb_row_guard", seed=seed,
        params={
            "fronts": [front_layout.const(dataclasses.asdict(each)).as_bits() for each in moving],
            "fields": [dataclasses.asdict(each) for each in moving],
            "rows": requests, "writes": CONFIGS[name].writes,
        },
    )  # fmt: skip
