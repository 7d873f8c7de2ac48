"""KllmRowGather against golden.kllm.walks.gathered_rows.

Shown to fail with:

- a row offered before its last word
- a word taken while a row waits and the next one is complete
- words in reverse order
"""

import numpy as np

from golden.kllm.walks import gathered_rows
from hdl.kllm.matmul.config import KllmMatmulPhaseConfig
from hdl.kllm.matmul.gather import KllmRowGather
from hdl.kllm.matmul.payloads import packet_word_layout, row_layout
from tb.simulate.run import simulate

ROWS = 40


def test_row_gather(seed):
    rng = np.random.default_rng([seed, 90])
    words = rng.integers(0, 1 << 16, 16 * ROWS).tolist()
    simulate(
        KllmRowGather(KllmMatmulPhaseConfig()),
        "tb.kllm.tb_row_gather",
        params={
            # ``last`` has no effect
            "y": [
                packet_word_layout.const({"word": word, "last": int(rng.integers(2))}).as_bits()
                for word in words
            ],
            "o": [row_layout.const({"word": row}).as_bits() for row in gathered_rows(words)],
        },
        seed=seed,
    )
