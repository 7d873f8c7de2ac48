"""Runs inside the simulator, started by test_matmul_collect.py: rows and statuses of lanes."""

from itertools import accumulate

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

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


class Told:
    """Drives ``come``, and checks in each cycle that ``front`` tells what is so, and soon."""

    def __init__(self, dut, bench, cases):
        self.dut, self.bench, self.rng = dut, bench, bench.rng("come")
        self.cases = [case["told"] for case in cases]
        self.supplied = [case for case in self.cases if case["jobs"]]
        self.seen = 0  # certain commands
        self.task = cocotb.start_soon(self._watch())

    async def _watch(self):
        dut, bench = self.dut, self.bench
        ended = supplied = jobs = 0
        come, ripe = False, 0  # ripe: cycles since a row was written and all weights had come
        written: set[int] = set()
        while True:
            job = self.supplied[supplied] if supplied < len(self.supplied) else None
            come = job is not None and not job["error"] and (come or self.rng.random() < 0.2)
            dut.come.value = come
            await ReadOnly()
            front = int(dut.front.value)
            valid, following, end = front & 1, front >> 1 & 0x1FFFF, front >> 18
            case = self.cases[ended] if ended < len(self.cases) else None
            rows = [word & 0xFFFF for _, word in bench.transfers(["write"])]
            if valid:
                assert case is not None
                assert case["certain"], f"command {ended} is not certain"
                assert end == case["dst"] + case["rows"]
                assert following == case["dst"] + jobs * params["group_rows"]
                assert set(range(case["dst"], min(following, end))) <= written
                assert not rows or min(rows) >= following, "a row was told before"
                assert ripe > 0, "weights are to come, or outputs"
            elif case is not None and case["certain"]:
                assert ripe < 2 or jobs == case["jobs"], f"command {ended}: rows told late"
            ripe += 1 if ripe else bool(written and come and job is case)
            written.update(rows)
            jobs += len(list(bench.transfers(STATUSES[:1])))
            if any(bench.transfers(["supply_done"])):
                supplied, come = supplied + 1, False
            if any(bench.transfers(["ticket"])):
                self.seen += bool(valid)
                ended, jobs, ripe, written = ended + 1, 0, 0, set()
            await FallingEdge(dut.clk)


@cocotb.test(skip=not config.front)
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def rows_are_told(dut, p_idle, p_stall):
    every = Commands(params["every"])
    bench = await every.started(dut)
    told = Told(dut, bench, params["every"])
    idle = {name: p_idle * (name not in STATUSES) for name in plain.sources}
    await every.replay(bench, p_idle=idle, p_stall=p_stall)
    told.task.cancel()
    assert told.seen > 1
