"""KllmTabled in Verilator against golden.kllm.functional.function: all words of each function.

Shown to fail:

- a piece's middle taken as its beginning;
- bit 11 of one entry of each table;
- w for 1 - w of a negative word, of TANH too;
- TANH from 5 on as its product;
- +infinity of -infinity;
- one bit less of the product.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.kllm.config import FunctionShape
from golden.kllm.functional import function
from hdl.kllm.function.tabled import KllmTabled, KllmTabledConfig
from tb.fp16.support.bank import at_all_depths, at_depths, check

WORDS = torch.arange(1 << 16)


def columns_of(config: KllmTabledConfig, seed: int) -> dict[str, np.ndarray]:
    """Every word of every function, one function after another, the words in any order."""
    rng = np.random.default_rng([seed, 71])
    made: dict[str, list[np.ndarray]] = {"function": [], "a": [], "y": []}
    for each in config.extra.tabled:
        order = torch.from_numpy(rng.permutation(1 << 16))
        made["function"].append(np.full(1 << 16, int(each)))
        made["a"].append(WORDS[order].numpy())
        made["y"].append(function(each, WORDS)[order].numpy())
    return {name: np.concatenate(parts) for name, parts in made.items()}


def test_tabled(seed):
    whole = KllmTabledConfig()
    cases = at_all_depths(whole, columns_of(whole, seed), seed, complete=(2,))
    for name in ("tanh", "gelu_erf", "quick_gelu"):
        one = dataclasses.replace(whole, extra=FunctionShape(**{name: True}))
        columns = columns_of(one, seed)
        part = {key: column[:8000] for key, column in columns.items()}
        cases += at_depths(one, part, [(6, 1)])
    check(KllmTabled, cases, seed)


def test_a_block_without_functions():
    with pytest.raises(ConfigError, match=r"extra must be a FunctionShape with one of tanh, gelu"):
        KllmTabledConfig(extra=FunctionShape(bounds=True))
