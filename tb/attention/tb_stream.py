"""Runs inside the simulator, started by test_stream.py: runs of jobs through AttentionStream."""

import cocotb

from golden.attention.timing import StreamCycles
from tb.bench import config, params
from tb.contract import Contract

WORDS, ENDS, COUNTS = params["words"], params["ends"], params["counts"]
SHAPE = config.shape
BEATS = SHAPE.sinks + SHAPE.outputs  # of q of a job


class Runs(Contract):
    """Each transfer comes in the cycle that follows from what its part waits for."""

    def check_timing(self, flow, packets=None):
        due = StreamCycles(SHAPE)
        for run in range(packets or self.count):
            before = {name: len(cycles) for name, cycles in due.cycles.items()}
            due.run(COUNTS[run])
            for name, cycles in due.cycles.items():
                wanted, got = cycles[before[name] :], flow.cycles[name][before[name] : len(cycles)]
                assert got == wanted, f"run {run} of {COUNTS[run]}: {name} {got}, not {wanted}"


contract = Runs(WORDS, packets=ENDS, cuts=range(1, 300, 29), some=12)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def queries_of_two_jobs_wait(dut):
    """The block takes, without a job, the queries of two jobs, and a word of those of a third.

    With sinks it takes nothing of the third: they come first.
    """
    bench = await contract.started(dut)
    most = 2 * BEATS + (0 if SHAPE.sinks else SHAPE.cells)
    offers = {"q": WORDS["q"]}
    flow = await bench.run(offers, dict.fromkeys(contract.sinks, 0), stop_at=most + 40)
    assert flow.sent["q"] == min(most, len(WORDS["q"]))


@cocotb.test()
async def rows_wait_for_their_job(dut):
    """No row is taken before its job, nor before the last of its queries."""
    bench = await contract.started(dut)
    nothing = dict.fromkeys(contract.sinks, 0)
    offers = {"rows": WORDS["rows"], "q": WORDS["q"][: BEATS - 1]}
    for name in ("rows", "job"):
        offers[name] = WORDS[name]
        flow = await bench.run(offers, nothing, stop_at=60)
        assert not flow.sent["rows"]
        await contract.restart(bench)
    await bench.run({"job": WORDS["job"][:1]}, nothing, stop_at=20)
    offers = {"q": WORDS["q"][:BEATS], "rows": WORDS["rows"]}
    flow = await bench.run(offers, nothing, stop_at=BEATS + 10)
    assert flow.cycles["rows"][0] == BEATS + 1 + SHAPE.turns
