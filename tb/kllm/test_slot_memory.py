"""KllmSlotMemory against golden.memory.reference.memory_shared, place by place of each kind.

Shown to fail: with rows or outliers of neighbouring slots that overlap, with the last descriptor
not cleared, and with descriptors cleared to something else.
"""

import pytest

from golden.config import ConfigError
from golden.kllm.config import SlotShape
from hdl.kllm.room import BLOCKS
from hdl.kllm.slots.memory import KllmSlotMemory, KllmSlotMemoryConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": BLOCKS["kllm_slot_memory"].configs["small"],
    "odd": KllmSlotMemoryConfig(
        slot=SlotShape(slots=5, elements=100, outliers_max=7, bits_a=3, integer_bits=0), readers=2
    ),
    "least": KllmSlotMemoryConfig(
        slot=SlotShape(slots=2, elements=16, outliers_max=1, bits_a=2, integer_bits=4), readers=1
    ),
}
_LARGE = SlotShape(slots=256, outliers_max=16383)


@pytest.mark.parametrize("name", CONFIGS)
def test_slot_memory(name, seed):
    params = {"count": 120}
    simulate(KllmSlotMemory(CONFIGS[name]), "tb.kllm.tb_slot_memory", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"slot": _LARGE},
            f"slot.slots must be at most 64 at these sizes, not {_LARGE.slots}",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError, match="must be") as error:
        KllmSlotMemoryConfig(**wrong)
    assert str(error.value) == f"KllmSlotMemoryConfig.{message}"
