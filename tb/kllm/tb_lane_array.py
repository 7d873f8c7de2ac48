"""Runs inside the simulator, started by test_lane_array.py: jobs through KllmLaneArray."""

import cocotb

from tb.bench import Bench, config, params
from tb.kllm.support.late import LateCodebook
from tb.kllm.support.phases import check, check_cycles, jobs, load, streams, words

LANES = range(config.lanes)
SHARED = ("job", "a", "x")
SOURCES = (*SHARED, "codebook", *(f"{s}_{n}" for n in LANES for s in ("w", "s_b")))
SINKS = tuple(f"{s}_{n}" for n in LANES for s in ("y", "status"))
PHASES = params["phases"]


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def random_flow(dut, p_idle, p_stall):
    """Every phase in turn: its codebook, then its jobs, faults among them."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase in PHASES:
        await load(bench, phase, p_idle=p_idle)
        await jobs(bench, phase, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(slow=["w", "y", "status", "s_b"])
async def lanes_drift(dut, slow):
    """One lane at a time hardly moves on one of its own streams; the others stay right."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await load(bench, "drift")
    for lane in LANES:
        idle, stall = dict.fromkeys(SOURCES, 0.0), dict.fromkeys(SINKS, 0.0)
        chosen = f"{slow}_{lane}"
        (idle if chosen in idle else stall)[chosen] = 0.9
        await jobs(bench, "drift", p_idle=idle, p_stall=stall)


@cocotb.test()
async def codebook_waits_for_the_jobs_before_it(dut):
    """A packet offered while jobs run, some lanes ahead, changes none of their outputs."""
    bench = LateCodebook(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    first, second = params["codebook_race"]
    for cycle in (4, 5, 7, 11, 18, 30, 60):
        await load(bench, first)
        offers, takes = streams(bench, first)
        offers["codebook"] = words(second, "codebook")
        lane = cycle % config.lanes
        idle = dict.fromkeys(SOURCES, 0.0) | {"codebook": 0.5, f"w_{lane}": 0.8}
        stall = dict.fromkeys(SINKS, 0.0) | {f"status_{lane}": 0.9}
        bench.first = cycle
        flow = await bench.run(offers, takes, p_idle=idle, p_stall=stall)
        bench.first = 0
        check(bench, flow, first)
        finished = max(flow.cycles[f"y_{n}"][-1] for n in LANES)
        assert flow.cycles["codebook"][-1] > finished, "a packet was taken before the jobs' end"
        await jobs(bench, second)


@cocotb.test()
async def job_waits_for_the_codebook_before_it(dut):
    """Jobs offered with a packet that has begun run with that packet on every lane."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase in params["codebook_race"]:
        offers, takes = streams(bench, phase)
        offers["codebook"] = words(phase, "codebook")
        flow = await bench.run(offers, takes)
        check(bench, flow, phase)
        assert flow.cycles["job"][0] > flow.cycles["codebook"][-1]


@cocotb.test()
async def job_waits_in_a_gap_of_the_packet(dut):
    """Jobs that come while a packet has begun, and none of its words is offered."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    rng = bench.rng("gap")
    for phase in params["codebook_race"]:
        packet = words(phase, "codebook")
        begun = rng.randrange(1, len(packet))
        await bench.run({"codebook": packet[:begun]}, {})
        offers, takes = streams(bench, phase)
        offers["codebook"] = packet[begun:]
        idle = dict.fromkeys(SOURCES, 0.0) | {"codebook": 0.8}
        flow = await bench.run(offers, takes, p_idle=idle)
        check(bench, flow, phase)
        assert flow.cycles["job"][0] > flow.cycles["codebook"][-1]


@cocotb.test()
async def reset_in_mid_job(dut):
    """Reset at any cycle forgets jobs, codebook and which lanes were ahead."""
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    rng = bench.rng("cut")
    await bench.reset()
    for attempt in range(6):
        await load(bench, "drift")
        offers, takes = streams(bench, "drift")
        cut = rng.randrange(5, 60 + 40 * attempt)
        await bench.run(offers, takes, p_idle=0.3, p_stall=0.3, stop_at=cut)
        await bench.reset(1)
        await jobs(bench, "missing")  # no codebook has survived
    await load(bench, "drift")
    await jobs(bench, "drift")


@cocotb.test()
async def full_rate(dut):
    """The bound of one lane holds for every lane."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase, (bound, slack) in params["rates"].items():
        await load(bench, phase)
        flow = await jobs(bench, phase)
        for lane in LANES:
            cycles = flow.cycles[f"y_{lane}"][-1] - flow.cycles[f"w_{lane}"][0] + 1
            assert cycles <= bound + slack, f"{phase}: lane {lane} takes {cycles}, bound {bound}"


@cocotb.test()
async def cycles_are_golden(dut):
    """Every lane takes the cycles of one lane."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    for phase, job in params["cycles"].items():
        await load(bench, phase)
        flow = await jobs(bench, phase)
        for lane in LANES:
            check_cycles(config.lane, phase, job, flow.cycles, f"_{lane}")
