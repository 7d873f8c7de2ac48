"""Runs inside the simulator, started by test_matmul_issue.py: commands, and models of the walks."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, interface, params
from tb.contract import block_timing
from tb.kllm.support.answers import Answers

STEPS, DESCRIPTORS = params["steps"], params["descriptors"]
SOURCES, SINKS = interface["sources"], interface["sinks"]
FIRST = next(n for n, step in enumerate(STEPS) if step["codebook"])  # the first codebook
FAULT = params["fault_mask"]  # of a ticket
TIMING = block_timing()


class Walks:
    """The walks and the collection: ``done`` and ``is_idle`` fall for a time, rows give words.

    ``seen`` has the work of each walk. AssertionError: a walk begins before the last one is done.
    Also a walk of rows that begins before the outputs of all tickets are written.
    """

    def __init__(self, bench, most: int):
        self.bench, self.dut, self.most = bench, bench.dut, most
        self.packets, self.seen = [], {"work": [], "row_work": []}
        self.offers: list[int] = []  # of ``packet``
        self._running = True
        self.busy = {"done": 0, "is_idle": 0}  # cycles
        for name in self.busy:
            self.dut[name].value = 1
        self._task = cocotb.start_soon(self._serve())

    async def _serve(self):
        rng, dut = self.bench.rng("walks"), self.dut
        while self._running:
            await ReadOnly()
            started = {"work": dut.start.value == 1, "row_work": dut.row_start.value == 1}
            for name in (name for name, is_started in started.items() if is_started):
                self.seen[name].append(int(dut[name].value))
                assert not self.busy["done"], f"{name} begins in a walk"
            if started["row_work"]:
                assert not self.busy["is_idle"], "rows are read before outputs are written"
                if dut.is_codebook.value == 1:
                    self.offers += self.packets.pop(0)
            tickets = [word for _, word in self.bench.transfers(["ticket"])]
            await FallingEdge(dut.clk)
            # A refused command and a codebook have no outputs: their tickets leave soon too.
            began = {"done": started["work"], "is_idle": bool(tickets)}
            for name, count in self.busy.items():
                self.busy[name] = rng.randint(1, self.most) if began[name] else max(0, count - 1)
                dut[name].value = not self.busy[name]

    async def stop(self):
        self._running = False
        await self._task


async def play(bench, steps, delay=3, most=30, at_random=True, **flow):
    """Commands one after another; every word and every walk is compared."""
    walks = Walks(bench, most)
    walks.packets = [step["packet"] for step in steps if step["packet"]]
    clients = {"slot": ("descriptor", DESCRIPTORS.__getitem__)}
    answers = Answers(bench, clients, delay, random=at_random)
    wanted = {
        name: [word for step in steps for word in step[name]]
        for name in ("supply", "supply_rms", "slot", "codebook")
    } | {"ticket": [step["ticket"] for step in steps]}
    offers = {"command": [step["command"] for step in steps], "packet": walks.offers}
    offers |= {"release": [word for step in steps for word in step["release"]]}
    result = await bench.run(
        {**offers, **answers.offers}, {name: len(words) for name, words in wanted.items()}, **flow
    )
    answers.stop()
    await walks.stop()
    if flow.get("stop_at") is None:
        names = [step["name"] for step in steps]
        for n, (got, step) in enumerate(zip(result.words["ticket"], steps, strict=True)):
            # The sizes of a ticket without outputs have no meaning.
            mask = FAULT if step["is_done"] else -1
            assert got & mask == step["ticket"] & mask, f"{names[n]}: ticket {got:#x}"
        for name in ("supply", "supply_rms", "slot", "codebook"):
            result.check(name, wanted[name])
        for name in ("work", "row_work"):
            assert walks.seen[name] == [word for step in steps for word in step[name]], name
    return result


async def started(dut):
    dut.done.value, dut.is_idle.value = 1, 1
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    await play(await started(dut), STEPS, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    await play(await started(dut), STEPS, delay=9, late_ready=True)


@cocotb.test()
async def uneven_flow(dut):
    bench = await started(dut)
    for slow in (*SOURCES, *SINKS):
        await bench.reset()
        await play(
            bench, STEPS,
            p_idle={name: 0.9 * (name == slow) for name in SOURCES},
            p_stall={name: 0.9 * (name == slow) for name in SINKS},
        )  # fmt: skip


@cocotb.test()
async def full_rate(dut):
    """Each MATMUL from its offer to its supply job, its ticket and its end."""
    bench = await started(dut)
    measured, periods = 0, set()
    for step in STEPS:
        flow = await play(bench, [step], delay=params["answer"], most=1, at_random=False)
        if step["codebook"]:
            since = flow.cycles["ticket"][0] - flow.cycles["codebook"][-1]
            assert since == TIMING.delay("from the last codebook to its ticket"), step["name"]
        if step["cycles"] is None:
            continue
        measured += 1
        supply = step["cycles"]
        ticket = supply + 1 + step["ticket_cycles"]
        assert flow.cycles["supply"] == [supply], step["name"]
        assert flow.cycles["ticket"] == [ticket], step["name"]
        if step["row_work"]:
            assert ticket - supply == TIMING.delay("from supply to ticket of DIRECT, if released")
        if not step["supply_rms"]:
            # The model's walks take one cycle: ``done`` is 1 again two cycles after their start.
            walks = 2
            end = ticket + walks
            assert flow.cycles["command"] == [
                end + TIMING.delay("from the end of the walks to the end of the command")
            ], step["name"]
        if supply == TIMING.latency and step["row_work"]:
            periods.add(flow.cycles["command"][0] + 1)
    assert measured > 8
    assert periods == {TIMING.interval}


@cocotb.test()
async def direct_requests_weights_before_its_rows(dut):
    """While outputs are to be written, DIRECT requests its weights, and no more."""
    bench = await started(dut)
    codebook, direct = STEPS[FIRST : FIRST + 2]
    assert direct["waits"]
    assert direct["supply"]
    await play(bench, [codebook])
    dut.is_idle.value = 0
    offers = {"command": [direct["command"]], "release": direct["release"]}
    flow = await bench.run(offers, dict.fromkeys(SINKS), stop_at=2 * direct["cycles"])
    assert flow.cycles["supply"] == [direct["cycles"]]
    assert not flow.cycles["ticket"]
    assert dut.row_start.value == 0


@cocotb.test()
async def weights_before_release(dut):
    """Before its release a MATMUL requests its weights, and no more; then it runs or is reset."""
    bench = await started(dut)
    codebook = STEPS[FIRST]
    others = [step for step in STEPS[FIRST + 1 :] if not step["waits"]]
    runs = [step for step in others if step["supply"]][:6]
    refused = [step for step in others if not step["supply"]][:9]
    for step in runs + refused:
        await bench.reset(1)
        await play(bench, [codebook])
        wait = 40 + (step["cycles"] or 0)
        flow = await bench.run({"command": [step["command"]]}, dict.fromkeys(SINKS), stop_at=wait)
        assert flow.words["supply"] == step["supply"], step["name"]
        assert flow.cycles["supply"] == [step["cycles"]] * len(step["supply"]), step["name"]
        early = [name for name in SINKS if name != "supply" and flow.cycles[name]]
        assert not early, f"{step['name']}: {early} before the release"
        assert not flow.sent["command"]
    await bench.reset(1)
    await play(bench, STEPS[: FIRST + 2])


@cocotb.test()
async def weights_before_the_codebook_is_whole(dut):
    """While a packet stalls, the next command requests its weights, and no more."""
    bench = await started(dut)
    codebook = STEPS[FIRST]
    tried = 0
    for step in STEPS[FIRST + 1 :]:
        if step["packet"] or not step["command"]:
            continue
        await bench.reset(1)
        offers = {
            "command": [codebook["command"], step["command"]],
            "packet": codebook["packet"][:-1],
            "release": codebook["release"] + step["release"],
        }
        wait = 60 + len(codebook["packet"]) + (step["cycles"] or 0)
        flow = await bench.run(offers, dict.fromkeys(SINKS), stop_at=wait)
        assert flow.words["codebook"] == codebook["codebook"][:-1], step["name"]
        assert flow.words["supply"] == step["supply"], step["name"]
        early = [name for name in SINKS if name not in ("supply", "codebook") and flow.cycles[name]]
        assert not early, f"{step['name']}: {early} before the codebook's ticket"
        assert flow.sent["command"] == 1
        tried += 1
        if tried == 12:
            break
    assert tried == 12


@cocotb.test()
async def reset_in_mid_command(dut):
    """A reset forgets the command and the codebook."""
    bench = await started(dut)
    for cut in range(1, 80, 7):
        await play(bench, STEPS[FIRST : FIRST + 5], stop_at=cut + 40)
        dut.done.value, dut.is_idle.value = 1, 1
        await bench.reset(1)
        await bench.run({}, {})
        await play(bench, STEPS[: FIRST + 2])
