"""Runs inside the simulator, started by test_window.py: jobs through MillionWindow."""

import cocotb

from tb.bench import params
from tb.contract import Contract, block_timing

WORDS, ENDS, COUNTS = params["words"], params["ends"], params["counts"]
STEPS, QUERIES = params["steps"], params["queries"]
GROUPS = STEPS * QUERIES  # sums of a job, and cycles per key
JOB_CYCLES = 16  # from the end of a job to the first score, or sum, of the next, at most


def of_job(cycles, name, job):
    """Cycles of the words of a stream in one job."""
    return cycles[name][ENDS[name][job - 1] if job else 0 : ENDS[name][job]]


class Jobs(Contract):
    """The rows are written after each reset. Rows are fetched all the time."""

    async def restart(self, bench, cycles=3):
        await super().restart(bench, cycles)
        await bench.run({"write": WORDS["write"], "x": WORDS["x"]}, {})

    def check_timing(self, flow, packets=None):
        timing, cycles = block_timing(), flow.cycles
        between = timing.delay("between sums, at least")
        after = timing.delay("from the last window_weight to sum, and one per exact key")
        spent, total = 0, 0
        for job in range(packets or self.count):
            count = COUNTS[job]
            scores, sums = of_job(cycles, "window_score", job), of_job(cycles, "sum", job)
            queries = of_job(cycles, "q", job)
            if not job:
                assert cycles["job"][0] == 0
            pace = max(count, between)
            assert sums == list(range(sums[0], sums[0] + GROUPS * pace, pace)), f"{job}: {sums}"
            if count:
                assert scores == list(range(scores[0], scores[0] + count * GROUPS, GROUPS))
                weights = of_job(cycles, "window_weight", job)
                assert sums[0] - weights[-1] >= after + count
            total += max(count * GROUPS, GROUPS * pace, len(queries), 1) + JOB_CYCLES
            spent = max([sums[-1], *scores])
        assert spent <= total + 2 * GROUPS * max(COUNTS) + len(of_job(cycles, "q", 0))


contract = Jobs(WORDS, packets=ENDS, cuts=range(1, 300, 29), some=10)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def latency(dut):
    """A job whose queries are there, and sums of a job whose weights come last."""
    bench = await contract.started(dut)
    job = max(range(contract.count), key=COUNTS.__getitem__)
    if not COUNTS[job]:
        return
    own = {name: of_job(WORDS, name, job) for name in WORDS}
    takes = dict.fromkeys(contract.sinks, 0)
    await bench.run({"q": own["q"]}, takes)
    takes["window_score"] = COUNTS[job]
    flow = await bench.run({"job": own["job"]}, takes)
    timing = block_timing()
    first = flow.cycles["job"][0] + timing.latency
    wanted = [first + n * int(timing.interval) for n in range(COUNTS[job])]
    assert flow.cycles["window_score"] == wanted
    takes |= {"window_score": 0, "sum": GROUPS}
    flow = await bench.run({"window_weight": own["window_weight"]}, takes)
    after = timing.delay("from the last window_weight to sum, and one per exact key")
    assert flow.cycles["sum"][0] == flow.cycles["window_weight"][-1] + after + COUNTS[job]
    flow.check("sum", own["sum"])


@cocotb.test()
async def fetch_takes_free_cycles_only(dut):
    """The scores and the sums of a job come in the same cycles with and without fetches.

    Shown to fail: a read of ``fetch`` before one of a job.
    """
    bench = await contract.started(dut)
    seen = []
    for fetches in (0, len(WORDS["fetch"])):
        await contract.restart(bench)
        counts = {name: ENDS[name][0] for name in WORDS}
        counts |= {"fetch": fetches, "vector": len(WORDS["vector"]) if fetches else 0}
        takes = {name: counts[name] for name in contract.sinks}
        flow = await bench.run(contract.offers(counts), takes)
        flow.check("vector", WORDS["vector"][: counts["vector"]])
        seen.append([flow.cycles["window_score"], flow.cycles["sum"]])
    assert seen[0] == seen[1]


@cocotb.test()
async def two_jobs_have_room(dut):
    """The block takes, without a job, the queries of two jobs, and the weights of two.

    A third job's queries go no further than into a word.
    """
    bench = await contract.started(dut)
    offers = {"q": WORDS["q"], "window_weight": WORDS["window_weight"]}
    flow = await bench.run(offers, {}, stop_at=ENDS["q"][3] + ENDS["window_weight"][-1] + 20)
    assert 0 <= flow.sent["q"] - ENDS["q"][1] <= len(of_job(WORDS, "q", 0)) // GROUPS + 1
    weighed = [end for end, count in zip(ENDS["window_weight"], COUNTS, strict=True) if count]
    assert flow.sent["window_weight"] == (weighed[1] if weighed else 0)
