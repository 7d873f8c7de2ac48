"""Runs inside the simulator, started by test_codebook_cache.py: loads, look-ups, and a memory.

``params["phases"]``: of each codebook its loads, with their faults, and its look-ups.
"""

import itertools

import cocotb
from cocotb.triggers import FallingEdge

from tb.bench import config, params
from tb.contract import block_timing
from tb.vqllm.support.host import CacheHost

PHASES = params["phases"]
LATENCIES = (1, 3, 20)


class Host(CacheHost):
    """Look-ups and answers of all phases, one after another."""

    def __init__(self, dut, latency: int = 5):
        super().__init__(dut, ("look",), ("entry",), config.axi_signature, latency)

    async def start(self):
        return await super().start(PHASES)

    async def run(self, phases, **flow):
        entries = [word for phase in phases for word in phase["entry"]]
        looks = [word for phase in phases for word in phase["look"]]
        found = await super().run(phases, {"look": looks}, {"entry": len(entries)}, **flow)
        if flow.get("stop_at") is None:
            found.check("entry", entries)
        return found


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [
            (0.0, 0.0, 1),
            (0.4, 0.4, 9),
            ({"load_info": 0, "load": 0.8, "look": 0, "axi__r": 0},
             {"entry": 0.8, "axi__ar": 0}, 3),
            ({"load_info": 0, "load": 0, "look": 0.8, "axi__r": 0},
             {"entry": 0, "axi__ar": 0.9}, 2),
            ({"load_info": 0.9, "load": 0, "look": 0, "axi__r": 0.9}, 0.0, 30),
        ],
    )
)  # fmt: skip
async def random_flow(dut, p_idle, p_stall, latency):
    host = await Host(dut, latency).start()
    await host.run(PHASES, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    host = await Host(dut).start()
    await host.run(PHASES[:4], p_stall=0.3, late_ready=True)


@cocotb.test()
async def reset_in_mid_phase(dut):
    """After a reset no load waits, and no word of before comes."""
    host = await Host(dut).start()
    rng = host.bench.rng("cuts")
    for _ in range(8):
        await host.run(PHASES[:3], p_stall=0.3, stop_at=rng.randrange(3, 600))
        await host.restart()
        assert not dut.loaded.value
    assert not any(host.counts().values())
    await host.run(PHASES[:3])


@cocotb.test()
async def counters(dut):
    """``clear`` sets them to 0."""
    host = await Host(dut).start()
    await host.run(PHASES[:1])
    assert any(host.counts().values())
    dut.clear.value = 1
    await FallingEdge(dut.clk)
    dut.clear.value = 0
    await FallingEdge(dut.clk)
    assert not any(host.counts().values())


@cocotb.test()
async def counters_beyond_65536(dut):
    """Counters go beyond 65,536 where look-ups take so few cycles; some tier's do, always."""
    assert params["long"]
    host = await Host(dut).start()
    for phase in params["long"]:
        await host.run([phase])


@cocotb.test()
async def stalls_beyond_65536(dut):
    """A beat that waits for its load counts one per cycle."""
    host = await Host(dut).start()
    offers, takes = {"look": PHASES[0]["look"]}, {"entry": None, "axi__ar": None}
    await host.bench.run(offers, takes, stop_at=50)
    for cycles in (70_000, 1, 1):  # also odd numbers: a bit may change in every cycle
        before = host.counts()
        await host.bench.run({}, takes, stop_at=cycles, silence=cycles + 1)
        assert host.counts() == before | {"stalls": before["stalls"] + cycles}


@cocotb.test()
async def full_rate(dut):
    """On chip: every answer in its cycle. Memory adds its latency, and 5 % at most."""
    latency_on_chip = block_timing().latency
    for latency in LATENCIES:
        host = await Host(dut, latency).start()
        for phase in PHASES:
            found = await host.run([phase])
            given = found.cycles["entry"]
            due = list(itertools.accumulate(phase["cycles"]))
            if phase["counts"]["memory"]:
                # As many beats are in flight as there is room for.
                flight = len(due) * (latency + latency_on_chip + 4) / config.beats
                bound = 1.05 * max(due[-1], flight) + latency + 20
                assert given[-1] - given[0] <= bound, (latency, due[-1])
                continue
            # The first beat waits for its load.
            assert [cycle - given[0] for cycle in given] == [cycle - due[0] for cycle in due]
        # Beats that come alone
        idle = dict.fromkeys((*Host.SOURCES, "look"), 0.0) | {"look": 0.97}
        found = await host.run([params["alone"]], p_idle=idle)
        for sent, come in zip(found.cycles["look"][1:], found.cycles["entry"][1:], strict=True):
            assert come - sent == latency_on_chip
