"""KllmFunctionPipeline against golden.kllm.functional.function: an eighth of all words each.

Shown to fail:

- SILU of -infinity as the divider gives it;
- RELU that lets a NaN or -0 pass;
- the sign of z unchanged;
- GELU's constants exchanged;
- a word of another function let in before the pipeline is empty;
- a function with a table that has the words of another one.
"""

import numpy as np
import pytest
import torch

from golden.fp16.vectors.columns import random_words
from golden.kllm.config import FunctionShape
from golden.kllm.functional import function
from golden.words import pack
from hdl.kllm.function.pipeline import KllmFunctionPipeline, KllmFunctionPipelineConfig
from tb.simulate.run import simulate

ALL = FunctionShape(tanh=True, gelu_erf=True, quick_gelu=True)
CONFIGS = {
    "two_stages": (KllmFunctionPipelineConfig(), 1 << 13),
    "one_stage": (KllmFunctionPipelineConfig(stages=1, extra=ALL), 2000),
    "four_stages": (KllmFunctionPipelineConfig(stages=4, extra=FunctionShape(tanh=True)), 2000),
}
SPECIAL = [0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 1, 0x8001, 0x3C00, 0xBC00, 0xFBFF]


def operands(f, x):
    return pack((np.full(len(x), int(f)), 4), (x, 16))


def results(f, x):
    return function(f, torch.tensor(x)).numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_function_pipeline(name, seed):
    config, count = CONFIGS[name]
    functions = config.extra.functions
    rng = np.random.default_rng([seed, 61])
    vectors = {}
    for f in functions:
        # Words that differ, of all ranges: the operators have been tried on all words already.
        x = np.concatenate([rng.permutation(1 << 16)[: count // 2], random_words(rng, count // 2)])
        x = x.astype(np.int64)
        x[: len(SPECIAL)] = SPECIAL
        vectors[f"{f.name}.i"] = operands(f, x)
        vectors[f"{f.name}.o"] = pack((results(f, x), 16))
    runs_i, runs_o = [], []
    for _ in range(90):
        f = functions[int(rng.integers(0, len(functions)))]
        x = random_words(rng, int(rng.choice([1, 1, 2, 3, 17]))).astype(np.int64)
        x[:1] = rng.choice([*SPECIAL, x[0]])
        runs_i.append(operands(f, x))
        runs_o.append(pack((results(f, x), 16)))
    vectors["mixed.i"], vectors["mixed.o"] = np.concatenate(runs_i), np.concatenate(runs_o)
    simulate(
        KllmFunctionPipeline(config),
        "tb.kllm.tb_function_pipeline",
        vectors=vectors,
        params={"functions": [f.name for f in functions]},
        seed=seed,
    )
