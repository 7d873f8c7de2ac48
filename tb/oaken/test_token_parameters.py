"""OakenTokenParameters against golden.oaken.dequantize.token_parameters.

Words with a negative MIDDLE_STEP, and NaN or infinity in a MIDDLE word, give unspecified bases:
test_dequant_engine.py checks their status.

Shown to fail:

- ``bad`` of a word with an error, or without the check of minima;
- ``last`` one token late;
- a request taken a cycle after the last scale word (full_rate);
- bit 10 of the tokens that are left stuck at 0;
- an infinity of INNER_MIN that is no infinity.
"""

import itertools

import numpy as np
import pytest

from golden.oaken.dequantize import token_parameters
from golden.oaken.format import ScaleWord
from golden.oaken.vectors.dequant_tokens import as_bytes, some_tokens
from golden.words import layout_word
from hdl.oaken.token_parameters import OakenTokenParameters, OakenTokenParametersConfig
from tb.simulate.run import simulate

CONFIGS = {
    "default": OakenTokenParametersConfig(),
    "one": OakenTokenParametersConfig(stages=1),
    "deep": OakenTokenParametersConfig(stages=16),
}
LONG = (5461, 2730)  # tokens: bits 0 to 12 as 0 and as 1
ODD = (  # what no encoder writes, of which the golden bases are defined
    (ScaleWord.MIDDLE_MIN, (0x0001, 0x3C00, 0x8000)),
    (ScaleWord.MIDDLE_STEP, (0x8000,)),
    (ScaleWord.INNER_MIN, (0x0001, 0x7C00, 0x7E00, 0xFC00, 0xFE00, 0x8000)),
    (ScaleWord.INNER_STEP, (0x8000, 0x8001, 0x7C00, 0x7FFF)),
    (ScaleWord.OUTER_LOW_STEP, (0x8000, 0xBC00, 0x7C01)),
    (ScaleWord.OUTER_HIGH_STEP, (0x8000, 0xBC00, 0xFC00)),
)


def odd_scales(rng, scale, odd) -> int:
    """Put a word that no encoder writes into a third of the rows; how many rows have one."""
    count = 0
    for row in scale:
        if rng.random() < 0.3:
            which, word = next(odd)
            row[which] = word
            count += 1
    return count


@pytest.mark.parametrize("name", CONFIGS)
def test_token_parameters(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 71])
    words = {"request": [], "scale": [], "o": []}
    sizes = [1, 1, 1, 20, 1, 2, *rng.integers(1, 8, 60).tolist(), *LONG]
    odd_words = itertools.cycle((which, word) for which, words in ODD for word in words)
    odd = bad = 0
    for tokens in sizes:
        encoded, all_thresholds = some_tokens(rng, tokens, 16, 16)
        scale, thresholds = encoded.scale.clone(), all_thresholds[0]
        odd += odd_scales(rng, scale, odd_words)
        words["request"].append(
            layout_word(config.request_layout, tokens=tokens, thresholds=thresholds.tolist())
        )
        for n, (row, found) in enumerate(
            zip(scale.tolist(), token_parameters(scale, thresholds), strict=True)
        ):
            error = int(rng.random() < 0.1)
            words["scale"].append(layout_word(config.scale_layout, scale=row, error=error))
            found["bad"] &= ~error
            bad += found["bad"]
            last = n == tokens - 1
            words["o"].append(layout_word(config.o_layout, **found, error=error, last=last))
    assert bad > odd // 2 > 10
    sizes_of = {
        "request": config.request_layout, "scale": config.scale_layout, "o": config.o_layout
    }  # fmt: skip
    simulate(
        OakenTokenParameters(config),
        "tb.oaken.tb_token_parameters",
        vectors={name: as_bytes(words[name], each.size) for name, each in sizes_of.items()},
        params={"tokens": list(itertools.accumulate(sizes))},
        seed=seed,
    )
