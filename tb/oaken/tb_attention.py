"""Runs inside the simulator, started by test_attention.py: attends, requests, and a memory.

``params``: "scripts", phases by name as golden.oaken.vectors.attention makes them; "before" and
"runs" of the contract. Addresses of the scripts begin at 0, those of the memory at any base.
"""

import cocotb
from cocotb.triggers import FallingEdge

from golden.paging.format import Op, Status
from hdl.paging.layouts import STATUS_LAYOUT
from tb.axi.support.host import PagedRamHost
from tb.bench import config, params
from tb.contract import Contract
from tb.paging.support.statuses import StatusesToCome

SOURCES = ("request", "kv", "attend", "q", "axi__r", "axi__b")
SINKS = ("o", "status", "attended", "axi__ar", "axi__aw", "axi__w")
BUS = ("axi__r", "axi__b", "axi__ar", "axi__aw", "axi__w")
MEMORY = {"axi__ar": None, "axi__aw": None, "axi__w": None}
SCRIPTS = params["scripts"]


def words_of(phases) -> dict[str, list[int]]:
    """Words of every stream but those of the bus."""
    requests = [request for phase in phases for request in phase["requests"]]
    attends = [attend for phase in phases for attend in phase["attends"]]
    ends = [end for phase in phases for end in phase["ends"]]
    return {
        "request": [request["payload"] for request in requests],
        "kv": [beat for request in requests for beat in request["kv"]],
        "attend": [attend["payload"] for attend in attends],
        "q": [word for attend in attends for word in attend["q"]],
        "o": [word for end in ends for word in end["o"]],
        "attended": [end["attended"] for end in ends],
        "status": [request["status"] for request in requests],
    }


class Host(PagedRamHost):
    """Block, memory and bench together."""

    def __init__(self, dut, name: str, latency: int = 5):
        super().__init__(dut, SOURCES, SINKS, config.engine.mmu, name, latency=latency)
        self.early: list[int] = []  # words of o of an attend whose end belongs to a later phase

    def offers(self, words) -> dict:
        self.ram.beats, self.ram.answers = [], []
        bus = {"axi__r": self.ram.beats, "axi__b": self.ram.answers}
        return {name: words[name] for name in ("request", "kv", "attend", "q")} | bus

    async def phase(self, phase, **flow):
        """One phase; its statuses and words, then an idle block with golden's free pages."""
        self.refuse(phase["faults"])
        for address, byte in phase["pokes"]:
            self.ram.poke(address + self.base, bytes([byte]))
        words, is_held = words_of([phase]), "held" in phase
        takes = {name: len(words[name]) for name in ("status", "attended")} | MEMORY
        takes["o"] = None if is_held else len(words["o"]) - len(self.early)
        result = await self.bench.run(self.offers(words), takes, **flow)
        if "stop_at" in flow:
            return result
        expected = StatusesToCome(phase["requests"], STATUS_LAYOUT, Op, Status)
        for word in result.words["status"]:
            expected.take(word)
        result.check("attended", words["attended"], what="attend")
        result.words["o"][:0] = self.early
        count = len(words["o"])
        self.early, result.words["o"] = result.words["o"][count:], result.words["o"][:count]
        result.check("o", words["o"])
        await self.settle(phase["free_pages"], is_held)
        self.ram.requests.clear()
        return result

    async def settle(self, free_pages: int, is_held: bool) -> None:
        """The block is idle, or not while an attend waits; its pages are golden's."""
        for _ in range(8 * (config.cache.streams + config.cache.pages)):  # tables after a reset
            if is_held or self.dut.idle.value == 1:
                break
            await FallingEdge(self.dut.clk)
        assert self.dut.idle.value == (not is_held)
        assert int(self.dut.free_pages.value) == free_pages

    async def script(self, name: str, **flow) -> list:
        return [await self.phase(phase, **flow) for phase in SCRIPTS[name]]


class Attends(Contract):
    """Runs of attends on a cache that ``enter`` fills; the memory runs beside the bench."""

    def __init__(self, before, runs):
        bus = {name: [] for name in BUS}
        ends: dict[str, list[int]] = {name: [] for name in words_of([])}
        for n in range(len(runs)):
            for name, words in words_of(runs[: n + 1]).items():
                ends[name].append(len(words))
        packets = ends | {name: [0] * len(runs) for name in BUS}
        super().__init__(words_of(runs) | bus, packets=packets, some=4, cuts=range(20, 400, 42))
        self.before = before
        self.host: Host | None = None
        self.is_filled = False

    def bench(self, dut):
        self.host = Host(dut, "contract", 1)
        dut.base.value = self.host.base
        return self.host.bench

    async def restart(self, bench, cycles=3) -> None:
        await self._reset(bench, cycles)
        await self.enter(bench)

    async def _reset(self, bench, cycles) -> None:
        if self.host.running is not None:
            self.host.running.cancel()
        self.host.ram.clear()
        await bench.reset(cycles)
        self.host.running = cocotb.start_soon(self.host.ram.run())
        self.is_filled = False

    async def enter(self, bench, p_idle=0.0) -> None:
        if self.is_filled:  # words of before may have changed the cache
            await self._reset(bench, 1)
        self.is_filled = True
        for phase in self.before:
            await self.host.phase(phase)

    def offers(self, counts):
        return self.host.offers({name: words[: counts[name]] for name, words in self.words.items()})

    async def replay(self, bench, packets=None, **flow):
        packets = self.count if packets is None else packets
        counts = {name: self.packets[name][packets - 1] for name in self.words}
        takes = {name: counts[name] for name in self.sinks} | MEMORY
        result = await bench.run(self.offers(counts), takes, **flow)
        for name in ("o", "attended", "status"):
            result.check(name, self.words[name][: counts[name]])
        assert bench.dut.idle.value == 1
        return result

    async def interrupt(self, bench, cut, **flow) -> None:
        counts = {name: len(words) for name, words in self.words.items()}
        takes = {name: counts[name] for name in self.sinks} | MEMORY
        await bench.run(self.offers(counts), takes, stop_at=cut, **flow)

    def check_timing(self, flow, packets=None) -> None:
        pass


contract = Attends(params["before"], params["runs"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [
            (0.0, 0.0, 1),
            (0.3, 0.3, 9),
            ({"request": 0.5, "kv": 0.0, "attend": 0.9, "q": 0.0, "axi__r": 0.5, "axi__b": 0.0},
             0.0, 20),
            (0.0, {"o": 0.9, "status": 0.5, "attended": 0.5, "axi__ar": 0.0, "axi__aw": 0.8,
                   "axi__w": 0.5}, 40),
        ],
    )
)  # fmt: skip
async def random_script(dut, p_idle, p_stall, latency):
    """Runs of attends beside APPENDs, TRIMs and FREEs, right and wrong."""
    host = await Host(dut, f"random_script {p_stall}", latency).start()
    await host.script("random", p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(name=["errors", "between", "lengths", "beside"], p=[0.0, 0.4])
async def directed(dut, name, p):
    """Every status and result, changes between two READs, the ends of lengths, other requests."""
    host = await Host(dut, f"{name} {p}").start()
    await host.script(name, p_idle=p, p_stall=p)
