"""KllmSlotMemory against golden.memory.reference.memory_shared, place by place of each kind.

Shown to fail: with rows or outliers of neighbouring slots that overlap, with the last descriptor
not cleared, and with descriptors cleared to something else.
"""

import pytest

from golden.config import ConfigError
from hdl.kllm.room import BLOCKS
from hdl.kllm.slot_memory import KllmSlotMemory, KllmSlotMemoryConfig
from tb.run import simulate

CONFIGS = {
    "small": BLOCKS["kllm_slot_memory"].configs["small"],
    "odd": KllmSlotMemoryConfig(
        bits_a=3, integer_bits=0, slots=5, slot_elements=100, outliers_max=7, readers=2
    ),
    "least": KllmSlotMemoryConfig(
        bits_a=2, integer_bits=4, slots=2, slot_elements=16, outliers_max=1, readers=1
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_slot_memory(name, seed):
    params = {"count": 120}
    simulate(KllmSlotMemory(CONFIGS[name]), "tb.kllm.tb_slot_memory", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits_a": 1}, "bits_a must be 2..4, not 1"),
        ({"slots": 1}, "slots must be 2..256, not 1"),
        ({"slot_elements": 15}, "slot_elements must be 16..16383, not 15"),
        ({"outliers_max": 0}, "outliers_max must be 1..16383, not 0"),
        ({"readers": 9}, "readers must be 1..8, not 9"),
        ({"slots": 256, "outliers_max": 16383}, "slots must be 2..64, not 256"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match="must be") as error:
        KllmSlotMemoryConfig(**wrong)
    assert str(error.value) == f"KllmSlotMemoryConfig.{message}"
