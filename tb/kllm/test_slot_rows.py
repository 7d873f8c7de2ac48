"""KllmSlotRows against golden.kllm.phases.slot_rows and golden.kllm.functional.function.

Shown to fail with:

- table 1 filled by the scale of slot 0
- junk after the length
- no function
- a fill that ends after one table
- the last row missed
- the first element given to every pipeline
- a pipeline whose words leave in a stall of the first one's, or enter without a word of it
- SILU in all pipelines but the first
- one codebook
- one bit of one entry of a codebook stuck at 0
- a bit of the number of rows stuck at 0 (the longest slots alone)
"""

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.vectors.columns import random_words
from golden.kllm.config import FunctionShape
from golden.kllm.functional import function
from golden.kllm.isa import Function
from golden.kllm.phases import slot_rows
from golden.words import alternating, layout_words, pack, unpack_ints
from hdl.index.table import IndexTableConfig
from hdl.kllm.function.pipeline import KllmFunctionPipelineConfig
from hdl.kllm.function.slot_rows import KllmSlotRows, KllmSlotRowsConfig
from tb.simulate.run import simulate

CONFIGS = {
    "width_8": KllmSlotRowsConfig(),
    "width_4": KllmSlotRowsConfig(
        table=IndexTableConfig(bits_a=3, integer_bits=4, width=4), rows=9
    ),
    "width_16": KllmSlotRowsConfig(
        table=IndexTableConfig(bits_a=2, integer_bits=0, width=16), rows=8
    ),
    "functions_8": KllmSlotRowsConfig(
        table=IndexTableConfig(bits_a=2, integer_bits=4, width=4),
        rows=8,
        functions=8,
        extra=FunctionShape(tanh=True, gelu_erf=True, quick_gelu=True),
    ),
    "functions_2": KllmSlotRowsConfig(
        table=IndexTableConfig(bits_a=2, integer_bits=0, width=16), rows=8, functions=2
    ),
}
ROWS = 8


def ordinary(rng, *shape) -> np.ndarray:
    return rng.normal(0, 2, shape).astype(np.float16).view(np.uint16).astype(np.int64)


def words_of(rng, count: int) -> np.ndarray:
    every = random_words(rng, count).astype(np.int64)
    return np.where(rng.random(count) < 0.5, ordinary(rng, count), every)


def ints(words) -> list[int]:
    return unpack_ints(pack((np.asarray(words), 16)))


def load(rng, config, table: int, before=None) -> tuple[dict, torch.Tensor]:
    """A step that loads a codebook, and the codebook: random, or the complement of ``before``.

    Without the lowest bit of the exponent, where that gives an infinity or NaN.
    """
    row = ordinary(rng, 1, 16)
    if before is not None:
        words = before.numpy() ^ 0xFFFF
        row[0, : len(before)] = np.where(words & 0x7C00 == 0x7C00, words & ~0x400, words)
    step = {"offers": {"load": [table], "row": ints(row)}, "takes": {}, "loads": table}
    return step, torch.tensor(row[0, : 1 << config.table.bits_a])


def slot_job(rng, config, codebooks, f: int, two: int, rows: int = 0) -> dict:
    """One or two slots of the same length: tables filled, then their rows. rows 0: any."""
    rows = rows or int(rng.integers(1, ROWS + 1))
    tail = int(rng.integers(0, 16))
    length = rows * 16 - (16 - tail if tail else 0)
    bits = config.table.bits_a
    entry_bits = max(bits, config.table.integer_bits)
    shape = {"slots": 1, "function": f, "two": two, "rows": rows, "tail": tail}
    scales = words_of(rng, 2)
    step = {
        "shape": config.shape_layout.const(shape).as_bits(),
        "function": f,
        "fill": int(scales[0]) | int(scales[1]) << 16,
        "offers": {},
        "takes": {},
        "outliers": [],
    }
    for k in range(1 + two):
        index = rng.integers(0, 1 << bits, rows * 16)
        junk = rng.integers(0, 1 << entry_bits, rows * 16) >> bits << bits
        mask = rng.random(rows * 16) < rng.choice([0, 0.05, 0.3, 0.95])
        x = words_of(rng, rows * 16)
        inside = np.arange(rows * 16) < length
        used = mask & inside
        golden = slot_rows(
            torch.tensor(index), torch.tensor(used), torch.tensor(x), int(scales[k]),
            codebooks[k], f if k == 0 else Function.IDENTITY,
        )  # fmt: skip
        fields = {"value": (index | junk).reshape(rows, 16), "outlier": mask.reshape(rows, 16)}
        step["offers"][f"entries_{k}"] = unpack_ints(layout_words(config.table.i_layout, **fields))
        step["offers"][f"outliers_{k}"] = x[used].tolist()
        step["takes"][f"rows_{k}"] = ints(golden.numpy().reshape(rows, 16))
        step["outliers"].append(used.reshape(rows, 16).sum(axis=1).tolist())
    return step


def element_job(rng, config, f: int) -> dict:
    x = words_of(rng, 64)
    y = function(f, torch.tensor(x))
    shape = {"slots": 0, "function": f, "two": 0, "rows": 4, "tail": 0}
    return {
        "function": f,
        "shape": config.shape_layout.const(shape).as_bits(),
        "offers": {"element": ints(x.reshape(-1, config.functions))},
        "takes": {"y": ints(y.numpy().reshape(-1, config.functions))},
    }


@pytest.mark.telling("width_8", "functions_8")
@pytest.mark.parametrize("name", CONFIGS)
def test_slot_rows(name, seed):
    config = CONFIGS[name]
    known = config.extra.functions
    rng = np.random.default_rng([seed, 86])
    first, book_a = load(rng, config, 0)
    second, book_b = load(rng, config, 1)
    steps = [first, second]
    for n, f in enumerate([*known, *rng.permutation([*known, *known])]):
        if n and not n % 4:  # a new codebook, with the bits that the one before had not
            table = n // 4 % 2
            again, book = load(rng, config, table, (book_a, book_b)[table])
            book_a, book_b = (book_a, book) if table else (book, book_b)
            steps.append(again)
        steps.append(slot_job(rng, config, (book_a, book_b), int(f), n % 2))
        steps.append(element_job(rng, config, int(f)))
    sizes = (*alternating(config.rows), config.rows) if name == "width_8" else ()
    longest = [
        slot_job(rng, config, (book_a, book_b), int(Function.IDENTITY), 1, rows) for rows in sizes
    ]
    simulate(
        KllmSlotRows(config),
        "tb.kllm.tb_slot_rows",
        params={
            "steps": steps,
            "stages": KllmFunctionPipelineConfig().stages,
            "longest": longest,
        },
        seed=seed,
    )


@pytest.mark.parametrize("rows", [0, 1025])
def test_rejects(rows):
    with pytest.raises(ConfigError, match="rows"):
        KllmSlotRowsConfig(rows=rows)
