"""Runs inside the simulator, started by test_codebook_cache.py: loads, look-ups, and a memory.

``params["phases"]``: of each codebook its loads, with their faults, and its look-ups.
"""

import itertools

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import RESP_OKAY
from tb.axi.support.memory import Ram
from tb.bench import Bench, config, params
from tb.contract import block_timing

SOURCES, SINKS = ("load_info", "load", "look", "axi__r"), ("entry", "axi__ar")
PHASES = params["phases"]
LATENCIES = (1, 3, 20)


class Host:
    """Block, memory and bench together; loads are offered when those before them are in use."""

    def __init__(self, dut, latency: int = 5):
        self.dut = dut
        self.bench = Bench(dut, sources=SOURCES, sinks=SINKS)
        self.ram = Ram(dut, "axi", config.axi_signature, latency, self._response)
        self.tasks = []
        self.refused: list[tuple[int, int, int]] = []

    def _response(self, address: int) -> int:
        found = (response for low, high, response in self.refused if low <= address < high)
        return max(found, default=RESP_OKAY)

    async def start(self, phases=PHASES):
        self.dut.clear.value = 0
        self.refused = [tuple(each) for phase in phases for each in phase["refused"]]
        for phase in phases:
            self.ram.poke(phase["base"], bytes.fromhex(phase["memory"]))
        await self.restart()
        return self

    async def restart(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.ram.clear()
        await self.bench.reset()
        self.tasks = [cocotb.start_soon(self.ram.run())]

    async def _feed(self, loads, infos: list, words: list) -> None:
        """Each load once the sound one before it is in use; the fault of each is compared."""
        for load in loads:
            while self.dut.loaded.value:
                await self._cycle()
            infos.append(load["info"])
            words += load["words"]
            while not self._ends_load():
                await self._cycle()
            await self._cycle()
            assert int(self.dut.load_fault.value) == load["fault"]
            assert int(self.dut.loaded.value) == (load["fault"] == 0)

    async def _cycle(self) -> None:
        await FallingEdge(self.dut.clk)
        await ReadOnly()

    def _ends_load(self) -> bool:
        port = self.dut.load__payload.value
        last = int(port) >> params["load_last"] & 1
        return bool(self.dut.load__valid.value and self.dut.load__ready.value and last)

    async def run(self, phases, **flow):
        """Look-ups and answers of all phases, one after another; then the counters."""
        infos, words, before = [], [], self.counts()
        loads = [load for phase in phases for load in phase["loads"]]
        feeding = cocotb.start_soon(self._feed(loads, infos, words))
        self.tasks.append(feeding)
        entries = [word for phase in phases for word in phase["entry"]]
        self.ram.beats.clear()
        found = await self.bench.run(
            {
                "load_info": infos,
                "load": words,
                "look": [word for phase in phases for word in phase["look"]],
                "axi__r": self.ram.beats,
            },
            {"entry": len(entries), "axi__ar": None},
            **flow,
        )
        if flow.get("stop_at") is None:
            found.check("entry", entries)
            assert feeding.done()
            feeding.result()
            after = self.counts()
            for name in ("registers", "shared", "memory", "conflicts"):
                expected = sum(phase["counts"][name] for phase in phases)
                assert after[name] - before[name] == expected, name
        return found

    def counts(self) -> dict[str, int]:
        word = int(self.dut.counts.value)
        return {name: word >> at & (1 << bits) - 1 for name, at, bits in params["count_fields"]}


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
        idle = dict.fromkeys(SOURCES, 0.0) | {"look": 0.97}
        found = await host.run([params["alone"]], p_idle=idle)
        for sent, come in zip(found.cycles["look"][1:], found.cycles["entry"][1:], strict=True):
            assert come - sent == latency_on_chip
