"""Runs inside the simulator, started by test_kv_engine.py: scripts of requests, and a memory.

``params``: "scripts", phases by name as golden.oaken.vectors.kv_script makes them, and the
"latency" of memory for ``overlap``. Addresses of the scripts begin at 0, those of the memory at
any base.
"""

import itertools
import json
from pathlib import Path

import cocotb
from cocotb.triggers import FallingEdge

from tb.axi.support.host import PagedRamHost
from tb.bench import config, params
from tb.contract import block_timing
from tb.oaken.support.kv_host import Expected
from tb.oaken.support.kv_rates import rates

SOURCES = ("request", "kv", "axi__r", "axi__b")
SINKS = ("o", "status", "axi__ar", "axi__aw", "axi__w")
SCRIPTS = params["scripts"]


class Host(PagedRamHost):
    """Engine, memory and bench together."""

    def __init__(self, dut, name: str, latency: int = 5):
        super().__init__(dut, SOURCES, SINKS, config.mmu, name, latency=latency)

    async def phase(self, phase, *, kv=None, **flow):
        """One phase; its statuses, its words of o, then an idle engine with golden's free pages."""
        requests = phase["requests"]
        self.refuse(phase["faults"])
        for address, byte in phase["pokes"]:
            self.ram.poke(address + self.base, bytes([byte]))
        expected = Expected(config, [phase])
        self.ram.beats, self.ram.answers = [], []
        vectors = [beat for request in requests for beat in request["kv"]] if kv is None else kv
        o = sum(len(request["o"]) for request in requests)
        result = await self.bench.run(
            {
                "request": [request["payload"] for request in requests],
                "kv": vectors,
                "axi__r": self.ram.beats,
                "axi__b": self.ram.answers,
            },
            {
                "o": None if "either" in phase else o,
                "status": len(requests),
                "axi__ar": None,
                "axi__aw": None,
                "axi__w": None,
            },
            **flow,
        )
        if "stop_at" in flow:
            return result
        words = result.words["o"]
        if "either" in phase:
            # The last READ saw what was before its concurrent request, or what is after it.
            possible = [status for status, _ in phase["either"]]
            statuses = result.words["status"]
            # Another READ of the phase may have the same tag: statuses of one op come in order.
            place = max(n for n, word in enumerate(statuses) if word in possible)
            last = statuses.pop(place)
            outcomes = [o for status, o in phase["either"] if status == last]
            first = sum(len(request["o"]) for request in requests[:-1])
            assert words[first:] in outcomes
            expected = Expected(config, [{**phase, "requests": requests[:-1]}])
            words = words[:first]
        for word in result.words["status"]:
            expected.statuses.take(word)
        for word in words:
            expected.take_o(word)
        assert expected.is_empty
        for _ in range(8 * (config.cache.streams + config.cache.pages)):  # tables after a reset
            if self.dut.idle.value == 1:
                break
            await FallingEdge(self.dut.clk)
        assert self.dut.idle.value == 1
        assert int(self.dut.free_pages.value) == phase["free_pages"]
        if "bursts" in phase:
            bursts = [request for request in self.ram.requests if request[0] == "ar"]
            assert len(bursts) == phase["bursts"], bursts
        self.ram.requests.clear()
        return result

    async def script(self, name: str, **flow) -> list:
        return [await self.phase(phase, **flow) for phase in SCRIPTS[name]]


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [
            (0.0, 0.0, 1),
            (0.3, 0.3, 9),
            ({"request": 0.0, "kv": 0.9, "axi__r": 0.0, "axi__b": 0.5}, 0.0, 20),
            ({"request": 0.9, "kv": 0.0, "axi__r": 0.7, "axi__b": 0.0}, 0.1, 3),
            (0.0, {"o": 0.9, "status": 0.5, "axi__ar": 0.0, "axi__aw": 0.8, "axi__w": 0.5}, 5),
        ],
    )
)
async def random_flow(dut, p_idle, p_stall, latency):
    """Several sequences side by side, right requests and wrong ones."""
    host = await Host(dut, f"random_flow {p_stall}", latency).start()
    await host.script("random", p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    host = await Host(dut, "late_ready").start()
    await host.script("short", late_ready=True)


@cocotb.test(skip="statuses" not in SCRIPTS)
@cocotb.parametrize(p=[0.0, 0.4])
async def statuses(dut, p):
    """Every status there is, each followed by requests that are carried out."""
    host = await Host(dut, f"statuses {p}").start()
    await host.script("statuses", p_idle=p, p_stall=p)


@cocotb.test(skip="errors" not in SCRIPTS)
@cocotb.parametrize(p=[0.0, 0.4])
async def errors(dut, p):
    """Each fault of a vector or of its memory, of one head, gives its status."""
    host = await Host(dut, f"errors {p}").start()
    await host.script("errors", p_idle=p, p_stall=p)


@cocotb.test(skip="forks" not in SCRIPTS)
@cocotb.parametrize(p=[0.0, 0.4])
async def forks(dut, p):
    """A prompt and its children: what each reads, and the statuses of FORK."""
    host = await Host(dut, f"forks {p}").start()
    await host.script("forks", p_idle=p, p_stall=p)


@cocotb.test(skip="window" not in SCRIPTS)
async def windows_are_not_split(dut):
    """The bursts of READs after TRIMs, at and around ``scale_tokens``."""
    host = await Host(dut, "windows_are_not_split").start()
    await host.script("window")


@cocotb.test(skip="race" not in SCRIPTS)
@cocotb.parametrize(p_stall=[0.0, 0.5])
async def reads_in_pieces_are_whole(dut, p_stall):
    """After a TRIM, FREE or APPEND: all heads as before it or all as after it, or no words."""
    host = await Host(dut, f"reads_in_pieces_are_whole {p_stall}").start()
    await host.script("race", p_idle=p_stall, p_stall=p_stall)


@cocotb.test()
async def reads_pass_appends(dut):
    """READs end while the vectors of ``queue`` APPENDs before them have not come."""
    host = await Host(dut, "reads_pass_appends").start()
    *before, appends, reads = SCRIPTS["pass"]
    for phase in before:
        await host.phase(phase)
    both = {**reads, "requests": [*appends["requests"], *reads["requests"]]}
    sent = [request["payload"] for request in both["requests"]]
    expected = Expected(config, [reads])
    host.ram.beats, host.ram.answers = [], []
    o = sum(len(request["o"]) for request in reads["requests"])
    memory = {"axi__ar": None, "axi__aw": None, "axi__w": None}
    flow = await host.bench.run(
        {"request": sent, "axi__r": host.ram.beats, "axi__b": host.ram.answers},
        {"o": o, "status": len(reads["requests"]), **memory},
    )
    for word in flow.words["status"]:
        expected.statuses.take(word)
    for word in flow.words["o"]:
        expected.take_o(word)
    assert expected.is_empty
    assert dut.idle.value == 0
    expected = Expected(config, [appends])
    host.ram.beats, host.ram.answers = [], []
    flow = await host.bench.run(
        {
            "kv": [beat for request in appends["requests"] for beat in request["kv"]],
            "axi__r": host.ram.beats,
            "axi__b": host.ram.answers,
        },
        {"status": len(appends["requests"]), **memory},
    )
    for word in flow.words["status"]:
        expected.statuses.take(word)
    assert expected.is_empty
    assert dut.idle.value == 1


async def _run(host, expected, offers, takes, **flow):
    """One run with memory, which goes on where the last one stopped; statuses are compared."""
    bus = {"axi__r": host.ram.beats, "axi__b": host.ram.answers}
    free = {"axi__ar": None, "axi__aw": None, "axi__w": None}
    held = flow.pop("held", 0.0)
    stalls = {**dict.fromkeys(SINKS, 0.0), "o": held}
    found = await host.bench.run({**offers, **bus}, {**takes, **free}, p_stall=stalls, **flow)
    del host.ram.beats[: found.sent["axi__r"]], host.ram.answers[: found.sent["axi__b"]]
    for word in found.words["status"]:
        expected.statuses.take(word)
    return found


@cocotb.test()
async def frees_wait_for_no_later_append(dut):
    """APPEND, TRIM, FREE, APPEND: the FREE ends before the second vector comes."""
    host = await Host(dut, "frees_wait_for_no_later_append").start()
    *before, mixed, last = SCRIPTS["order"][:5]
    for phase in before:
        await host.phase(phase)
    host.ram.beats, host.ram.answers = [], []
    requests, expected = mixed["requests"], Expected(config, [mixed])
    sent = {"request": [request["payload"] for request in requests]}
    await _run(host, expected, sent, {}, stop_at=400)  # no status may come
    vector = {"kv": requests[0]["kv"]}
    await _run(host, expected, vector, {"status": len(requests) - 1}, silence=5000)
    await _run(host, expected, {"kv": requests[-1]["kv"]}, {"status": 1}, silence=5000)
    assert expected.is_empty
    await host.phase(last)


@cocotb.test()
async def frees_wait_for_no_later_read(dut):
    """READs in all places, READ, TRIM, FREE, READ: the FREE waits for all but the last."""
    host = await Host(dut, "frees_wait_for_no_later_read").start()
    *before, reads = SCRIPTS["order"]
    for phase in before:
        await host.phase(phase)
    host.ram.beats, host.ram.answers = [], []
    requests, expected = reads["requests"], Expected(config, [reads])
    sent = {"request": [request["payload"] for request in requests]}
    found = await _run(host, expected, sent, {"o": None}, held=1.0, stop_at=2000)
    assert found.sent["request"] == len(requests)
    # All words of the first READ and some of the second leave, so one place becomes free.
    beats = len(requests[0]["o"])
    found = await _run(host, expected, {}, {"o": None, "status": None}, stop_at=beats + 6)
    words, ended = found.words["o"], len(found.words["status"])
    assert beats <= len(words) < 2 * beats
    # The READ before TRIM has its place. The last READ has none, and FREE ends without it.
    takes = {"o": None, "status": 3 - ended}
    await _run(host, expected, {}, takes, held=1.0, silence=2000)
    takes = {"o": (config.mmu.reads + 2) * beats - len(words), "status": len(requests) - 3}
    found = await _run(host, expected, {}, takes, silence=20_000)
    for word in (*words, *found.words["o"]):
        expected.take_o(word)
    assert expected.is_empty


@cocotb.test()
async def thresholds_stay_for_vectors_on_their_way(dut):
    """THRESHOLDS after an APPEND, and OPEN after both, wait for its vector."""
    host = await Host(dut, "thresholds_stay_for_vectors_on_their_way").start()
    first, late, *rest = SCRIPTS["late"]
    await host.phase(first)
    sent = [request["payload"] for request in late["requests"]]
    flow = await host.bench.run({"request": sent}, {}, stop_at=400)  # no status may come
    assert flow.sent["request"] == len(sent)
    flow = await host.bench.run({"kv": late["requests"][0]["kv"]}, {"status": len(sent)})
    expected = Expected(config, [late])
    for word in flow.words["status"]:
        expected.statuses.take(word)
    for phase in rest:
        await host.phase(phase)


@cocotb.test()
async def appends_pass_stalled_reads(dut):
    """APPENDs end while the words of the READs before them are stalled."""
    host = await Host(dut, "appends_pass_stalled_reads").start()
    *before, appends, reads = SCRIPTS["pass"]
    for phase in before:
        await host.phase(phase)
    vectors = [beat for request in appends["requests"] for beat in request["kv"]]
    memory = {"axi__ar": None, "axi__aw": None, "axi__w": None}
    host.ram.beats, host.ram.answers = [], []
    both = [*reads["requests"], *appends["requests"]]
    flow = await host.bench.run(
        {
            "request": [request["payload"] for request in both],
            "kv": vectors,
            "axi__r": host.ram.beats,
            "axi__b": host.ram.answers,
        },
        {"o": None, "status": len(appends["requests"]), **memory},
        p_stall={"o": 1.0, "status": 0.0, "axi__ar": 0.0, "axi__aw": 0.0, "axi__w": 0.0},
    )
    assert not flow.words["o"]
    expected = Expected(config, [appends])
    for word in flow.words["status"]:
        expected.statuses.take(word)
    assert expected.is_empty
    expected = Expected(config, [reads])
    host.ram.beats, host.ram.answers = [], []
    o = sum(len(request["o"]) for request in reads["requests"])
    flow = await host.bench.run(
        {"axi__r": host.ram.beats, "axi__b": host.ram.answers},
        {"o": o, "status": len(reads["requests"]), **memory},
    )
    for word in flow.words["status"]:
        expected.statuses.take(word)
    for word in flow.words["o"]:
        expected.take_o(word)
    assert expected.is_empty


@cocotb.test()
async def reset_in_the_middle(dut):
    """After a reset there are no sequences, no thresholds and no words of before."""
    host = await Host(dut, "reset_in_the_middle").start()
    rng = host.bench.rng("cuts")
    phases = SCRIPTS["short"]
    for attempt in range(6):
        cut = rng.randrange(1, len(phases))
        for phase in phases[:cut]:
            await host.phase(phase)
        await host.phase(phases[cut], p_stall=0.4 * (attempt % 2), stop_at=rng.randrange(20, 400))
        await host.stop()
    await host.script("short")


@cocotb.test()
async def overlap(dut):
    """Cycles of APPENDs alone, READs alone, and both together: reported, and bounded."""
    host = await Host(dut, "overlap", params.get("latency", 20)).start()
    cycles = {}
    names = ("thresholds", "open", "before", "appends", "reads", "both")
    for name, phase in zip(names, SCRIPTS["overlap"], strict=True):
        flow = await host.phase(phase)
        cycles[name] = max(flow.cycles["status"]) + 1
    Path("overlap.json").write_text(json.dumps(cycles))
    assert cycles["both"] < cycles["appends"] + cycles["reads"]


@cocotb.test(skip="rates" not in SCRIPTS)
async def full_rate(dut):
    """Cycles of the block's timing and of golden.oaken.timing, at three latencies of memory.

    Shown to fail: with the queue of READs in a RAM, a cycle slower.
    """
    expected, kv, cycles = block_timing(), config.cache.kv, rates(config)
    assert (expected.start, expected.end) == ("a READ", "its first beat of o")
    assert cycles.first(1) == expected.latency
    after = expected.delay("from a READ's last beat to its status")
    for latency in (1, 2, 20):
        host = await Host(dut, "full_rate", latency).start()
        flows = [await host.phase(phase) for phase in SCRIPTS["rates"]]
        host.running.cancel()
        lone, train, token, parts, short = flows[4:9]
        part, reads = flows[-2:]

        # APPENDs: the last record of token k takes one word of memory, or more.
        vector = kv.elements // config.lanes
        for flow, k in ((lone, 1), (train, 2)):
            beats, ends = flow.cycles["kv"], flow.cycles["status"]
            assert beats[:vector] == list(range(beats[0], beats[0] + vector))
            if flow is lone or not kv.is_by_token:
                assert ends[0] - beats[vector - 1] == cycles.lone(k, latency), (latency, k)
        steps = [b - a for a, b in itertools.pairwise(train.cycles["status"])]
        assert steps == [cycles.step(k, latency) for k in (3, 4, 5)], latency

        # READs: of one token of one part, of all parts; then trains of full parts.
        beats = token.cycles["o"]
        assert beats[0] - token.cycles["request"][0] == cycles.first(latency), latency
        per_part = kv.elements // kv.parts // config.lanes
        begun = parts.cycles["o"][::per_part]
        assert len(begun) == kv.parts
        steps = [b - a for a, b in itertools.pairwise(begun)]
        assert not steps or max(steps) == max(cycles.between_parts(), per_part), steps
        if kv.is_by_token and latency <= 2:  # there are places for all READs
            begun = short.cycles["o"][::vector]
            steps = {b - a for a, b in itertools.pairwise(begun)}
            assert steps == {max(cycles.between_reads(), vector)}, steps
        for flow in (part, reads):
            beats = flow.cycles["o"]
            steps = {b - a for a, b in itertools.pairwise(beats)}
            assert steps == {expected.interval}, (latency, steps)
        for flow in (token, parts, part, reads):
            beats, ends = flow.cycles["o"], flow.cycles["status"]
            last = beats[len(beats) // len(ends) - 1 :: len(beats) // len(ends)]
            assert [end - beat for beat, end in zip(last, ends, strict=True)] == [after] * len(ends)
