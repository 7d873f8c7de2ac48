"""KllmFirstPass against golden.kllm.quantizer_phases.first_pass.

Shown to fail with:

- the live elements of the last row in every row
- ``last`` in every row
- rows of an integer token that go to the trees
- ``token`` taken with its first row
- a bit of the row's number stuck at 0 (the longest token alone)
"""

import numpy as np

from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.quantizer_phases import first_pass
from hdl.kllm.quantize.first_pass import KllmFirstPass
from hdl.kllm.quantize.payloads import (
    KllmQuantizePhaseConfig,
    first_pass_layout,
    integer_row_layout,
    row_layout,
)
from tb.simulate.run import simulate

TOKENS, LONGEST = 150, (1 << 14) - 1
BLOCK = KllmFirstPass(KllmQuantizePhaseConfig())
X = BLOCK.x.p.shape()


def make_token(rng, length: int) -> dict[str, list[int]]:
    """The words of every stream for one token."""
    rows = first_pass(length)
    is_integer = int(rng.integers(2))
    tail = rows[-1][0].bit_length() - 1
    words = {"token": [], "row": [], "x": [], "integer": []}
    token = {"integer": is_integer, "rows": len(rows), "tail": tail}
    words["token"].append(first_pass_layout.const(token).as_bits())
    for live, last in rows:
        word = rng.integers(0, 1 << 16, ROW_ELEMENTS).tolist()
        words["row"].append(row_layout.const({"word": word}).as_bits())
        if is_integer:
            fields = {"word": word, "live": live, "last": int(last)}
            words["integer"].append(integer_row_layout.const(fields).as_bits())
        else:
            words["x"].append(X.const({"word": word, "last": int(last)}).as_bits())
    return words


def test_first_pass(seed):
    rng = np.random.default_rng([seed, 97])
    words = {name: [] for name in ("token", "row", "x", "integer")}
    packets = {name: [] for name in words}
    lengths = [*rng.integers(1, 90, TOKENS).tolist(), LONGEST]
    for length in lengths:
        for name, given in make_token(rng, length).items():
            words[name] += given
            packets[name].append(len(words[name]))
    assert words["x"]
    assert words["integer"]
    simulate(
        BLOCK, "tb.kllm.tb_first_pass", seed=seed, params={"words": words, "packets": packets}
    )  # fmt: skip
