"""Runs inside the simulator, started by test_attention.py: scripts of requests, and a memory.

``params``: "scripts", phases by name as golden.million.vectors.script makes them. Addresses of the
scripts begin at 0, those of the memory at any base.
"""

import itertools

import cocotb

from golden.words import layout_word
from hdl.million.layouts import beat_layout
from tb.axi.support.host import PagedRamHost
from tb.bench import config, params
from tb.contract import block_timing
from tb.million.support.host import Expected, encoding, silence

SOURCES = ("request", "kv", "query", "codebook", "restored", "axi__r", "axi__b")
WORDS = ("kv", "query", "codebook", "restored")
SINKS = ("o", "status", "axi__ar", "axi__aw", "axi__w")
MEMORY = {"axi__ar": None, "axi__aw": None, "axi__w": None}
LAST = layout_word(beat_layout(config.rate.lanes), last=1)
SCRIPTS = params["scripts"]
SILENCE = silence(config)
FILLING = 6  # ATTENDs of a train until all queues are full
_STEP = 50  # cycles between two looks at ``idle``


class Host(PagedRamHost):
    """Block, memory and bench together."""

    def __init__(self, dut, name: str, latency: int = 5):
        super().__init__(dut, SOURCES, SINKS, config.mmu, name, latency=latency)

    async def run(self, phase, **flow):
        """The words of a phase, offered at the same time."""
        self.refuse(phase["faults"])
        self.ram.beats, self.ram.answers = [], []
        return await self.bench.run(
            {
                "request": [request["payload"] for request in phase["requests"]],
                **{name: phase[name] for name in WORDS},
                "axi__r": self.ram.beats,
                "axi__b": self.ram.answers,
            },
            {"o": len(phase["o"]), "status": len(phase["requests"]), **MEMORY},
            silence=SILENCE,
            **flow,
        )

    async def phase(self, phase, **flow):
        """One phase; its statuses, its words of o, then an idle block with golden's free pages."""
        # Tokens are encoded when statuses have come: memory goes on, without the bench's stalls.
        found = await self.run(phase, **flow)
        expected = Expected(phase)
        expected.take(found)
        assert expected.is_empty
        await self.settle(found)
        assert int(self.dut.free_pages.value) == phase["free_pages"]
        return found

    async def settle(self, found) -> None:
        """Until the block is idle; then no stream moves any more."""
        # All recent tokens, and one more, may still be encoded.
        tokens = config.cache.window.recent + 1
        for _ in range((SILENCE + tokens * encoding(config)) // _STEP):
            if self.dut.idle.value == 1:
                break
            del self.ram.beats[: found.sent["axi__r"]], self.ram.answers[: found.sent["axi__b"]]
            found = await self.bench.run(
                {"axi__r": self.ram.beats, "axi__b": self.ram.answers}, MEMORY, stop_at=_STEP
            )
        assert self.dut.idle.value == 1
        await self.bench.run({}, {}, stop_at=100)

    async def script(self, name: str, **flow) -> list:
        return [await self.phase(phase, **flow) for phase in SCRIPTS[name]]


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [
            (0.0, 0.0, 1),
            (0.3, 0.3, 9),
            (
                {"request": 0.0, "kv": 0.9, "query": 0.0, "codebook": 0.5, "restored": 0.8,
                 "axi__r": 0.7, "axi__b": 0.5},
                0.0,
                20,
            ),
            (
                {"request": 0.9, "kv": 0.0, "query": 0.8, "codebook": 0.0, "restored": 0.0,
                 "axi__r": 0.0, "axi__b": 0.9},
                {"o": 0.9, "status": 0.5, "axi__ar": 0.5, "axi__aw": 0.8, "axi__w": 0.5},
                3,
            ),
            (0.0, {"o": 0.0, "status": 0.95, "axi__ar": 0.9, "axi__aw": 0.0, "axi__w": 0.0}, 40),
        ],
    )
)  # fmt: skip
async def random_flow(dut, p_idle, p_stall, latency):
    """Several sequences and layers side by side, right requests and wrong ones."""
    host = await Host(dut, f"random_flow {p_stall}", latency).start()
    await host.script("random", p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(p=[0.0, 0.4])
async def statuses(dut, p):
    """Every status there is, each followed by requests that are carried out."""
    host = await Host(dut, f"statuses {p}").start()
    await host.script("statuses", p_idle=p, p_stall=p)


@cocotb.test()
@cocotb.parametrize(p=[0.0, 0.4])
async def failures(dut, p):
    """A token fails in mid-encoding: no page, or memory refuses; requests follow at once."""
    host = await Host(dut, f"failures {p}").start()
    await host.script("failures", p_idle=p, p_stall=p)


@cocotb.test()
async def grown(dut):
    """Queries after each token: windows of 0 and 1 rows, the first codes, places used again."""
    host = await Host(dut, "grown", 2).start()
    await host.script("grown")


@cocotb.test()
async def late_ready(dut):
    host = await Host(dut, "late_ready").start()
    await host.script("short", late_ready=True)


@cocotb.test()
async def reset_in_the_middle(dut):
    """After a reset there are no sequences, no codebooks and no words of before."""
    host = await Host(dut, "reset_in_the_middle").start()
    rng = host.bench.rng("cuts")
    phases = SCRIPTS["short"]
    for attempt in range(6):
        cut = rng.randrange(len(phases))
        for phase in phases[:cut]:
            await host.phase(phase)
        stop_at = rng.randrange(5, 3000)
        await host.run(phases[cut], p_stall=0.3 * (attempt % 2), stop_at=stop_at)
        await host.stop()
    await host.script("short")


@cocotb.test()
async def full_rate(dut):
    """Groups at the block's interval, also from one ATTEND to the next; statuses after outputs."""
    expected = block_timing()
    assert (expected.start, expected.unit) == ("the last o of an ATTEND", "group")
    for latency in (1, 2, 20):
        host = await Host(dut, "full_rate", latency).start()
        *_, alone, train = [await host.phase(phase) for phase in SCRIPTS["rates"]]
        host.running.cancel()
        for flow, attends in ((alone, 1), (train, len(train.cycles["status"]))):
            beats = flow.cycles["o"]
            lasts = [n for n, word in enumerate(flow.words["o"]) if word & LAST]
            firsts = [beats[n] for n in (0, *(n + 1 for n in lasts[:-1]))]
            steps = {b - a for a, b in itertools.pairwise(firsts)}
            assert steps == {expected.interval}, (latency, steps)
            groups = len(lasts) // attends
            ends = [beats[n] for n in lasts[groups - 1 :: groups]]
            after = {b - a for a, b in zip(ends, flow.cycles["status"], strict=True)}
            assert after == {expected.latency}, (latency, after)


@cocotb.test(skip="stages" not in params)
async def long_train(dut):
    """ATTENDs follow one another as the slowest stage does; a few fill the queues ahead of it."""
    interval = max(params["stages"].values())
    for latency in (1, 20):
        host = await Host(dut, "long_train", latency).start()
        *_, train = [await host.phase(phase) for phase in SCRIPTS["rates"]]
        host.running.cancel()
        beats = train.cycles["o"]
        lasts = [n for n, word in enumerate(train.words["o"]) if word & LAST]
        groups = len(lasts) // len(train.cycles["status"])
        ends = [beats[n] for n in lasts[groups - 1 :: groups]]
        steps = [b - a for a, b in itertools.pairwise(ends)]
        assert set(steps[FILLING:]) == {groups * interval}, (latency, groups, interval, steps)


@cocotb.test(skip="wide" not in SCRIPTS)
async def wide(dut):
    """Whole codebooks of 12-bit codes: tokens and queries, to their end."""
    host = await Host(dut, "wide").start()
    await host.script("wide")
