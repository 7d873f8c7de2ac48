"""Runs inside the simulator, started by test_read_port.py: commands through AxiReadPort."""

import cocotb

from golden.axi import timing
from golden.axi.format import BURST_INCR, CACHE_NORMAL
from golden.axi.reference import bursts, read_words
from tb.axi.support.memory import Memory, Words, random_commands
from tb.bench import Bench, config
from tb.words import join

SOURCES, SINKS = ("command", "axi__r"), ("axi__ar", "o")


def command(address: int, words: int) -> int:
    return join((address, config.address_bits), (words, config.length_bits))


def outputs(words: Words, commands) -> list[int]:
    """Payloads of ``o``: golden's words."""
    return [
        join((data, config.data_bits), (error, 1), (last, 1))
        for address, count in commands
        for data, error, last in read_words(
            words, address, count, config.data_bits, config.address_bits
        )
    ]


def requests(commands) -> list[dict[str, int]]:
    """Payloads of AR: golden's bursts."""
    return [
        {
            "id": 0, "addr": where % (1 << config.address_bits), "len": beats - 1,
            "size": (config.word_bytes - 1).bit_length(), "burst": BURST_INCR, "lock": 0,
            "cache": CACHE_NORMAL, "prot": 0, "qos": 0,
        }
        for address, count in commands
        for where, beats in bursts(address, count, config.word_bytes, config.burst_beats)
    ]  # fmt: skip


async def read(bench, memory, commands, **flow):
    """Run ``commands`` through the port; compare every word of o and every request."""
    memory.beats.clear()
    memory.requests.clear()
    golden, asked = outputs(memory.words, commands), requests(commands)
    offers = {"command": [command(*each) for each in commands], "axi__r": memory.beats}
    result = await bench.run(offers, {"o": len(golden), "axi__ar": len(asked)}, **flow)
    for n, (got, expected) in enumerate(zip(result.words["o"], golden, strict=True)):
        assert got == expected, f"word {n}: got {got:#x}, golden {expected:#x}"
    assert memory.requests == asked
    assert memory.most <= config.outstanding
    return result


async def start(dut, words=None, latency=1):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    memory = Memory(dut, config, words or Words(config.data_bits), latency)
    cocotb.start_soon(memory.run())
    return bench, memory


@cocotb.test()
@cocotb.parametrize(
    p_idle=[0.0, {"command": 0.6, "axi__r": 0.4}],
    p_stall=[0.0, {"axi__ar": 0.7, "o": 0.3}, {"axi__ar": 0.0, "o": 0.8}],
    latency=[1, 9],
)
async def random_flow(dut, p_idle, p_stall, latency):
    """Lengths of 0 and more, ends of pages, top of the address space, errors on some beats."""
    bench, memory = await start(dut, Words(config.data_bits, errors=20), latency)
    commands = random_commands(bench.rng("commands"), config, 40)
    await read(bench, memory, commands, p_idle=p_idle, p_stall=p_stall)
    assert memory.strays == 0


@cocotb.test()
async def late_ready(dut):
    """Consumers that wait for valid, AR's among them."""
    bench, memory = await start(dut)
    await read(bench, memory, random_commands(bench.rng("commands"), config, 12), late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """A word per cycle from the first to the last, over bursts, pages and commands."""
    burst = min(config.burst_beats, config.page_words)
    # A burst's place is free the cycle after its last beat, and AR takes two cycles more.
    latency = burst * (config.outstanding - 1) - 3
    if latency < 1:
        return
    bench, memory = await start(dut, latency=latency)
    page = config.page_words * config.word_bytes
    commands = [(7 * page, 3 * burst), (9 * page, burst), (20 * page, 4 * burst)]
    commands = [(a, min(n, (1 << config.length_bits) - 1)) for a, n in commands]
    flow = await read(bench, memory, commands)
    cycles = flow.cycles["o"]
    assert cycles == list(range(cycles[0], cycles[0] + len(cycles)))
    promised = timing.read_port(config.buffered)
    assert cycles[0] == promised.latency + latency + promised.delay("from axi__r to o")


@cocotb.test()
async def one_request_per_cycle(dut):
    """Commands of one word follow each other without a gap, as far as ``outstanding`` allows."""
    bench, memory = await start(dut)
    commands = [(64 * n * config.word_bytes, 1) for n in range(30)]
    flow = await read(bench, memory, commands)
    asked = flow.cycles["axi__ar"]
    first = asked[: config.outstanding]
    assert first == list(range(asked[0], asked[0] + len(first)))


@cocotb.test()
async def stray_beats_are_dropped(dut):
    """Beats that no command requested: taken, counted, and the next command is right."""
    bench, memory = await start(dut)
    rng = bench.rng("stray")
    beats = [rng.getrandbits(memory.r.size) for _ in range(5)]
    await bench.run({"axi__r": beats}, {}, p_idle={"command": 0.0, "axi__r": 0.5})
    assert memory.strays == len(beats)
    memory.on_their_way = memory.most = 0
    await read(bench, memory, random_commands(rng, config, 8))
    assert memory.strays == len(beats)


@cocotb.test()
async def reset_in_mid_burst(dut):
    """With its bus, the port forgets requests, bursts in flight and words."""
    bench, _ = await start(dut)
    rng = bench.rng("cut")
    for attempt in range(8):
        memory = Memory(dut, config, Words(config.data_bits, salt=str(attempt)), 3)
        running = cocotb.start_soon(memory.run())
        commands = [(a, n) for a, n in random_commands(rng, config, 12) if n]
        golden, asked = outputs(memory.words, commands), requests(commands)
        await bench.run(
            {"command": [command(*each) for each in commands], "axi__r": memory.beats},
            {"o": len(golden), "axi__ar": len(asked)},
            p_stall=0.4,
            stop_at=rng.randrange(3, 60),
        )
        running.cancel()
        await bench.reset(1)
    memory = Memory(dut, config, Words(config.data_bits, salt="after"), 3)
    cocotb.start_soon(memory.run())
    await read(bench, memory, random_commands(rng, config, 8))
