"""cocotbext-axi's models on a wrapped block inside the simulator, with random pauses.

Its models sample at the rising edge before the design has moved, and drive after it.
"""

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge
from cocotbext.axi import AxiStreamBus, AxiStreamSink, AxiStreamSource


def pauses(name: str, chance: float):
    """Pause generator: a pause in ``chance`` of all cycles."""
    rng = random.Random(f"{cocotb.RANDOM_SEED} {name}")
    while True:
        yield rng.random() < chance


def start_clock(dut) -> None:
    """Once in each test: a clock ends with the test that started it."""
    dut.aresetn.value = 1
    Clock(dut.aclk, 10, "ns").start(start_high=False)


async def reset(dut, cycles: int = 4) -> None:
    """Hold aresetn low for some cycles."""
    await FallingEdge(dut.aclk)
    dut.aresetn.value = 0
    await ClockCycles(dut.aclk, cycles)
    await FallingEdge(dut.aclk)
    dut.aresetn.value = 1
    await FallingEdge(dut.aclk)


def _model(kind, dut, prefix: str, chance: float):
    # One lane as wide as tdata: a frame is a list of words.
    model = kind(
        AxiStreamBus.from_prefix(dut, prefix), dut.aclk, dut.aresetn,
        reset_active_level=False, byte_lanes=1,
    )  # fmt: skip
    if chance:
        model.set_pause_generator(pauses(prefix, chance))
    return model


def source(dut, name: str, chance: float = 0.0) -> AxiStreamSource:
    return _model(AxiStreamSource, dut, f"s_axis_{name}", chance)


def sink(dut, name: str, chance: float = 0.0) -> AxiStreamSink:
    return _model(AxiStreamSink, dut, f"m_axis_{name}", chance)
