"""Runs inside the simulator, started by test_nearest.py: tokens through the unit."""

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, config, params, vectors
from tb.contract import block_timing

PHASES = params["phases"]  # beats of each token, per midpoints packet
WORDS = {name: unpack_ints(vectors[name]) for name in vectors}
TIMING = block_timing()


def new_bench(dut):
    return Bench(dut, sources=("midpoints", "scale", "x"), sinks=("o",))


def check(phase, got, start=0):
    golden = WORDS[f"{phase}.o"][start:]
    for n, (word, right) in enumerate(zip(got, golden, strict=False)):
        assert word == right, f"{phase}: beat {start + n}: got {word:#x}, golden {right:#x}"


async def load(bench, phase, **flow):
    words = WORDS.get(f"{phase}.midpoints", [])
    await bench.run({"midpoints": words}, {}, **flow)


async def replay(bench, phase, tokens=None, **flow):
    """The phase's packet, then its first ``tokens`` tokens, all by default."""
    await load(bench, phase, **flow)
    beats = PHASES[phase][:tokens]
    offers = {
        "scale": WORDS[f"{phase}.scale"][: len(beats)],
        "x": WORDS[f"{phase}.x"][: sum(beats)],
    }
    result = await bench.run(offers, {"o": sum(beats)}, **flow)
    check(phase, result.words["o"])
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = new_bench(dut)
    await bench.reset()
    for phase in PHASES:
        await replay(bench, phase, tokens=12, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    bench = new_bench(dut)
    await bench.reset()
    for phase in PHASES:
        await replay(bench, phase, tokens=6, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """A beat per cycle, or a token per ``scaling_cycles`` where tokens are shorter."""
    bench = new_bench(dut)
    await bench.reset()
    for phase, beats in PHASES.items():
        flow = await replay(bench, phase)
        expected, complete, free = [], TIMING.delay("from a scale to its first beat of x"), 0
        for n, count in enumerate(beats):
            # collected one token per ``scaling_cycles``, or as soon as the other set is handed over
            complete = complete if n == 0 else max(complete + config.scaling_cycles, free)
            first = max(complete, free)
            expected += range(first, first + count)
            free = first + count
            complete = first
        assert flow.cycles["x"] == expected, phase
        assert flow.cycles["o"] == [cycle + TIMING.latency for cycle in expected]
        assert flow.cycles["scale"][0] == 0


@cocotb.test()
async def midpoints_wait_for_the_end_of_a_token(dut):
    """Offered in mid-token, a packet changes the tokens that follow and no other."""
    bench = new_bench(dut)
    await bench.reset()
    await load(bench, "random")
    words, beats = WORDS["random.x"], PHASES["random"]
    token = next(n for n, count in enumerate(beats) if count > 4)
    start, end = sum(beats[:token]), sum(beats[: token + 1])
    for cut in (1, 3):
        for phase in ("again", "short", "random"):
            first = {"scale": [WORDS["random.scale"][token]], "x": words[start : start + cut]}
            flow = await bench.run(first, {"o": cut})
            check("random", flow.words["o"], start)
            other = Bench(dut, sources=("midpoints",), sinks=())
            other._running = True
            tokens = Bench(dut, sources=("scale", "x"), sinks=("o",))
            tokens._running = True
            packet = cocotb.start_soon(
                other.run({"midpoints": WORDS[f"{phase}.midpoints"]}, {}, settle=40)
            )
            count = sum(PHASES[phase][:5])
            offers = {
                "scale": WORDS[f"{phase}.scale"][:5],
                "x": words[start + cut : end] + WORDS[f"{phase}.x"][:count],
            }
            flow = await tokens.run(
                offers, {"o": end - start - cut + count}, p_idle={"x": 0.7, "scale": 0.0}
            )
            check("random", flow.words["o"][: end - start - cut], start + cut)
            check(phase, flow.words["o"][end - start - cut :])
            await packet
            await load(bench, "random")


@cocotb.test()
async def scales_wait_for_a_whole_packet(dut):
    """A scale offered in mid-packet is scaled with the packet's midpoints."""
    bench = new_bench(dut)
    await bench.reset()
    for phase in ("random", "short", "again"):
        words = WORDS[f"{phase}.midpoints"]
        await bench.run({"midpoints": words[:1]}, {})
        offers = {
            "midpoints": words[1:],
            "scale": WORDS[f"{phase}.scale"],
            "x": WORDS[f"{phase}.x"],
        }
        idle = {"midpoints": 0.8, "scale": 0.0, "x": 0.0}
        flow = await bench.run(offers, {"o": len(WORDS[f"{phase}.o"])}, p_idle=idle)
        assert flow.cycles["scale"][0] > flow.cycles["midpoints"][-1]
        check(phase, flow.words["o"])


@cocotb.test()
async def reset_in_mid_packet(dut):
    """Reset forgets tokens in flight, half a packet and the midpoints."""
    bench = new_bench(dut)
    await bench.reset()
    for cut in range(1, 44, 3):
        await load(bench, "random")
        offers = {"scale": WORDS["random.scale"], "x": WORDS["random.x"]}
        await bench.run(offers, {"o": len(WORDS["random.o"])}, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, "none", tokens=2)
        await bench.run({"midpoints": WORDS["random.midpoints"]}, {}, stop_at=cut % config.bounds)
        await bench.reset(1)
        await replay(bench, "again", tokens=4)
