"""Inside the simulator: requests, scales, dense and sparse words through OakenDequantEngine."""

import json
import os
from pathlib import Path

import cocotb

from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing
from tb.words import unpack_ints

SOURCES, SINKS = ("request", "scale", "dense", "sparse"), ("o", "status")
PHASES = {
    phase: {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in (*SOURCES, *SINKS, "mask")}
    for phase in params["phases"]
}


async def replay(bench, phase, **flow):
    """Every request of the phase; beats (where the mask says) and statuses are compared."""
    words = PHASES[phase]
    offers = {name: words[name] for name in SOURCES}
    takes = {name: len(words[name]) for name in SINKS}
    result = await bench.run(offers, takes, **flow)
    for n, (got, golden, mask) in enumerate(
        zip(result.words["o"], words["o"], words["mask"], strict=True)
    ):
        for k in range(config.lanes + 1):
            part = mask >> 16 * k & 0xFFFF
            lane, wanted = got >> 16 * k & part, golden >> 16 * k & part
            assert lane == wanted, (
                f"{phase}, beat {n}, lane {k}: got {lane:#06x}, golden {wanted:#06x}"
            )
    assert result.words["status"] == words["status"]
    return result


async def new_bench(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.4], p_stall=[0.0, 0.6])
async def sound_and_damaged(dut, p_idle, p_stall):
    await replay(await new_bench(dut), "mixed", p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(late=list(SOURCES))
async def one_input_late(dut, late):
    await replay(await new_bench(dut), "mixed", p_idle={n: 0.9 * (n == late) for n in SOURCES})


@cocotb.test()
async def statuses_late(dut):
    """No beat is lost or doubled while a last one waits for a place for its status."""
    await replay(await new_bench(dut), "mixed", p_stall={"o": 0.0, "status": 0.97})


@cocotb.test()
async def ready_only_after_valid(dut):
    await replay(await new_bench(dut), "mixed", late_ready=True, p_stall=0.3)


@cocotb.test()
async def full_rate(dut):
    """A beat in every cycle, across tokens and requests; a status with each last beat."""
    if "full" not in PHASES:
        return
    flow = await replay(await new_bench(dut), "full")
    taken = flow.cycles["o"]
    first = block_timing().latency
    assert taken == list(range(first, first + len(taken)))


@cocotb.test()
async def reset_in_mid_request(dut):
    bench = await new_bench(dut)
    words = PHASES["mixed"]
    offers = {name: words[name] for name in SOURCES}
    takes = {name: len(words[name]) for name in SINKS}
    await bench.cut_off(offers, takes, (1, 2, 3, 5, 8, 13, 21, 34, 55, 89), p_stall=0.3)
    await replay(bench, "mixed")


@cocotb.test(skip="rates" not in params)
async def rates(dut):
    """Cycles from the first word offered to the last beat, per phase; no test asserts them."""
    measured = {}
    for phase in params.get("rates", ()):
        bench = await new_bench(dut)
        flow = await replay(bench, phase)
        measured[phase] = [flow.cycles["o"][0], flow.cycles["o"][-1] + 1]
    Path(os.environ["TB_DIR"], "rates.json").write_text(json.dumps(measured))
