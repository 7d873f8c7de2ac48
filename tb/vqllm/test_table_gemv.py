"""VqTableGemv against golden.vqllm.product.by_tables: tiles, slices, short codebooks, NaN.

Shown to fail with:

- the tables of both slices on one side; tables that are built before their side is free; ``built``
  a cycle early
- part 0 of x for all lanes; the stage of an entry placed by the entries of the load
- the exponent of an entry some cycles early; a switch that does not wait for its load
- a load that replaces one that waits; a cycle without an entry between two jobs
- lanes that are not used in the sum, or in the check of codes; a code one beyond the entries
- infinite entries reported a cycle early; sums that leave after each slice; NaN in x not reported
- the sum of the job before not read in the next cycle (one_lane)
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.vqllm.config import NAMED, MatrixShape, VqShape
from golden.vqllm.product import by_tables
from golden.vqllm.vectors.matrices import is_nonfinite, random_matrix
from hdl.vqllm.table.config import VqTableGemvConfig
from hdl.vqllm.table.gemv import VqTableGemv
from tb.simulate.run import simulate
from tb.vqllm.support.tables import TableWords

# Configuration; rows, columns, and entries of the load of its matrices, 0: all
CONFIGS = {
    "two_stages": (
        VqTableGemvConfig(vq=VqShape(entries=32), lookups=8, lanes=4, columns=96, rows=84),
        [(84, 64, 0), (60, 96, 0), (7, 72, 23), (1, 8, 0), (100, 32, 0), (40, 96, 31)],
    ),
    "tiles": (
        VqTableGemvConfig(
            vq=VqShape(size=4, entries=16, stages=1, tile_rows=24, tile_columns=32),
            lookups=8, lanes=2, batch=2, columns=96, rows=24,
        ),
        [(40, 80, 0), (24, 32, 9), (25, 36, 0)],
    ),
    "scaled": (
        VqTableGemvConfig(
            vq=VqShape(size=2, entries=8, stages=3), lookups=6, lanes=1, batch=3, columns=24,
            rows=20, scaled=True,
        ),
        [(20, 24, 0), (5, 22, 3), (33, 14, 0), (20, 24, 0)],
    ),
    "four": (
        VqTableGemvConfig(
            vq=VqShape(size=3, entries=16, stages=4, tile_columns=24), lookups=16, lanes=4,
            columns=60, rows=80, scaled=True,
        ),
        [(80, 36, 0), (3, 57, 16), (50, 48, 13)],
    ),
    "one_lane": (
        VqTableGemvConfig(
            vq=VqShape(size=1, entries=4, stages=1), lookups=1, lanes=1, columns=9, rows=3
        ),
        [(3, 9, 0), (1, 1, 0), (1, 9, 1), (2, 5, 2)],
    ),
    "gptvq2": (
        VqTableGemvConfig(
            vq=VqShape(size=4, stages=1, tile_rows=256, tile_columns=256), lookups=16, lanes=16,
            columns=1024, rows=256,
        ),
        [(128, 320, 0)],
    ),
}  # fmt: skip
KINDS = ("ordinary", "overflow", "nonfinite", "beyond")


def words_of(config, rng, rows: int, columns: int, loaded: int, kind: str) -> dict:
    """The words of each stream of a matrix, those of y with their mask, and what they take."""
    vq = config.vq
    shape, loaded = MatrixShape(rows=rows, columns=columns, vq=vq), loaded or vq.entries
    exponent = 15 if kind == "overflow" else int(rng.integers(-8, 5))
    matrix = random_matrix(rng, shape, exponent, config.scaled)
    matrix.codes.copy_(matrix.codes.clamp(max=loaded - 1))
    spoilt = np.zeros(rows, dtype=bool)
    if kind == "beyond" and loaded < vq.entries:
        for row in rng.choice(rows, rows // 5, replace=False):
            at = row, rng.integers(shape.vectors), rng.integers(vq.stages)
            matrix.codes[at] = int(rng.integers(loaded, vq.entries))
            spoilt[row] = True
    vectors = config.batch if kind == "ordinary" else int(rng.integers(1, config.batch + 1))
    x = rng.normal(0, 1, (vectors, columns)).astype(np.float16).view(np.uint16).astype(np.int64)
    if kind == "nonfinite":
        x[rng.integers(vectors), rng.integers(columns)] = rng.choice([0x7C00, 0xFC01])
    y, bad = by_tables(torch.tensor(x), matrix)
    assert bad.tolist() == is_nonfinite(x).any(1).tolist()
    y = y.numpy()
    y[:, spoilt] = FP16.canonical_nan
    words = np.zeros((rows, config.batch), dtype=np.int64)
    words[:, :vectors] = y.T
    # Vectors that are not there have the tables of what the buffer had: they are not compared.
    known = np.zeros((rows, config.batch), dtype=np.int64)
    known[:, :vectors] = 0xFFFF

    made = TableWords(config, matrix, rng, loaded)
    made.vectors(x)
    found = made.words | {"y": made.results(words), "mask": made.results(known)}
    return {"words": found, "causes": made.causes, "cycles": made.cycles}


@pytest.mark.telling("two_stages", "scaled", "one_lane")
@pytest.mark.parametrize("name", CONFIGS)
def test_table_gemv(name, seed):
    config, sizes = CONFIGS[name]
    rng = np.random.default_rng([seed, 167])
    matrices = [
        words_of(config, rng, *size, KINDS[3 if size[2] else n % 3]) for n, size in enumerate(sizes)
    ]
    simulate(
        VqTableGemv(config), "tb.vqllm.tb_table_gemv", params={"matrices": matrices}, seed=seed
    )


_QUIP4 = NAMED["quip4"]
_NO_SIGNS = (
    f"vq must be without lattice: entries with signs of their own share no table, not {_QUIP4}"
)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vq": _QUIP4}, _NO_SIGNS),
        ({"lookups": 7}, "lookups must be a multiple of vq.stages = 2, not 7"),
        ({"lanes": 3}, "lanes must be a divisor of lookups / vq.stages = 4, not 3"),
        ({"lanes": 8}, "lanes must be 1..4, not 8"),
    ],
)  # fmt: skip
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqTableGemvConfig(**wrong)
    assert str(error.value) == f"VqTableGemvConfig.{message}"
