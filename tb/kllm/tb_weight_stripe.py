"""Runs inside the simulator, started by test_weight_stripe.py: port words to slots."""

import math

import cocotb

from tb.bench import Bench, config, params
from tb.contract import block_timing

DATA = tuple(f"data_{p}" for p in range(config.ports))
SLOTS = tuple(f"slot_{s}" for s in range(config.slots))
SOURCES, SINKS = ("job", *DATA), (*SLOTS, "done")


async def replay(bench, words, **flow):
    result = await bench.run(
        {name: words[name] for name in SOURCES},
        {name: len(words[name]) for name in SINKS},
        **flow,
    )
    for name in SINKS:
        assert result.words[name] == words[name], name
    return result


async def started(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5])
async def random_flow(dut, p_idle, p_stall):
    await replay(await started(dut), params["words"], p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def valid_does_not_wait_for_ready(dut):
    await replay(await started(dut), params["words"], late_ready=True)


@cocotb.test()
@cocotb.parametrize(slow=["job", "data", "slot", "done"])
async def one_is_slow(dut, slow):
    """One stream at a time hardly moves; nothing overtakes."""
    bench = await started(dut)
    chosen = [n for n in (*SOURCES, *SINKS) if n.rstrip("0123456789").rstrip("_") == slow]
    for name in chosen[:: max(1, len(chosen) // 3)]:
        idle, stall = dict.fromkeys(SOURCES, 0.0), dict.fromkeys(SINKS, 0.0)
        (idle if name in idle else stall)[name] = 0.9
        await replay(bench, params["words"], p_idle=idle, p_stall=stall)


@cocotb.test()
async def full_rate(dut):
    """A word per port and cycle, or a word per slot and cycle where those are fewer."""
    bench = await started(dut)
    flow = await replay(bench, params["long"])
    cycles = [cycle for name in SLOTS for cycle in flow.cycles[name]]
    count = len(cycles)
    timing = block_timing()
    bound = math.ceil(count * timing.interval)
    assert max(cycles) - min(cycles) + 1 == bound, (max(cycles), min(cycles), bound)
    assert min(cycles) - min(flow.cycles[name][0] for name in DATA) == timing.latency


@cocotb.test()
async def two_cycles_between_jobs(dut):
    bench = await started(dut)
    flow = await replay(bench, params["words"])
    took = flow.cycles["job"]
    done = flow.cycles["done"]
    assert [later - earlier for earlier, later in zip(done, took[1:], strict=False)] == [0] * (
        len(took) - 1
    )
    last = [0] * len(took)
    for name in DATA:
        at = 0
        for cycle, word in zip(flow.cycles[name], params["words"][name], strict=True):
            ends = word >> config.port_bits & 1
            at = max(at, next(j for j in range(len(took)) if done[j] > cycle))
            if ends:
                last[at] = max(last[at], cycle)
    # The final word, the bits that say so, the rotations' start: then job and done.
    assert [d - cycle for d, cycle in zip(done, last, strict=True)] == [2] * len(took)


@cocotb.test()
async def nothing_is_taken_without_a_job(dut):
    bench = await started(dut)
    flow = await bench.run(
        {name: params["words"][name] for name in DATA}, {}, stop_at=50, p_stall=0.3
    )
    assert not any(flow.sent[name] for name in DATA)


@cocotb.test()
async def reset_forgets_the_job(dut):
    bench = await started(dut)
    words = params["words"]
    for cut in (1, 2, 3, 5, 8, 13, 21):
        await bench.run(
            {name: words[name] for name in SOURCES},
            {name: len(words[name]) for name in SINKS},
            p_stall=0.4, stop_at=cut,
        )  # fmt: skip
        await bench.reset(1)
    await replay(bench, words)
