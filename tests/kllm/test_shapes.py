"""Ranges of the shapes that KLLM's configurations are composed of."""

import pytest

from golden.config import ConfigError
from golden.kllm.config import PortShape, SlotShape
from hdl.registry import all_blocks


def test_rejects():
    with pytest.raises(ConfigError, match=r"^PortShape.bits must be a multiple of 8, not 12$"):
        PortShape(bits=12)


def test_rows_of_a_slot():
    assert [SlotShape(elements=n).rows for n in (16, 17, 4096)] == [1, 2, 256]


def test_command_lines_reach_the_sizes_of_shapes():
    config = all_blocks()["kllm_accelerator"].configs["small"]
    assert type(config).parse(config, ["machine.slot.slots=8"]).machine.slot.slots == 8
    both = ["machine.slot.slots=8", "build.counter=flipflop", "build.macs=16"]
    assert type(config).parse(config, both).lane.counter == "flipflop"
    refused = r"^KllmPeLaneConfig.counter must be select or flipflop, not 'sram'$"
    with pytest.raises(ConfigError, match=refused):
        type(config).parse(config, ["build.counter=sram"])
    with pytest.raises(ConfigError, match=r"^SlotShape has no field 'rows'; its fields: bits_a, "):
        type(config).parse(config, ["machine.slot.rows=8"])
    with pytest.raises(ConfigError, match=r"^SlotShape.slots must be 2..256, not 1$"):
        type(config).parse(config, ["machine.slot.slots=1"])
