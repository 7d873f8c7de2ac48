"""Ranges of the shapes that KLLM's configurations are composed of."""

import pytest

from golden.config import ConfigError
from golden.kllm.config import LaneShape, MachineConfig, PortShape, SlotShape, VectorShape
from hdl.registry import all_blocks


@pytest.mark.parametrize(
    ("shape", "wrong", "message"),
    [
        (VectorShape, {"rows": 0}, "rows must be 1..65536, not 0"),
        (VectorShape, {"rows": 65537}, "rows must be 1..65536, not 65537"),
        (SlotShape, {"slots": 1}, "slots must be 2..256, not 1"),
        (SlotShape, {"slots": 257}, "slots must be 2..256, not 257"),
        (SlotShape, {"elements": 15}, "elements must be 16..16383, not 15"),
        (SlotShape, {"outliers_max": 0}, "outliers_max must be 1..16383, not 0"),
        (SlotShape, {"bits_a": 1}, "bits_a must be 2..4, not 1"),
        (SlotShape, {"bits_a": 5}, "bits_a must be 2..4, not 5"),
        (SlotShape, {"integer_bits": 3}, "integer_bits must be 0 or 4 or 8, not 3"),
        (LaneShape, {"lanes": 65}, "lanes must be 1..64, not 65"),
        (LaneShape, {"columns": 65}, "columns must be 1..64, not 65"),
        (LaneShape, {"elements": 17}, "elements must be 1..16, not 17"),
        (LaneShape, {"bits_b": 5}, "bits_b must be 2..4, not 5"),
        (PortShape, {"ports": 65}, "ports must be 1..64, not 65"),
        (PortShape, {"bits": 12}, "bits must be a multiple of 8, not 12"),
        (PortShape, {"bits": 4097}, "bits must be 8..4096, not 4097"),
        (MachineConfig, {"softmax_elements": 15}, "softmax_elements must be 16..16383, not 15"),
        (
            MachineConfig,
            {"softmax_elements": 16384},
            "softmax_elements must be 16..16383, not 16384",
        ),
        (MachineConfig, {"replay_beats": 0}, "replay_beats must be 1..16383, not 0"),
        (MachineConfig, {"replay_beats": 16384}, "replay_beats must be 1..16383, not 16384"),
    ],
)
def test_rejects(shape, wrong, message):
    with pytest.raises(ConfigError, match="must be") as error:
        shape(**wrong)
    assert str(error.value) == f"{shape.__name__}.{message}"


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
