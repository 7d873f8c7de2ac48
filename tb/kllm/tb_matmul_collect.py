"""Runs inside the simulator, started by test_matmul_collect.py: rows and statuses of lanes."""

import cocotb

from tb.bench import config, interface, params
from tb.contract import Contract, block_timing

SOURCES, SINKS = interface["sources"], interface["sinks"]
TIMING = block_timing()
STATUSES = [name for name in SOURCES if name.startswith("lane_status")]


def joined(cases) -> Contract:
    """All cases one after another."""
    words = {name: [word for case in cases for word in case[name]] for name in (*SOURCES, *SINKS)}
    packets = {name: [] for name in words}
    for name, ends in packets.items():
        count = 0
        for case in cases:
            count += len(case[name])
            ends.append(count)
    return Contract(words, packets=packets)


PLAIN, EVERY = joined(params["plain"]), joined(params["every"])


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    """Tickets with outputs: a status may come any time after its rows."""
    bench = await PLAIN.started(dut)
    await PLAIN.replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def every_case(dut, p_idle, p_stall):
    """A lane offers the status of a job before the first word of its next job: none is idle."""
    bench = await EVERY.started(dut)
    idle = {name: p_idle * (name not in STATUSES) for name in SOURCES}
    await EVERY.replay(bench, p_idle=idle, p_stall=p_stall)


@cocotb.test()
async def uneven_flow(dut):
    bench = PLAIN.bench(dut)
    for slow in (*SOURCES, *SINKS):
        await bench.reset()
        await PLAIN.replay(
            bench,
            p_idle={name: 0.9 * (name == slow) for name in SOURCES},
            p_stall={name: 0.9 * (name == slow) for name in SINKS},
            late_ready=True,
        )


@cocotb.test()
async def full_rate(dut):
    """A row per cycle, a cycle for the statuses of each job, then the status of the command."""
    bench = await PLAIN.started(dut)
    rows = config.lanes * config.lane.columns // 16
    for case in params["plain"]:
        counts = {name: len(case[name]) for name in SINKS}
        flow = await bench.run({name: case[name] for name in SOURCES}, counts)
        taken = sorted(
            cycle for name in SOURCES if name.startswith("row") for cycle in flow.cycles[name]
        )
        jobs = len(case[STATUSES[0]])
        first = TIMING.delay("from ticket, as offered, to the first row")
        period = rows + TIMING.delay("of each job in addition")
        wanted = [first + job * period + n for job in range(jobs) for n in range(rows)]
        assert taken == wanted
        assert set(flow.cycles["write"]) <= set(taken)
        last = first + jobs * period - 1  # the statuses of the last job
        assert flow.cycles["status"] == [last + TIMING.delay("from the last lane_status to status")]
        assert flow.cycles["write"][-1] - TIMING.latency in taken


@cocotb.test()
async def reset_in_mid_command(dut):
    bench = await PLAIN.started(dut)
    offers = {name: PLAIN.words[name] for name in SOURCES}
    await bench.cut_off(offers, dict.fromkeys(SINKS), range(1, 40, 3), p_stall=0.3)
    await PLAIN.replay(bench, 3)
