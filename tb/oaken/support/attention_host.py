"""oaken_attention, or several engines as one, with its memories inside the simulator.

Phases are those of golden.oaken.vectors.attention. ``faults`` and ``pokes`` may have the number of
an engine before their addresses.
"""

import dataclasses
import functools
import itertools

import cocotb
from cocotb.triggers import FallingEdge

from golden.axi.format import RESP_OKAY
from golden.oaken.timing import kv_token_reads_cycles
from golden.paging.format import Op, Status
from hdl.paging.layouts import STATUS_LAYOUT
from tb.axi.support.host import base_of
from tb.axi.support.memory import Ram
from tb.bench import Bench
from tb.contract import Contract, block_timing
from tb.paging.support.statuses import StatusesToCome

SOURCES = ("request", "kv", "attend", "q")
SINKS = ("o", "status", "attended")


@dataclasses.dataclass(frozen=True)
class Rate:
    """Cycles of the attends of a phase: ``whole``, and those of the block's timing.

    is_covered : the rows of a stretch cover what follows it; is_exact : a READ its look-ups too
    """

    rows: int
    attends: int
    latency: int
    first: int
    whole: int
    due: int
    is_covered: bool
    is_exact: bool

    @property
    def measured(self) -> tuple[int, ...]:
        return self.latency, self.rows, self.attends, self.first, self.whole

    @classmethod
    def of(cls, part, phase, flow, latency: int) -> "Rate":
        """part: the configuration of one engine; phase: one with ``rates``, which gave ``flow``."""
        timing, shape, engine = block_timing(), part.stream.shape, part.cache_engine
        (rows, attends), start = phase["rates"], flow.cycles["attend"][0]
        jobs = attends * part.groups
        longer = timing.delay("of a run of more groups or attends, plus the beats of all rows")
        due = int(2 * rows * shape.beats * jobs * timing.interval)
        due += timing.latency if jobs == 1 else longer
        due += engine.read_cycles(latency) - engine.read_cycles(1)
        is_covered = shape.interval(rows) == 2 * rows * shape.row
        return cls(
            rows, attends, latency, flow.cycles["o"][0] - start,
            flow.cycles["attended"][-1] - start, due, is_covered,
            is_covered and rows * shape.row >= kv_token_reads_cycles(1),
        )  # fmt: skip


def words_of(phases) -> dict[str, list[int]]:
    """Words of every stream but those of the buses."""
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


class Host:
    """Block, memories and bench together; page 0 is at another address for each ``name``.

    mmu: the configuration of each engine's memory management; latencies: of each memory
    """

    def __init__(self, dut, name: str, mmu, buses: tuple[str, ...], latencies) -> None:
        self.dut, self.mmu, self.buses = dut, mmu, buses
        self.base = base_of(f"{name} {latencies}", mmu)
        self.faults: list[tuple[int, int, int, int]] = []
        self.rams = [
            Ram(dut, bus, mmu.axi_signature, latency, functools.partial(self._response, n), bus)
            for n, (bus, latency) in enumerate(zip(buses, latencies, strict=True))
        ]
        self.memory = dict.fromkeys(f"{bus}__{each}" for bus in buses for each in ("ar", "aw", "w"))
        sources = (*SOURCES, *(f"{bus}__{each}" for bus in buses for each in ("r", "b")))
        self.bench = Bench(dut, sources=sources, sinks=(*SINKS, *self.memory))
        self.early: list[int] = []  # words of o of an attend whose end belongs to a later phase
        self.running: list = []

    def _response(self, engine: int, address: int) -> int:
        at, size = address - self.base, self.mmu.cache.pages * self.mmu.cache.page_bytes
        assert 0 <= at < size, f"{address:#x} is outside of the pages"
        found = (resp for n, low, high, resp in self.faults if n == engine and low <= at < high)
        return max(found, default=RESP_OKAY)

    async def start(self) -> "Host":
        self.dut.base.value = self.base
        await self.reset(3)
        return self

    async def reset(self, cycles: int = 1) -> None:
        """Reset of the block and of its buses; bytes in memory stay."""
        self.stop()
        for ram in self.rams:
            ram.clear()
        await self.bench.reset(cycles)
        self.running = [cocotb.start_soon(ram.run()) for ram in self.rams]

    def stop(self) -> None:
        for task in self.running:
            task.cancel()
        self.running = []

    def offers(self, words) -> dict:
        found = {name: words[name] for name in SOURCES}
        for ram, bus in zip(self.rams, self.buses, strict=True):
            ram.beats, ram.answers = [], []
            found |= {f"{bus}__r": ram.beats, f"{bus}__b": ram.answers}
        return found

    async def phase(self, phase, **flow):
        """One phase; its statuses and words, then an idle block with golden's free pages."""
        self.faults = [fault if len(fault) == 4 else (0, *fault) for fault in phase["faults"]]
        for *engine, address, byte in phase["pokes"]:
            self.rams[engine[0] if engine else 0].poke(address + self.base, bytes([byte]))
        words, is_held = words_of([phase]), "held" in phase
        takes = {name: len(words[name]) for name in ("status", "attended")} | self.memory
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
        for ram in self.rams:
            ram.requests.clear()
        return result

    async def race(self, phase, delay: int) -> int:
        """The place among ``orders`` of a phase whose requests come so long after its attend."""
        words = words_of([phase])
        offers = self.offers(words)
        late, offers["request"] = offers["request"], []

        async def give() -> None:
            for _ in range(delay):
                await FallingEdge(self.dut.clk)
            offers["request"] += late

        cocotb.start_soon(give())
        takes = {name: len(words[name]) for name in SINKS} | self.memory
        flow = await self.bench.run(offers, takes)
        flow.check("status", words["status"])
        found = {"o": flow.words["o"], "attended": flow.words["attended"][0]}
        assert found in phase["orders"], f"no order gives {found} after {delay} cycles"
        await self.settle(phase["free_pages"], False)
        for ram in self.rams:
            ram.requests.clear()
        return phase["orders"].index(found)

    async def settle(self, free_pages: int, is_held: bool) -> None:
        """The block is idle, or not while an attend waits; its pages are golden's."""
        cache = self.mmu.cache
        for _ in range(8 * (cache.streams + cache.pages)):  # tables after a reset
            if is_held or self.dut.idle.value == 1:
                break
            await FallingEdge(self.dut.clk)
        assert self.dut.idle.value == (not is_held)
        assert int(self.dut.free_pages.value) == free_pages

    async def script(self, phases, **flow) -> list:
        return [await self.phase(phase, **flow) for phase in phases]


class Attends(Contract):
    """Runs of attends on a cache that ``enter`` fills; the memories run with the bench.

    make: a Host of a dut
    """

    def __init__(self, before, runs, make) -> None:
        self.buses = make.keywords["buses"]
        names = [f"{bus}__{each}" for bus in self.buses for each in ("ar", "r", "aw", "w", "b")]
        ends: dict[str, list[int]] = {name: [] for name in words_of([])}
        for n in range(len(runs)):
            for name, words in words_of(runs[: n + 1]).items():
                ends[name].append(len(words))
        packets = ends | {name: [0] * len(runs) for name in names}
        words = words_of(runs) | {name: [] for name in names}
        super().__init__(words, packets=packets, some=4, cuts=range(20, 400, 42))
        self.before, self.runs, self.make = before, runs, make
        self.host: Host | None = None
        self.is_filled = False

    def bench(self, dut):
        self.host = self.make(dut, "contract", latencies=[1] * len(self.buses))
        dut.base.value = self.host.base
        return self.host.bench

    async def restart(self, bench, cycles=3) -> None:
        await self._reset(cycles)
        await self.enter(bench)

    async def _reset(self, cycles) -> None:
        await self.host.reset(cycles)
        self.is_filled = False

    async def enter(self, bench, p_idle=0.0) -> None:
        if self.is_filled:  # words of before may have changed the cache
            await self._reset(1)
        self.is_filled = True
        await self.host.script(self.before)

    def offers(self, counts):
        return self.host.offers({name: words[: counts[name]] for name, words in self.words.items()})

    async def replay(self, bench, packets=None, **flow):
        packets = self.count if packets is None else packets
        counts = {name: self.packets[name][packets - 1] for name in self.words}
        takes = {name: counts[name] for name in SINKS} | self.host.memory
        result = await bench.run(self.offers(counts), takes, **flow)
        for name in ("o", "attended", "status"):
            result.check(name, self.words[name][: counts[name]])
        assert bench.dut.idle.value == 1
        return result

    async def interrupt(self, bench, cut, **flow) -> None:
        counts = {name: len(words) for name, words in self.words.items()}
        takes = {name: counts[name] for name in SINKS} | self.host.memory
        await bench.run(self.offers(counts), takes, stop_at=cut, **flow)

    def check_timing(self, flow, packets=None) -> None:
        """Each attend ends so many cycles after its last word."""
        counts = [len(end["o"]) for phase in self.runs for end in phase["ends"]]
        after = block_timing().delay("from the last of o to attended")
        ends = flow.cycles["attended"]
        for count, end in zip(itertools.accumulate(counts[: len(ends)]), ends, strict=True):
            assert end == flow.cycles["o"][count - 1] + after
