"""Runs inside the simulator: RAMs against their reference, cycle by cycle, reset at random."""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from golden.memory import reference
from tb.bench import config, params

_GOLDEN = getattr(reference, params["golden"])
_INPUTS = params["inputs"]


def _stimulus(shape, rng, cycles, p_access):
    """Rows of inputs in the order of ``_INPUTS``; few addresses, so that rows meet often."""
    rows = []
    for _ in range(cycles):
        access = [int(rng.random() < p_access) for _ in range(2)]
        address = [rng.choice((0, shape.depth - 1, rng.randrange(shape.depth))) for _ in range(2)]
        lanes = rng.choice((rng.getrandbits(shape.lanes), (1 << shape.lanes) - 1))
        data = rng.getrandbits(shape.width)
        if params["golden"] == "memory_1rw":
            rows.append((access[0], access[1], address[0], lanes, data))
        else:
            rows.append((access[0], address[0], lanes * access[1], address[1], data))
    return rows


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(p_access=[0.3, 0.7, 0.95])
async def random_accesses(dut, p_access):
    """Every defined word equals the reference, whatever reset does: it clears no content."""
    rng = random.Random(f"{cocotb.RANDOM_SEED} {p_access}")
    cycles = params["cycles"]
    stimuli, expected = [], []
    for _, shape in config.members:
        stimuli.append(_stimulus(shape, rng, cycles, p_access))
        expected.append(_GOLDEN(shape.depth, shape.lanes, shape.lane_bits, stimuli[-1]))
        checked = sum(word is not reference.UNKNOWN for word in expected[-1])
        assert checked > cycles // 20, f"{shape}: only {checked} words are defined"
    pins = [[dut[f"u{k}_{name}"] for name in _INPUTS] for k in range(len(stimuli))]
    read_data = [dut[f"u{k}_read_data"] for k in range(len(stimuli))]
    Clock(dut.clk, 10, "ns").start(start_high=False)
    await FallingEdge(dut.clk)
    for cycle in range(cycles):
        dut.rst.value = rng.random() < 0.1
        for handles, rows in zip(pins, stimuli, strict=True):
            for handle, value in zip(handles, rows[cycle], strict=True):
                handle.value = value
        before = [int(handle.value) for handle in read_data]
        await ReadOnly()
        # No combinational path from an input to read_data.
        assert [int(handle.value) for handle in read_data] == before
        await FallingEdge(dut.clk)
        for k, handle in enumerate(read_data):
            golden = expected[k][cycle]
            assert golden in (reference.UNKNOWN, int(handle.value)), (
                f"{config.members[k][1]}, cycle {cycle}: {int(handle.value):#x}, not {golden:#x}"
            )


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def every_word_is_its_own(dut):
    """Each address holds its own word: written in one order, read in another."""
    rng = random.Random(cocotb.RANDOM_SEED)
    one_port = params["golden"] == "memory_1rw"
    Clock(dut.clk, 10, "ns").start(start_high=False)
    await FallingEdge(dut.clk)
    dut.rst.value = 0
    for k, (_, shape) in enumerate(config.members):
        write, read = (
            ({"en": 1, "write": 1}, {"en": 1, "write": 0})
            if one_port
            else ({"read_en": 0}, {"read_en": 1, "write_en": 0})
        )
        every_lane = {"write_lanes" if one_port else "write_en": (1 << shape.lanes) - 1}
        words = [rng.getrandbits(shape.width) for _ in range(shape.depth)]
        for address in rng.sample(range(shape.depth), shape.depth):
            pins = write | every_lane | {"write_data": words[address]}
            pins["addr" if one_port else "write_addr"] = address
            for name, value in pins.items():
                dut[f"u{k}_{name}"].value = value
            await FallingEdge(dut.clk)
        for address in rng.sample(range(shape.depth), shape.depth):
            for name, value in (read | {"addr" if one_port else "read_addr": address}).items():
                dut[f"u{k}_{name}"].value = value
            await FallingEdge(dut.clk)
            assert int(dut[f"u{k}_read_data"].value) == words[address], f"{shape}: {address}"
