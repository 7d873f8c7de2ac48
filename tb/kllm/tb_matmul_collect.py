"""Runs inside the simulator, started by test_matmul_collect.py: rows and statuses of lanes."""

from itertools import accumulate

import cocotb

from tb.bench import config, interface, params
from tb.contract import Contract, block_timing

STREAMS = (*interface["sources"], *interface["sinks"])
ROWS = [name for name in STREAMS if name.startswith("row")]
STATUSES = [name for name in STREAMS if name.startswith("lane_status")]


class Commands(Contract):
    """All cases one after another."""

    def __init__(self, cases) -> None:
        words = {name: [word for case in cases for word in case[name]] for name in STREAMS}
        packets = {name: list(accumulate(len(case[name]) for case in cases)) for name in STREAMS}
        flow = {"idles": (0.0, 0.5, 0.9), "slow": 0.9}
        super().__init__(words, packets=packets, cuts=range(1, 40, 3), **flow)

    def check_timing(self, flow, packets=None) -> None:
        """The first command: a row per cycle, a cycle for each job's statuses, then its own."""
        timing = block_timing()
        cycles = {name: flow.cycles[name][: self.packets[name][0]] for name in STREAMS}
        taken = sorted(cycle for name in ROWS for cycle in cycles[name])
        jobs, rows = len(cycles[STATUSES[0]]), config.lanes * config.lane.columns // 16
        first = timing.delay("from ticket, as offered, to the first row")
        period = rows + timing.delay("of each job in addition")
        assert taken == [first + job * period + n for job in range(jobs) for n in range(rows)]
        assert set(cycles["write"]) <= set(taken)
        last = first + jobs * period - 1  # the statuses of the last job
        assert cycles["status"] == [last + timing.delay("from the last lane_status to status")]
        assert cycles["write"][-1] - timing.latency in taken


# Tickets with outputs: a status may come any time after its rows.
plain = Commands(params["plain"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = plain.tests()


@cocotb.test()
async def each_command_at_full_rate(dut):
    bench = await plain.started(dut)
    for command in (Commands([case]) for case in params["plain"]):
        command.check_timing(await command.replay(bench))


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def every_case(dut, p_idle, p_stall):
    """A lane offers the status of a job before the first word of its next job: none is idle."""
    every = Commands(params["every"])
    idle = {name: p_idle * (name not in STATUSES) for name in plain.sources}
    await every.replay(await every.started(dut), p_idle=idle, p_stall=p_stall)
