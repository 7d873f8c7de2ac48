"""OakenZeroRemove against golden.oaken.quantize.sparse_records: a block's bytes, packed.

Shown to fail:

- the moves from the longest to the shortest;
- a count that a block inherits from the one before;
- bytes of the block before left after the last entry.
"""

import pytest

from golden.oaken.vectors.zero_remove import remove_vectors
from hdl.oaken.zero_remove import OakenZeroRemove, OakenZeroRemoveConfig
from tb.simulate.run import simulate

CONFIGS = {
    "usual": OakenZeroRemoveConfig(),
    "block_of_a_beat": OakenZeroRemoveConfig(lanes=64),
    "small": OakenZeroRemoveConfig(lanes=8, block=16),
    "lanes_32": OakenZeroRemoveConfig(lanes=32, block=32),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_zero_remove(name, seed):
    config = CONFIGS[name]
    vectors = remove_vectors(config, seed)
    simulate(OakenZeroRemove(config), "tb.oaken.tb_zero_remove", vectors=vectors, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lanes": 32, "block": 16}, "lanes must be at most block = 16, not 32"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        OakenZeroRemoveConfig(**wrong)
    assert str(error.value) == f"OakenZeroRemoveConfig.{message}"
