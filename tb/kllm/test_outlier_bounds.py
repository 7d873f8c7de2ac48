"""KllmOutlierBounds against golden.kllm.quantizer_phases.outlier_bound.

Shown to fail with:

- the position of the pop that is offered, not of the last one taken
- a side that stays on for the next token
- a pop's word in the place of its key
- any status but 0 lost
- a token whose bounds are replaced before they are taken
"""

import numpy as np

from golden.kllm.quantizer_phases import outlier_bound
from hdl.kllm.quantize.bounds import KllmOutlierBounds
from hdl.kllm.quantize.payloads import KllmQuantizePhaseConfig, found_layout
from tb.kllm.support.cared import cared
from tb.simulate.run import simulate

TOKENS = 120
BLOCK = KllmOutlierBounds(KllmQuantizePhaseConfig())
POP, DONE = BLOCK.pop_max.p.shape(), BLOCK.done.p.shape()


def make_token(rng) -> dict[str, list]:
    """The words of every stream for one token."""
    words, found = {}, {}
    for stream, side in (("pop_max", "largest"), ("pop_min", "smallest")):
        count = int(rng.choice([0, 1, int(rng.integers(2, 9))]))
        pops = [(int(rng.integers(1 << 14)), int(rng.integers(1 << 16))) for _ in range(count)]
        words[stream] = [
            POP.const({"index": index, "word": word, "last": int(n == count - 1)}).as_bits()
            for n, (index, word) in enumerate(pops)
        ]
        bound, found[side] = outlier_bound(pops), {"on": 0}
        if bound is not None:
            found[side] = {"on": 1, "tie": int(bound.tie), "key": bound.key,
                           "position": bound.position}  # fmt: skip
    status = int(rng.choice([0, 0, 1, int(rng.integers(1 << DONE["status"].width))]))
    done = rng.integers(0, 1 << 16, 3).tolist()
    fields = dict(zip(("largest", "smallest", "scale"), done, strict=True))
    bits = DONE.const(fields).as_bits() | status << DONE["status"].offset
    found |= {"bad": int(status != 0), "s": fields["scale"]}
    return words | {"done": [bits], "o": [cared(found_layout, found)]}


def test_outlier_bounds(seed):
    rng = np.random.default_rng([seed, 99])
    words = {name: [] for name in ("pop_max", "pop_min", "done", "o")}
    packets = {name: [] for name in words}
    for _ in range(TOKENS):
        for name, given in make_token(rng).items():
            words[name] += given
            packets[name].append(len(words[name]))
    simulate(
        BLOCK, "tb.kllm.tb_outlier_bounds", seed=seed, params={"words": words, "packets": packets}
    )  # fmt: skip
