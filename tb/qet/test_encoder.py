"""QetEncoder against golden.qet.matrix.encode: loads, switches, ties, every code and map.

Shown to fail with:

- the last of equal distances; X rounded, not saturated, or saturated a bit early
- an infinite residual; an element stored one too early; a difference read a cycle early
- codes before the last comparison; the nearest entry counted again when it is read again
- loads that wait for the first stage alone; UNLOADED not said; NaN looked for in one column
- codes of the stages that leave one by one; three rows that wait, whatever the stages after
"""

import numpy as np
import pytest

from golden.qet.vectors.tiles import EncoderWords
from hdl.qet.encoder import QetEncoder, QetEncoderConfig
from tb.qet.test_decoder import tile
from tb.simulate.run import simulate

SHAPES = {
    "default": tile((3, 40), (0, 12)),
    "product quantization": tile((0, 16), entry_bits=0, group=4),
    "words": tile((1, 5), (2, 3), entry_bits=0, group=2),
    "levels of words": tile((2, 17), entry_bits=0, group=3),
    "four stages": tile((2, 9), (0, 4), (1, 2), (2, 3), entry_bits=2, group=3),
    "one column": tile((0, 2), entry_bits=16, group=1),
    "residual levels": tile((0, 6), (3, 6), entry_bits=16, group=1),
    "quick stages": tile((0, 2), (4, 2), (4, 2), (4, 2), entry_bits=3, group=1),
    "large groups": tile((0, 7), (1, 5), entry_bits=9, group=20),
}


@pytest.mark.telling("default", "levels of words", "one column", "quick stages")
@pytest.mark.parametrize("name", SHAPES)
def test_encoder(name, seed):
    config = QetEncoderConfig(shape=SHAPES[name])
    words = EncoderWords(config, np.random.default_rng([seed, 223]), rows=10)
    simulate(
        QetEncoder(config), "tb.qet.tb_encoder", vectors=words.vectors(), params=words.params(),
        seed=seed,
    )  # fmt: skip
