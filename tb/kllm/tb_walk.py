"""Runs inside the simulator, started by the tests of the walks of the matmul engine.

params: ``clients`` request -> answer; ``answers`` request -> {word: answer's word}; ``walks``, each
with the values of its plain ``inputs``, the words of its ``sources`` and of its ``sinks``;
``rates``, each with a walk, a delay of the memory and the cycles of sinks; ``longest``, walks that
``longest_walks`` alone replays; ``flag``, the output that is 1 between walks.
"""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, interface, params
from tb.kllm.support.answers import Answers

CLIENTS, ANSWERS, WALKS = params["clients"], params["answers"], params["walks"]
FLAG = params["flag"]
SOURCES, SINKS = interface["sources"], interface["sinks"]
STARTS = "start" if params["starts"] else None


async def started(dut):
    for name in WALKS[0]["inputs"]:
        dut[name].value = 0
    if STARTS:
        dut[STARTS].value = 0
    return await Bench.started(dut, sources=SOURCES, sinks=SINKS)


async def flagged(dut):
    """Whether the block says that nothing is left to do."""
    await ReadOnly()
    value = dut[FLAG].value
    await FallingEdge(dut.clk)
    return value == 1


async def begin(dut, walk):
    """The walk's inputs, and ``start`` for one cycle."""
    for name, value in walk["inputs"].items():
        dut[name].value = value
    if STARTS:
        dut[STARTS].value = 1
        await FallingEdge(dut.clk)
        dut[STARTS].value = 0


def look_up(name):
    """Maps a request's word to its answer; a wrong request has one too, and is compared later."""
    return lambda word: ANSWERS[name].get(word, 0)


async def replay(bench, walk, delay=3, at_random=True, **flow):
    """One walk: each word of each sink is compared, and the flag after it."""
    assert await flagged(bench.dut)
    clients = {name: (CLIENTS[name], look_up(name)) for name in CLIENTS}
    answers = Answers(bench, clients, delay, random=at_random)
    given = {name: list(words) for name, words in walk["sources"].items()}
    await begin(bench.dut, walk)
    takes = {name: len(words) for name, words in walk["sinks"].items()}
    result = await bench.run({**given, **answers.offers}, takes, **flow)
    answers.stop()
    if flow.get("stop_at") is None:
        for name, words in walk["sinks"].items():
            result.check(name, words)
        assert await flagged(bench.dut)
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await started(dut)
    for walk in WALKS:
        await replay(bench, walk, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    bench = await started(dut)
    for walk in WALKS:
        await replay(bench, walk, delay=9, late_ready=True)


@cocotb.test()
async def uneven_flow(dut):
    """Each stream in turn is slow."""
    bench = await started(dut)
    for slow in (*SOURCES, *SINKS):
        idle = {name: 0.9 * (name == slow) for name in SOURCES}
        stall = {name: 0.9 * (name == slow) for name in SINKS}
        for walk in WALKS[:6]:
            await replay(bench, walk, p_idle=idle, p_stall=stall)


@cocotb.test()
async def full_rate(dut):
    """The cycles that the timing states, and no word later."""
    bench = await started(dut)
    for rate in params["rates"]:
        flow = await replay(bench, WALKS[rate["walk"]], delay=rate["delay"], at_random=False)
        for name, cycles in rate["cycles"].items():
            assert flow.cycles[name] == cycles, name


@cocotb.test(skip=not params["longest"])
async def longest_walks(dut):
    """Every bit of a counter is used: walks too long for the other flows."""
    bench = await started(dut)
    for walk in params["longest"]:
        await replay(bench, walk, p_stall=0.1)


@cocotb.test()
async def busy_until_the_last_word(dut):
    """The flag is 0 from the first cycle of a walk to that in which its last word is taken.

    One sink takes nothing: the last one, or the first one, so that no word is in flight.
    """
    bench = await started(dut)
    sinks = [[name for name, words in walk["sinks"].items() if words] for walk in WALKS[:4]]
    for walk, last in ((WALKS[n], name) for n, names in enumerate(sinks)
                       for name in dict.fromkeys((names[-1], names[0]))):  # fmt: skip
        takes = {name: len(words) for name, words in walk["sinks"].items()}
        clients = {name: (CLIENTS[name], look_up(name)) for name in CLIENTS}
        answers = Answers(bench, clients)
        await begin(dut, walk)
        given = {name: list(words) for name, words in walk["sources"].items()}
        await bench.run(
            {**given, **answers.offers}, takes, p_stall={n: float(n == last) for n in SINKS},
            stop_at=400,
        )  # fmt: skip
        assert not await flagged(dut)
        answers.stop()
        await bench.reset(1)


@cocotb.test()
async def reset_in_mid_walk(dut):
    bench = await started(dut)
    for cut in range(1, 60, 5):
        await replay(bench, WALKS[cut % len(WALKS)], delay=5, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await replay(bench, WALKS[(cut + 1) % len(WALKS)])
