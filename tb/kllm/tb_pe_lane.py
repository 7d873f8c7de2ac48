"""Runs inside the simulator, started by test_pe_lane.py: jobs through KllmPeLane."""

import cocotb

from golden.kllm.format import NO_OUTPUT
from tb.bench import Bench, config, params
from tb.kllm.support.late import LateCodebook
from tb.kllm.support.phases import check, check_cycles, jobs, load, streams, words

SOURCES = ("job", "a", "w", "x", "s_b", "codebook")
SINKS = ("y", "status")
PHASES = params["phases"]


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def random_flow(dut, p_idle, p_stall):
    """Every phase in turn: its codebook, then its jobs, faults among them."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase in PHASES:
        await load(bench, phase, p_idle=p_idle)
        flow = await jobs(bench, phase, p_idle=p_idle, p_stall=p_stall)
        if not p_stall:
            check_status_first(flow)


def check_status_first(flow):
    """The status of a job is offered before the first output of the next; of a run without stall.

    KllmMatmul distinguishes a job without outputs from its successor by this order.
    """
    outputs = zip(flow.cycles["y"], flow.words["y"], strict=True)
    before = 0
    for cycle, status in zip(flow.cycles["status"], flow.words["status"], strict=True):
        is_last = bool(status & NO_OUTPUT)
        while not is_last:
            at, word = next(outputs)
            assert before <= at < cycle, f"output at {at}, statuses at {before} and {cycle}"
            is_last = bool(word >> 16)
        before = cycle


@cocotb.test()
async def uneven_flow(dut):
    """Slow weights, slow scales and a consumer that hardly takes: order and values hold."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    idle = dict.fromkeys(SOURCES, 0.0) | {"w": 0.8, "s_b": 0.7, "x": 0.6}
    phase = PHASES[0]
    await load(bench, phase)
    await jobs(bench, phase, p_idle=idle, p_stall={"y": 0.9, "status": 0.97})


@cocotb.test()
async def codebook_waits_for_the_jobs_before_it(dut):
    """A packet offered while a job runs changes nothing for that job, and comes after it."""
    bench = LateCodebook(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    first, second = params["codebook_race"]
    for cycle in (1, 2, 3, 5, 8, 13, 21):
        bench.first = 0
        await load(bench, first)
        offers, takes = streams(bench, first)
        offers["codebook"] = words(second, "codebook")
        idle = dict.fromkeys(SOURCES, 0.0) | {"codebook": 0.5, "a": 0.5}
        bench.first = cycle
        flow = await bench.run(offers, takes, p_idle=idle)
        check(bench, flow, first)
        assert flow.cycles["codebook"][0] > flow.cycles["y"][-1]
        bench.first = 0
        await jobs(bench, second)


@cocotb.test()
async def reset_in_mid_job(dut):
    """Reset at any cycle forgets the job and the codebook; what follows is right."""
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    rng = bench.rng("cut")
    phase, missing = PHASES[0], params["missing"]
    await bench.reset()
    for attempt in range(6):
        await load(bench, phase)
        offers, takes = streams(bench, phase)
        await bench.run(offers, takes, p_idle=0.2, stop_at=rng.randrange(5, 60 + 60 * attempt))
        await bench.reset(1)
        await jobs(bench, missing)  # no codebook has survived
    await load(bench, phase)
    await jobs(bench, phase)


@cocotb.test()
async def full_rate(dut):
    """Cycles from the first beat in to the last sum and to the last output: the stated bound."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase, (bound, slack) in params["rates"].items():
        await load(bench, phase)
        flow = await jobs(bench, phase)
        cycles = flow.cycles["y"][-1] - flow.cycles["w"][0] + 1
        dut._log.info(f"rate {phase}: {cycles} cycles, bound {bound}")
        assert cycles <= bound + slack, f"{phase}: {cycles} cycles, bound {bound} + {slack}"


@cocotb.test()
async def cycles_are_golden(dut):
    """``lane_cycles`` counts equal jobs of each mode; the first job has the stated latency."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase, job in params["cycles"].items():
        await load(bench, phase)
        flow = await jobs(bench, phase)
        check_cycles(config, phase, job, flow.cycles)
