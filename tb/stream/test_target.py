"""Blocks built for an FPGA pass the benches that they pass for an ASIC.

Shown to fail: a RAM of LUTs that is read a cycle later; a kept emission of the other target.
"""

import pytest

from golden.config import ConfigError
from hdl.target import built_for, queue_storage
from tb.faults.mutate import collect
from tb.simulate.run import emitted, simulate

BLOCKS = (
    "kllm_weight_supply", "oaken_quant_engine", "attention_softmax", "kllm_norm_stats",
    "kllm_functional_unit",
)  # fmt: skip


@pytest.mark.telling("kllm_weight_supply", "attention_softmax", "kllm_norm_stats")
@pytest.mark.parametrize("name", BLOCKS)
def test_benches_pass_for_an_fpga(name, seed):
    recording = collect(name, seed)[0]
    blocks = [type(recording.block)(recording.block.config) for _ in range(3)]
    for block in (recording.block, *blocks):
        block._MustUse__silence = True  # a kept emission elaborates nothing
    arguments = {each: value for each, value in recording.arguments.items() if each != "config"}
    usual = emitted(blocks[0]).verilog
    with built_for("fpga"):
        assert emitted(blocks[1]).verilog != usual
        simulate(blocks[2], recording.module, **arguments)


def test_targets():
    """A queue of three words or more is a RAM of LUTs."""
    assert queue_storage(16) == "flipflop"
    with built_for("fpga"):
        assert [queue_storage(depth) for depth in (1, 2, 3, 16)] == ["flipflop"] * 2 + ["lut"] * 2
        with built_for("asic"):
            assert queue_storage(16) == "flipflop"
        assert queue_storage(16) == "lut"
    with pytest.raises(ConfigError, match="target must be one of asic, fpga, not 'ice40'"), (
        built_for("ice40")
    ):
        pass
