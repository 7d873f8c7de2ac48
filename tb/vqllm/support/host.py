"""A block with codebooks in three tiers, its memory and its bench, inside the simulator."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import RESP_OKAY
from tb.axi.support.memory import Ram
from tb.bench import Bench, params


class CacheHost:
    """Loads are offered when those before them are in use; the fault of each is compared.

    A phase has "loads", "base" and "memory" of its codebook, and "refused", ranges of addresses.
    ``params``: "load_last", place of that bit; "count_fields", of the counters.
    """

    SOURCES = ("load_info", "load", "axi__r")
    SINKS = ("axi__ar",)

    def __init__(self, dut, sources, sinks, signature, latency: int = 5):
        self.dut = dut
        names = (*self.SOURCES, *sources), (*sinks, *self.SINKS)
        self.bench = Bench(dut, sources=names[0], sinks=names[1])
        self.ram = Ram(dut, "axi", signature, latency, self._response)
        self.tasks: list = []
        self.refused: list[tuple[int, int, int]] = []

    def _response(self, address: int) -> int:
        found = (response for low, high, response in self.refused if low <= address < high)
        return max(found, default=RESP_OKAY)

    async def start(self, phases):
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
        last = int(self.dut.load__payload.value) >> params["load_last"] & 1
        return bool(self.dut.load__valid.value and self.dut.load__ready.value and last)

    async def run(self, phases, offers, takes, **flow):
        """All phases, one after another, and the words of the other streams; the counters grow."""
        infos, words, before = [], [], self.counts()
        loads = [load for phase in phases for load in phase["loads"]]
        feeding = cocotb.start_soon(self._feed(loads, infos, words))
        self.tasks.append(feeding)
        self.ram.beats.clear()
        found = await self.bench.run(
            {"load_info": infos, "load": words, "axi__r": self.ram.beats, **offers},
            {**takes, "axi__ar": None},
            **flow,
        )
        if flow.get("stop_at") is None:
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
