"""RAM wrappers: configuration, ports, the emitted macro."""

import random
import re

import numpy as np
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


DEPTH, LANES, LANE_BITS = 3, 2, 4


def searched(writes, reads):
    """Each word as the last write of each lane before it; None: a lane has none, or has one now.

    writes: (cycle, address, lanes, word); reads: (cycle, address). A word is held until the next.
    """
    found = dict.fromkeys(range(300))
    for cycle, address in reads:
        own = [each for each in writes if each[1] == address]
        word = 0
        for lane in range(LANES):
            last = [data for when, _, lanes, data in own if when < cycle and lanes >> lane & 1][-1:]
            word = None if not last or word is None else word | last[0] & 0xF << LANE_BITS * lane
        found |= dict.fromkeys(range(cycle, 300), None if (cycle in [w[0] for w in own]) else word)
    return list(found.values())


def test_1r1w_shows_the_last_write_of_each_lane(seed):
    """Shown to fail: a lane that is not written is 0; the word that a cycle writes is the old."""
    rng = random.Random(seed)
    cycles = [
        (rng.random() < 0.6, rng.randrange(DEPTH), rng.choice((0, 1, 2, 3)), rng.randrange(DEPTH),
         rng.getrandbits(LANES * LANE_BITS))
        for _ in range(300)
    ]  # fmt: skip
    writes = [(n, at, lanes, word) for n, (_, _, lanes, at, word) in enumerate(cycles) if lanes]
    reads = [(n, at) for n, (is_read, at, *_) in enumerate(cycles) if is_read]
    expected = searched(writes, reads)
    assert expected.count(None) < 250
    assert reference.memory_1r1w(DEPTH, LANES, LANE_BITS, cycles) == expected


def test_1rw_shows_the_last_write_of_each_lane(seed):
    """Shown to fail: a write changes what is shown; a write without ``en``."""
    rng = random.Random(seed)
    cycles = [
        (rng.random() < 0.8, rng.random() < 0.5, rng.randrange(DEPTH), rng.choice((0, 1, 2, 3)),
         rng.getrandbits(LANES * LANE_BITS))
        for _ in range(300)
    ]  # fmt: skip
    taken = [(n, *each[1:]) for n, each in enumerate(cycles) if each[0]]
    writes = [(n, at, lanes, word) for n, is_write, at, lanes, word in taken if is_write]
    reads = [(n, at) for n, is_write, at, *_ in taken if not is_write]
    expected = searched(writes, reads)
    assert expected.count(None) < 250
    assert reference.memory_1rw(DEPTH, LANES, LANE_BITS, cycles) == expected


def test_shared_reads_are_those_of_an_array(seed):
    """A NumPy array, cycle by cycle. Shown to fail: a read sees the write of its own cycle."""
    rng = np.random.default_rng(seed)
    writes = [(cycle, *map(int, rng.integers(0, (5, 256)))) for cycle in range(0, 300, 2)]
    reads = [(int(cycle), int(rng.integers(5))) for cycle in rng.integers(0, 300, 200)]
    words, kept = np.full(5, -1), []
    for cycle in range(300):
        kept.append(words.copy())
        for _, address, word in (each for each in writes if each[0] == cycle):
            words[address] = word
    expected = [int(kept[cycle][address]) for cycle, address in reads]
    assert [-1 if word is None else word for word in reference.memory_shared(writes, reads)] == (
        expected
    )


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
