"""RAM wrappers: configuration, ports, the emitted macro."""

import re

import pytest
from amaranth.sim import Simulator

from golden.config import ConfigError
from golden.memory import reference
from hdl.back.emit import emit, module_name
from hdl.back.verilog import convert
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.memory.memory_1rw import Memory1RW
from hdl.memory.room import BLOCKS
from hdl.stream.fifo import StreamFifo, StreamFifoConfig


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": 0},
        {"depth": (1 << 20) + 1},
        {"width": 0},
        {"width": 65_537},
        {"width": 8, "granularity": 3},
        {"width": 8, "granularity": 16},
        {"granularity": -1},
        {"depth": 4.0},
    ],
)
def test_config_rejects(wrong):
    with pytest.raises(ConfigError, match=r"^MemoryConfig\.\w+ must be .*, not [\d.-]+$"):
        MemoryConfig(**wrong)


@pytest.mark.parametrize(
    ("config", "lanes", "address_bits", "bits"),
    [
        (MemoryConfig(depth=1, width=1), 1, 1, 1),
        (MemoryConfig(depth=5, width=12, granularity=4), 3, 3, 60),
        (MemoryConfig(depth=256, width=32, granularity=32), 1, 8, 8192),
    ],
)
def test_derived_sizes(config, lanes, address_bits, bits):
    assert (config.lanes, config.address_bits, config.bits) == (lanes, address_bits, bits)
    assert config.lanes * config.lane_bits == config.width


@pytest.mark.parametrize("block", [Memory1R1W, Memory1RW])
def test_macro_is_plain_behavioural_verilog(block):
    """A register array without initial values or reset, that a vendor's SRAM can replace."""
    text = convert(block(MemoryConfig(depth=5, width=12, granularity=4)), "ram").verilog
    assert re.search(r"reg \[11:0\] words ?\[4:0\];", text)
    assert "initial" not in text
    assert not re.search(r"if \(rst\)", text)
    assert "$" not in text.replace("\\$", "")  # no system task


def test_macro_is_a_module_of_its_own():
    config = StreamFifoConfig(width=7, depth=5, storage="memory")
    memory = Memory1R1W(config.memory)
    memory._MustUse__silence = True
    names = [module.name for module in emit(StreamFifo(config), "top")]
    assert names == [module_name(memory), "top"]


def test_every_macro_has_described_ports():
    macros = {name: block for name, block in BLOCKS.items() if type(block.config) is MemoryConfig}
    assert set(macros) == {"memory_1r1w", "memory_1rw"}  # the others are made of them
    for name, registered in macros.items():
        block = registered.component(registered.config)
        block._MustUse__silence = True
        assert block.is_memory_macro, name
        assert block.bits == registered.config.bits
        assert set(block.texts) == set(block.signature.members)


def test_reading_the_word_being_written_is_unknown():
    trace = reference.memory_1r1w(2, 1, 8, [(0, 0, 1, 0, 7), (1, 0, 1, 0, 9), (1, 0, 0, 0, 0)])
    assert trace == [reference.UNKNOWN, reference.UNKNOWN, 9]


def test_unwritten_lane_makes_a_word_unknown():
    trace = reference.memory_1rw(1, 2, 4, [(1, 1, 0, 1, 5), (1, 0, 0, 0, 0), (1, 1, 0, 2, 0x60),
                                           (1, 0, 0, 0, 0)])  # fmt: skip
    assert trace == [None, None, None, 0x65]


def test_1rw_write_keeps_read_data():
    block = Memory1RW(MemoryConfig(depth=3, width=8))
    simulator = Simulator(block)
    simulator.add_clock(1e-6)

    async def access(ctx, **pins):
        for name, value in pins.items():
            ctx.set(getattr(block, name), value)
        await ctx.tick()
        return ctx.get(block.read_data)

    async def bench(ctx):
        await access(ctx, en=1, write=1, addr=2, write_lanes=1, write_data=0xA5)
        assert await access(ctx, en=1, write=0, addr=2) == 0xA5
        assert await access(ctx, en=1, write=1, addr=2, write_data=0x11) == 0xA5
        assert await access(ctx, en=0, write=0, addr=0) == 0xA5
        assert await access(ctx, en=1, write=0, addr=2) == 0x11

    simulator.add_testbench(bench)
    simulator.run()
