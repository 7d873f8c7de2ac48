"""Runs inside the simulator, started by test_lane_dense.py: packets through KllmLaneDense."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing

PHASES = params["phases"]  # beats of each packet, table of weights, mode
WORDS = {name: unpack_ints(vectors[name]) for name in vectors}
TIMING = block_timing()
SOURCES = ("i", "product")


async def replay(bench, name, packets=None, **flow):
    """Load the weights of a phase, send its first packets, and compare every sum."""
    phase = PHASES[name]
    bench.dut.is_integer.value = phase["integer"]
    await bench.run({"product": WORDS[f"{name}.product"]}, {})
    beats = phase["beats"][:packets]
    golden = WORDS[f"{name}.o"][: len(beats) * config.columns]
    result = await bench.run({"i": WORDS[f"{name}.i"][: sum(beats)]}, {"o": len(golden)}, **flow)
    result.check("o", golden, what=f"{name}: sum")
    return result


async def started(dut):
    dut.is_integer.value = 0
    return await Bench.started(dut, sources=SOURCES, sinks=("o",))


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    for name in PHASES:
        await replay(bench, name, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    bench = await started(dut)
    for name in PHASES:
        await replay(bench, name, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """A beat per cycle; the latency of the first packet, and the spacing of its sums."""
    bench = await started(dut)
    for name, phase in PHASES.items():
        flow = await replay(bench, name)
        i, o = flow.cycles["i"], flow.cycles["o"]
        first = phase["beats"][0]
        assert i[:first] == list(range(i[0], i[0] + first)), name
        gap = config.cycles.integer_words if phase["integer"] else config.cycles.words
        latency = TIMING.delay("in integer mode") if phase["integer"] else TIMING.latency
        assert o[0] - i[first - 1] == latency, f"{name}: {o[0] - i[first - 1]}, not {latency}"
        assert phase["integer"] or gap == TIMING.delay("from a sum to the next")
        column = list(range(o[0], o[0] + gap * config.columns, gap))
        assert o[: config.columns] == column, name
        # Counting overlaps reducing: packets that take longer to count leave no gap.
        reduce = config.columns * gap
        if min(phase["beats"]) >= reduce:
            assert i == list(range(i[0], i[0] + sum(phase["beats"]))), name


@cocotb.test()
async def reset_in_mid_packet(dut):
    bench = await started(dut)
    for cut in range(1, 40, 3):
        name = list(PHASES)[cut % len(PHASES)]
        offers = {"i": WORDS[f"{name}.i"]}
        takes = {"o": len(WORDS[f"{name}.o"])}
        await bench.run(offers, takes, p_stall=0.5, stop_at=cut + 40 * (cut % 2))
        await bench.reset(1)
        if cut % 2:
            await bench.run({}, {})  # no sum comes out
        await replay(bench, list(PHASES)[(cut + 1) % len(PHASES)], packets=3)
