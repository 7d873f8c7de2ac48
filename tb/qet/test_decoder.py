"""QetDecoder against golden.qet.matrix: loads, switches, faults, every word of every row.

Shown to fail with:

- a load begun before the verdict or the switch of the one before, or in the middle of one
- a fault, a place or a stage left over from the load before
- a load that ends with an earlier stage; one entry too many, or none
- low or the highest element one beyond, or refused at its end
- a commit that regards the words before the last alone
- ranges a row late; beyond of the first stage alone; low or maps of the next row under stall
- elements of a group taken across networks; sums as narrow as one stage, products a bit too narrow
- full, waits, judged or is_used without reset
- a queue of two rows; flags that leave without their words; registers that do not fill under stall
"""

import numpy as np
import pytest

from golden.config import ConfigError
from golden.qet.config import Stage, TileShape
from golden.qet.vectors.tiles import DecoderWords
from hdl.qet.decoder import QetDecoder, QetDecoderConfig
from tb.simulate.run import simulate


def tile(*stages, **fields) -> TileShape:
    return TileShape(
        stages=tuple(Stage(levels=levels, entries=entries) for levels, entries in stages), **fields
    )


SHAPES = {
    "default": TileShape(),
    "product quantization": tile((0, 16), entry_bits=0, group=4),
    "words": tile((1, 5), (2, 3), entry_bits=0, group=2),
    "levels of words": tile((2, 17), entry_bits=0, group=3),
    "four stages": tile((2, 9), (0, 4), (1, 2), (2, 3), entry_bits=2, group=3),
    "one column": tile((0, 2), entry_bits=16, group=1),
    "many columns": tile((5, 3), (4, 7), entry_bits=5, group=8),
    "residual levels": tile((0, 6), (3, 6), entry_bits=16, group=1),
}


@pytest.mark.telling("default", "product quantization", "levels of words", "one column")
@pytest.mark.parametrize("name", SHAPES)
def test_decoder(name, seed):
    config = QetDecoderConfig(shape=SHAPES[name])
    words = DecoderWords(config, np.random.default_rng([seed, 222]))
    simulate(
        QetDecoder(config), "tb.qet.tb_decoder", vectors=words.vectors(), params=words.params(),
        seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shape": None}, "QetDecoderConfig.shape must be a TileShape, not None"),
        (
            {"shape": {"stages": (Stage(entries=1),)}},
            "TileShape.stages must be of 2 or more entries, not",
        ),
        (
            {"shape": {"group": 64, "stages": (Stage(levels=5),)}},
            "TileShape.group must be of at most 1024 columns of a tile, not 64",
        ),
        ({"shape": {"entry_bits": 1}}, "QetShape.entry_bits must be 2..16, not 1"),
    ],
)
def test_rejects(wrong, message):
    def made(shape):
        return QetDecoderConfig(shape=TileShape(**shape) if shape else shape)

    with pytest.raises(ConfigError) as error:
        made(**wrong)
    assert str(error.value).startswith(message)
