"""Runs inside the simulator, started by test_histogram_parallel.py: packets through a counter."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing
from tb.index.support.two_sets import two_set_cycles

WORDS_I, WORDS_O = unpack_ints(vectors["i"]), unpack_ints(vectors["o"])
PACKETS = params["packets"]  # (beats in, words out) of each
IS_SRAM = config.architecture == "sram"


async def replay(bench, packets=None, **flow):
    """Send the first ``packets`` packets, those of all flows by default; compare every word."""
    chosen = PACKETS[: packets or params["flow"]]
    beats, words = sum(p[0] for p in chosen), sum(p[1] for p in chosen)
    result = await bench.run({"i": WORDS_I[:beats]}, {"o": words}, **flow)
    for n, (got, golden) in enumerate(zip(result.words["o"], WORDS_O, strict=False)):
        assert got == golden, f"word {n}: got {got:#x}, golden {golden:#x}"
    return result


def sram_cycles() -> tuple[list[int], list[int]]:
    """Cycle of each transfer in and out at full rate, from the contract alone."""
    i, o = [], []
    free = config.bins  # after reset the RAMs are cleared, one bin per cycle
    end = -1  # cycle of the last word out
    for beats, words in PACKETS:
        i += range(free, free + beats)
        # The last beat is written in the next cycle; a side that was read is free in the cycle
        # after its last word, both for reading the other side and for counting into it.
        fetch = free = max(i[-1] + 2, end + 1)
        o += range(fetch + 1, fetch + 1 + words)
        end = o[-1]
    return i, o


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = Bench(dut, sources=("i",), sinks=("o",))
    await bench.reset()
    await replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def full_rate(dut):
    """Every transfer in the cycle that the contract gives; counting overlaps reading."""
    bench = Bench(dut, sources=("i",), sinks=("o",))
    await bench.reset()
    flow = await replay(bench, len(PACKETS))
    i, o = sram_cycles() if IS_SRAM else two_set_cycles(PACKETS)
    assert flow.cycles["i"] == i
    assert flow.cycles["o"] == o
    assert o[0] - i[PACKETS[0][0] - 1] == block_timing().latency
    overlapped = set(i) & set(range(o[0], o[-1]))
    assert len(overlapped) > len(i) // 4, "counting does not overlap reading"


@cocotb.test()
async def long_packets_with_pauses(dut):
    """Bins keep their bits, also the high ones, while no beat comes."""
    if len(PACKETS) == params["flow"]:
        return
    bench = Bench(dut, sources=("i",), sinks=("o",))
    await bench.reset()
    await replay(bench, len(PACKETS), p_idle=0.01)


@cocotb.test()
async def ready_is_low_while_clearing(dut):
    """Words written before a reset are gone when ``i.ready`` rises, at whatever cycle it came."""
    if not IS_SRAM:
        return
    bench = Bench(dut, sources=("i",), sinks=("o",))
    await bench.reset()
    for cut in (0, 1, config.bins // 2, config.bins - 1, config.bins + 9):
        await bench.run({"i": WORDS_I}, {"o": len(WORDS_O)}, stop_at=cut)
        await bench.reset(1)
    for _ in range(config.bins):
        await ReadOnly()
        assert not dut.i__ready.value
        await FallingEdge(dut.clk)
    await ReadOnly()
    assert dut.i__ready.value
    await FallingEdge(dut.clk)
    await replay(bench, packets=6)


@cocotb.test()
async def reset_in_mid_packet(dut):
    """Reset at any cycle forgets open, waiting and half-read packets."""
    bench = Bench(dut, sources=("i",), sinks=("o",))
    rng = bench.rng("cut")
    await bench.reset()
    clear = config.bins if IS_SRAM else 0
    beats, words = (sum(p[n] for p in PACKETS[: params["flow"]]) for n in (0, 1))
    for attempt in range(8):
        await bench.run(
            {"i": WORDS_I[:beats]}, {"o": words},
            p_stall=0.6, stop_at=clear + rng.randrange(1, 40 + 20 * attempt),
        )  # fmt: skip
        await bench.reset(1)
        if attempt % 2:
            await bench.run({}, {})  # nothing of it comes out
        await replay(bench, packets=5)
    await replay(bench)
