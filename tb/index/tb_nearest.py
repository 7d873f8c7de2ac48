"""Runs inside the simulator, started by test_nearest.py: tokens through the unit."""

from itertools import accumulate

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, config, params, vectors
from tb.contract import Contract, block_timing

PHASES = params["phases"]  # beats of each token, per midpoints packet
WORDS = {name: unpack_ints(vectors[name]) for name in vectors}


class Tokens(Contract):
    """The tokens of a phase, after its packet of midpoints."""

    def __init__(self, phase: str) -> None:
        self.beats, self.midpoints = PHASES[phase], WORDS.get(f"{phase}.midpoints", [])
        words = {name: WORDS[f"{phase}.{name}"] for name in ("scale", "x", "o")}
        ends, count = list(accumulate(self.beats)), len(self.beats)
        packets = {"midpoints": [0] * count, "scale": range(1, count + 1), "x": ends, "o": ends}
        super().__init__(words | {"midpoints": []}, packets=packets, some=12, cuts=range(1, 44, 3))

    async def enter(self, bench, p_idle=0.0) -> None:
        await bench.run({"midpoints": self.midpoints}, {}, p_idle=p_idle)

    def check_timing(self, flow, packets=None) -> None:
        """A beat per ``parts``, or a token per ``scaling_cycles`` where tokens are shorter."""
        timing = block_timing()
        parts = config.parts
        expected, free = [], 0
        complete = timing.delay("from a scale to its first beat of x") - parts + 1
        for n, count in enumerate(self.beats[:packets]):
            # collected one token per ``scaling_cycles``, or as soon as the other set is handed over
            complete = complete if n == 0 else max(complete + config.scaling_cycles, free)
            first = max(complete, free)
            free = first + parts * count
            expected += range(first + parts - 1, free, parts)
            complete = first
        assert flow.cycles["x"] == expected
        assert flow.cycles["o"] == [cycle + timing.latency for cycle in expected]
        assert flow.cycles["scale"][0] == 0


TOKENS = {phase: Tokens(phase) for phase in PHASES}
one, *others = TOKENS.values()
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = one.tests(*others)


def check(phase, got, start=0):
    golden = WORDS[f"{phase}.o"][start:]
    for n, (word, right) in enumerate(zip(got, golden, strict=False)):
        assert word == right, f"{phase}: beat {start + n}: got {word:#x}, golden {right:#x}"


@cocotb.test()
async def midpoints_wait_for_the_end_of_a_token(dut):
    """Offered in mid-token, a packet changes the tokens that follow and no other."""
    bench = await one.started(dut)
    await TOKENS["random"].enter(bench)
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
            await TOKENS["random"].enter(bench)


@cocotb.test()
async def scales_wait_for_a_whole_packet(dut):
    """A scale offered in mid-packet is scaled with the packet's midpoints."""
    bench = await one.started(dut)
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
async def reset_in_mid_midpoints(dut):
    """Reset forgets tokens in flight, half a packet and the midpoints."""
    bench = await one.started(dut)
    for cut in range(1, 44, 3):
        await TOKENS["random"].enter(bench)
        await TOKENS["random"].interrupt(bench, cut, p_stall=0.5)
        await bench.reset(1)
        await TOKENS["none"].replay(bench, 2)
        await bench.run({"midpoints": WORDS["random.midpoints"]}, {}, stop_at=cut % config.bounds)
        await bench.reset(1)
        await TOKENS["again"].enter(bench)
        await TOKENS["again"].replay(bench, 4)
