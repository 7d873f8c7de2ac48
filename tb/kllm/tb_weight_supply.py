"""Runs inside the simulator, started by test_weight_supply.py: memories to lanes."""

import json
import os
from pathlib import Path

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import join
from tb.bench import Bench, config, params
from tb.contract import block_timing
from tb.kllm.support.answers import Answers

PORTS, LANES = range(config.ports.ports), range(config.lane.lanes)
SOURCES = ("job", "rms", *(f"data_{p}" for p in PORTS))
SINKS = (
    *(f"read_{p}" for p in PORTS),
    *(f"{name}_{lane}" for name in ("w", "s_b") for lane in LANES),
    "done",
)


def look_up(port: int, memory):
    """Gives the function from a read of ``port`` to its words."""

    def words_at(word: int) -> list[int]:
        address, count = word & ((1 << config.address_bits) - 1), word >> config.address_bits
        held = [memory[port][address + n] for n in range(count)]
        return [
            join((word, config.ports.bits), (n == count - 1, 1), (error, 1))
            for n, (word, error) in enumerate(held)
        ]

    return words_at


def by_stream(words):
    takes = {name: len(words[name]) for name in SINKS}
    return {name: words[name] for name in ("job", "rms")}, takes


async def supplied(bench, case, delay=lambda port: 3, **flow):
    words, memory = case
    offers, takes = by_stream(words)
    memories = [
        Answers(bench, {f"read_{p}": (f"data_{p}", look_up(p, memory))}, delay(p) + 1)
        for p in PORTS
    ]
    for each in memories:
        offers |= each.offers
    result = await bench.run(offers, takes, **flow)
    for each in memories:
        each.stop()
    if flow.get("stop_at") is None:
        for name in SINKS:
            result.check(name, words[name])
    return result


async def started(dut):
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5])
async def random_flow(dut, p_idle, p_stall):
    """Memories of different delay; jobs as fast as they are taken."""
    bench = await started(dut)
    await supplied(
        bench, params["case"], lambda port: 1 + 7 * port % 40, p_idle=p_idle, p_stall=p_stall
    )


@cocotb.test(skip="many_groups" not in params)
async def many_groups(dut):
    await supplied(await started(dut), params["many_groups"])


@cocotb.test()
async def valid_does_not_wait_for_ready(dut):
    await supplied(await started(dut), params["case"], late_ready=True)


@cocotb.test()
@cocotb.parametrize(slow=["job", "rms", "data_0", "read_0", "w_0", "s_b_0", "done"])
async def one_is_slow(dut, slow):
    bench = await started(dut)
    idle, stall = dict.fromkeys(SOURCES, 0.0), dict.fromkeys(SINKS, 0.0)
    (idle if slow in idle else stall)[slow] = 0.9
    await supplied(bench, params["case"], p_idle=idle, p_stall=stall)


@cocotb.test()
async def done_is_last(dut):
    """``done`` comes when every word, beat and scale of the job has been taken."""
    bench = await started(dut)
    for *_, words, memory in params["rates"]:
        flow = await supplied(bench, (words, memory), p_stall=0.3)
        others = (n for n in flow.cycles if n != "done" and flow.cycles[n])
        assert flow.cycles["done"][0] > max(flow.cycles[n][-1] for n in others)


class Come:
    """Checks ``come`` in each cycle against the words that were taken from the ports."""

    LATE = 12  # cycles in which a job's words are through the stripe

    def __init__(self, dut, bench, words):
        self.dut, self.bench, self.words = dut, bench, words
        self.seen = 0
        self.task = cocotb.start_soon(self._watch())

    async def _watch(self):
        counts, done = self.words["counts"], self.words["done"]
        taken, job, since = [0] * len(PORTS), 0, 0
        wanted = list(counts[0])
        while True:
            await ReadOnly()
            come = bool(self.dut.come.value)
            is_whole = all(got >= want for got, want in zip(taken, wanted, strict=True))
            is_sound = job < len(done) and not done[job]
            assert not come or (is_whole and is_sound), f"job {job}: {taken} of {wanted} words"
            since = since + 1 if is_whole and is_sound else 0
            assert come or since < self.LATE, f"job {job}: its words came {since} cycles before"
            self.seen += come
            for name, _ in self.bench.transfers([f"data_{p}" for p in PORTS]):
                taken[int(name[5:])] += 1
            if any(self.bench.transfers(["done"])):
                job, since = job + 1, 0
                if job < len(counts):
                    wanted = [a + b for a, b in zip(wanted, counts[job], strict=True)]
            await FallingEdge(self.dut.clk)


@cocotb.test(skip=not config.come)
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def come_tells_of_the_eldest_job(dut, p_idle, p_stall):
    bench = await started(dut)
    come = Come(dut, bench, params["case"][0])
    await supplied(bench, params["case"], lambda port: 1 + 7 * port % 40, p_idle=p_idle,
                   p_stall=p_stall)  # fmt: skip
    come.task.cancel()
    assert come.seen > 20


@cocotb.test()
async def refused_asks_for_nothing(dut):
    """A job that cannot be replayed gives ``refused``, takes its factors, and the next one runs."""
    bench = await started(dut)
    words, _ = params["refused"]
    assert words["done"] == [2]
    assert words["rms"]
    await supplied(bench, params["refused"])
    await supplied(bench, params["case"])


@cocotb.test()
async def full_rate(dut):
    """Cycles of a job, first port word to last beat, next to the bound; writes rates.json."""
    bench = await started(dut)
    measured = []
    for beats, groups, tokens, words, memory in params["rates"]:
        flow = await supplied(bench, (words, memory))
        asked = [flow.cycles[f"read_{p}"][0] for p in PORTS if flow.cycles[f"read_{p}"]]
        assert set(asked) == {block_timing().latency}
        first = min(flow.cycles[f"data_{p}"][0] for p in PORTS if flow.cycles[f"data_{p}"])
        last = max(flow.cycles[f"{name}_{lane}"][-1] for name in ("w", "s_b") for lane in LANES)
        took = last - first + 1
        bound = config.bound(beats, groups, tokens)
        measured.append((bound, took))
        assert bound <= took
        # What does not overlap: the first group's way in, the last one's way out.
        gathered = beats + config.buffer_config.scale_beats
        way_in = -(-gathered * config.slots // config.ports.ports)
        ends = max(way_in, gathered) + tokens * config.lane.columns + 12
        assert took <= bound + ends + (groups if tokens > 1 else 0), (took, bound, ends)
    Path(os.environ["TB_DIR"], "rates.json").write_text(json.dumps(measured))


@cocotb.test()
async def next_job_comes_during_replays(dut):
    """The second job's words are taken before half of the first one's replays are out."""
    bench = await started(dut)
    flow = await supplied(bench, params["pair"])
    taken = flow.cycles["w_0"]
    of_first = 40 * len(taken) // 41
    assert flow.cycles["data_0"][-1] < taken[of_first // 2]
    assert taken[of_first] - taken[of_first - 1] <= 2


@cocotb.test()
async def reset_forgets_jobs(dut):
    bench = await started(dut)
    for cut in (1, 5, 12, 20, 29, 47, 80):
        await supplied(bench, params["case"], p_stall=0.3, stop_at=cut)
        await bench.reset(1)
    await supplied(bench, params["case"])
