"""Runs inside the simulator, started by test_run.py: tasks run in the order that cocotb gives."""

import cocotb
from cocotb import _gpi_triggers
from cocotb.triggers import Event, FallingEdge, First, ReadOnly, RisingEdge, Timer
from cocotb.utils import get_sim_time

from tb.bench import Bench
from tb.simulate import scheduling

_CHANGED = (_gpi_triggers._EdgeBase, type(ReadOnly()), Timer)


async def _trace(dut) -> list[tuple[str, int]]:
    """Records what several tasks do, and when: shared edges, starts, cancels, events, failures."""
    seen: list[tuple[str, int]] = []
    told = Event()
    begun = get_sim_time("step")  # a whole number: differences of ns are rounded

    def note(what: str) -> None:
        seen.append((what, get_sim_time("step") - begun))

    async def walk(name: str, edges) -> None:
        for n, edge in enumerate(edges):
            await edge
            note(f"{name} {n}")
            if (name, n) == ("a", 2):
                told.set()
                cocotb.start_soon(walk("child", [ReadOnly(), FallingEdge(dut.clk)]))
                note("a goes on")

    async def fail() -> None:
        await RisingEdge(dut.clk)
        raise ValueError("meant")

    falling, rising = FallingEdge(dut.clk), RisingEdge(dut.clk)
    tasks = [
        cocotb.start_soon(walk("a", [falling, ReadOnly(), falling, rising, falling])),
        cocotb.start_soon(walk("b", [falling, falling, ReadOnly(), falling])),
        cocotb.start_soon(walk("c", [Timer(7, "ns"), told.wait(), rising])),
        cocotb.start_soon(walk("never", [falling, Timer(1, "ms")])),
    ]
    with_timeout = await First(falling, Timer(1, "ms"))
    note(type(with_timeout).__name__)
    for task in tasks[:3]:
        await task
    tasks[3].cancel()
    failing = cocotb.start_soon(fail())
    try:
        await failing
    except ValueError as error:
        note(str(error))
    await falling
    note("end")
    return seen


@cocotb.test()
async def order_is_that_of_cocotb(dut):
    await Bench.started(dut)
    assert all("_react" in vars(trigger) for trigger in _CHANGED)
    quick = await _trace(dut)
    quick_react = {trigger: trigger._react for trigger in _CHANGED}
    for trigger in _CHANGED:
        del trigger._react
    await FallingEdge(dut.clk)
    own = await _trace(dut)
    scheduling.install()
    assert all(trigger._react is not quick_react[trigger] for trigger in _CHANGED)
    assert quick == own
    assert len(own) == 19, own
