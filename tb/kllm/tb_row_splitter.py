"""Runs inside the simulator, started by test_row_splitter.py: rows, and where their words go."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, interface, params
from tb.contract import Contract, block_timing


class Rows(Contract):
    """A row takes a cycle per outlier, and after those of a last row one for the mark."""

    def check_timing(self, flow, packets=None):
        timing, rows = block_timing(), params["rows"]
        cycle, outlier = flow.cycles["i"][0], 0
        counted = iter(flow.cycles["outlier"])
        beats = iter(flow.cycles["beat"])
        for n, taken in enumerate(flow.cycles["i"]):
            assert taken == cycle, f"row {n}: taken in cycle {taken}, not {cycle}"
            row = rows[n]
            if not row["codebook"]:
                assert next(beats) == taken + timing.latency
            first = timing.delay("from i to its first outlier")
            for outlier in range(row["stored"]):
                assert next(counted) == taken + first + outlier
            if row["last"]:
                assert next(counted) == taken + first + row["outliers"]
            cycle += max(1, row["outliers"] + (row["last"] and row["outliers"] > 0))


contract = Rows(params["words"], packets=params["packets"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def codebook_ok_is_that_of_the_latest_codebook(dut):
    bench = await Bench.started(dut, sources=interface["sources"], sinks=interface["sinks"])

    async def read():
        await ReadOnly()
        value = int(dut.codebook_ok.value)
        await FallingEdge(dut.clk)
        return value

    assert await read() == 0
    for codebook in params["codebooks"]:
        takes = dict.fromkeys(bench.sinks)
        for stall in (0.0, 0.7):
            await bench.run({"i": codebook["rows"]}, takes | {"outlier": 1}, p_stall=stall)
            assert await read() == codebook["ok"]
    await bench.reset()
    assert await read() == 0
