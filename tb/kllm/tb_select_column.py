"""Runs inside the simulator, started by test_select_column.py: steps of KllmSelectColumn."""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in vectors}
STEPS = ("enter", "add", "first", "load", "shift")


class Column:
    """The column under test; one call of ``step`` is one cycle."""

    def __init__(self, dut):
        self.dut = dut

    async def started(self):
        Clock(self.dut.clk, 10, "ns").start(start_high=False)
        await FallingEdge(self.dut.clk)

    def drive(self, cycle: int, steps: int) -> None:
        dut = self.dut
        dut.row.value, dut.index.value = WORDS["row"][cycle], WORDS["index"][cycle]
        dut.chain.value = _signed(WORDS["chain"][cycle])
        for n, name in enumerate(STEPS):
            getattr(dut, name).value = steps >> n & 1
        if config.digits > 1:
            dut.digit.value = steps >> len(STEPS)


def _signed(word: int) -> int:
    half = 1 << config.sum_bits - 1
    return (word + half) % (2 * half) - half


@cocotb.test()
async def steps(dut):
    """Every step of every cycle; ``held`` after each in which its value follows."""
    column = Column(dut)
    await column.started()
    cycles = len(WORDS["steps"])
    for cycle in range(cycles):
        column.drive(cycle, WORDS["steps"][cycle])
        await ReadOnly()
        if cycle and params["known"][cycle - 1]:
            _compare(dut, cycle - 1)
        await FallingEdge(dut.clk)
    if params["known"][-1]:
        _compare(dut, cycles - 1)


def _compare(dut, cycle: int) -> None:
    got, golden = dut.held.value.to_unsigned(), WORDS["held"][cycle]
    assert got == golden, f"after cycle {cycle}: held is {got:#x}, golden {golden:#x}"


@cocotb.test()
async def latency(dut):
    """A packet of one beat reaches ``held`` in ``timing.latency`` cycles, and not before.

    Shown to fail: a beat of another cycle as the expectation.
    """
    column = Column(dut)
    await column.started()
    rng = random.Random(cocotb.RANDOM_SEED)
    # A packet of least words has a biased sum of 0, which an idle column has too.
    beats = [cycle for cycle, alone in enumerate(WORDS["alone"]) if alone]
    seen = []
    for _ in range(4):
        beat = rng.choice(beats)
        for cycle in range(8):
            # shift: zeros into held; enter, add with first, load
            steps = (0b10000, 0b10000, 0b00001, 0b00110, 0b01000, 0, 0, 0)[cycle]
            column.drive(beat if cycle == 2 else rng.randrange(len(WORDS["row"])), steps)
            dut.chain.value = 0
            await ReadOnly()
            seen.append(dut.held.value.to_unsigned())
            await FallingEdge(dut.clk)
        entered, held = 2, seen[-8:]
        due = entered + block_timing().latency
        assert not any(held[entered:due]), "a sum before its time"
        assert held[due] == WORDS["alone"][beat], "not the sum of the beat"
