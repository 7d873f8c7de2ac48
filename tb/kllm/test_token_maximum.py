"""KllmTokenMaximum against golden.kllm.quantizer_phases.token_maximum.

Shown to fail with:

- elements that are not live counted
- -0 as NEGATIVE, an infinity as finite
- a maximum, or a fault, kept from the token before
- a status overwritten by that of the next token
"""

import numpy as np

from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.quantizer_phases import token_maximum
from hdl.kllm.quantize.maximum import KllmTokenMaximum
from hdl.kllm.quantize.payloads import KllmQuantizePhaseConfig, integer_row_layout
from tb.simulate.run import simulate

TOKENS = 300
SPECIAL = [0x8000, 0x8001, 0xBC00, 0x7C00, 0x7E00, 0xFC00]
STREAMS = ("i", "largest", "status")


def make_token(rng) -> tuple[list[int], int, int]:
    """Rows, and the largest magnitude and the status."""
    length = int(rng.integers(1, 70))
    rows = -(-length // ROW_ELEMENTS)
    x = rng.integers(0, rng.choice([1, 2, 0x400, 0x7C00]), rows * ROW_ELEMENTS)
    if rng.random() < 0.4:  # neighbours: the largest is decided by any of the bits
        x = np.minimum(
            rng.integers(0x7C00) ^ rng.integers(0, 1 << rng.integers(1, 15), x.shape), 0x7BFF
        )
    share = rng.choice([0, 0.05])
    x = np.where(rng.random(x.shape) < share, rng.choice(SPECIAL, x.shape), x)
    if not share and rng.random() < 0.5:  # one alone, in any place
        x[rng.integers(length)] = rng.choice(SPECIAL)
    x[length:] = rng.integers(0, 1 << 16, len(x) - length)
    words = []
    for row in range(rows):
        live = min(length - row * ROW_ELEMENTS, ROW_ELEMENTS)
        fields = {"word": x.reshape(rows, -1)[row].tolist(), "live": (1 << live) - 1,
                  "last": int(row == rows - 1)}  # fmt: skip
        words.append(integer_row_layout.const(fields).as_bits())
    largest, status = token_maximum(x[:length].tolist())
    return words, largest, int(status)


def test_token_maximum(seed):
    rng = np.random.default_rng([seed, 96])
    words = {name: [] for name in STREAMS}
    packets = {name: [] for name in STREAMS}
    for _ in range(TOKENS):
        rows, largest, status = make_token(rng)
        for name, given in zip(STREAMS, (rows, [largest], [status]), strict=True):
            words[name] += given
            packets[name].append(len(words[name]))
    assert len(set(words["status"])) == 4
    simulate(
        KllmTokenMaximum(KllmQuantizePhaseConfig()), "tb.kllm.tb_token_maximum", seed=seed,
        params={"words": words, "packets": packets},
    )  # fmt: skip
