"""Runs inside the simulator, started by test_outlier.py: packets through KllmOutlier."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing
from tb.index.support.two_sets import two_set_cycles

PHASES = params["phases"]  # words of each packet, per codebook
WORDS = {name: unpack_ints(vectors[name]) for name in vectors}


async def replay(bench, phase, packets=None, **flow):
    """Send the first ``packets`` packets of a phase with its codebook; compare every sum."""
    chosen = PHASES[phase][:packets]
    bench.dut.codebook.value = WORDS[f"{phase}.codebook"][0]
    words_i, words_o = WORDS[f"{phase}.i"], WORDS[f"{phase}.o"]
    count = len(chosen) * config.columns
    result = await bench.run({"i": words_i[: sum(chosen)]}, {"o": count}, **flow)
    for n, (got, golden) in enumerate(zip(result.words["o"], words_o, strict=False)):
        packet, column = divmod(n, config.columns)
        assert got == golden, (
            f"{phase}: packet {packet} column {column}: got {got:#x}, golden {golden:#x}"
        )
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = Bench(dut, sources=("i",), sinks=("o",))
    await bench.reset()
    for phase in PHASES:
        await replay(bench, phase, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """Every transfer in the cycle that the contract gives; adding up overlaps the output."""
    bench = Bench(dut, sources=("i",), sinks=("o",))
    await bench.reset()
    for phase, packets in PHASES.items():
        flow = await replay(bench, phase)
        i, o = two_set_cycles((words, config.columns) for words in packets)
        assert flow.cycles["i"] == i
        assert flow.cycles["o"] == o
        assert o[0] - i[packets[0] - 1] == block_timing().latency


@cocotb.test()
async def reset_in_mid_packet(dut):
    bench = Bench(dut, sources=("i",), sinks=("o",))
    phase = next(iter(PHASES))
    await bench.reset()
    for cut in range(1, 40, 3):
        offers = {"i": WORDS[f"{phase}.i"]}
        takes = {"o": len(WORDS[f"{phase}.o"])}
        await bench.run(offers, takes, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        if cut % 2:
            await bench.run({}, {})  # nothing of it comes out
        await replay(bench, phase, packets=4)
    await replay(bench, phase)
