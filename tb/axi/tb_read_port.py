"""Runs inside the simulator, started by test_read_port.py: commands through AxiReadPort."""

import random

import cocotb

from golden.axi.format import BURST_INCR, CACHE_NORMAL
from golden.axi.reference import bursts, read_words
from golden.words import join
from tb.axi.support.memory import Memory, Words, random_commands
from tb.axi.support.resets import replay_after_resets
from tb.bench import Bench, config
from tb.contract import Contract, block_timing

SOURCES, SINKS = ("command", "axi__r"), ("axi__ar", "o")
CUTS = (*range(3, 15), 21, 34, 55)


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


class Reads(Contract):
    """Commands on a memory that starts anew, with other words, at every reset.

    The first command reads one word. ``is_full``: the memory answers in time for a word of ``o``
    in every cycle.
    """

    def __init__(self, commands, *, errors: int = 0, latency: int = 1, is_full: bool = False):
        self.commands, self.errors, self.latency = commands, errors, latency
        self.is_full = is_full
        self.memory: Memory | None = None
        self.resets = 0
        words: dict[str, list[int]] = {name: [] for name in (*SOURCES, *SINKS)}
        ends: dict[str, list[int]] = {name: [] for name in words}
        nothing = Words(config.data_bits)
        for each in commands:
            words["command"].append(command(*each))
            words["o"] += outputs(nothing, [each])
            words["axi__ar"] += [0] * len(requests([each]))
            for name, of_stream in words.items():
                ends[name].append(len(of_stream))
        super().__init__(words, packets=ends, cuts=CUTS)

    def renewed(self, commands) -> "Reads":
        """Other commands, after the same resets: the next reset stops this one's memory."""
        found = Reads(commands, errors=self.errors, latency=self.latency)
        found.running, found.resets = self.running, self.resets
        return found

    def bench(self, dut) -> Bench:
        self.running = None
        return super().bench(dut)

    async def restart(self, bench, cycles=3) -> None:
        if self.running is not None:
            self.running.cancel()
        await bench.reset(cycles)
        self.resets += 1
        words = Words(config.data_bits, self.errors, salt=str(self.resets))
        self.memory = Memory(bench.dut, config, words, self.latency)
        self.running = cocotb.start_soon(self.memory.run())

    def offers(self, counts):
        return super().offers(counts) | {"axi__r": self.memory.beats}

    async def replay(self, bench, packets=None, **flow):
        result = await read(bench, self.memory, self.commands[:packets], **flow)
        assert self.memory.strays == 0
        return result

    def check_timing(self, flow, packets=None) -> None:
        timing, cycles = block_timing(), flow.cycles
        assert cycles[timing.end][0] - cycles[timing.start][0] == timing.latency
        assert cycles["o"][0] - cycles["axi__r"][0] == timing.delay("from axi__r to o")
        if self.is_full:
            first = timing.latency + self.latency + timing.delay("from axi__r to o")
            assert cycles["o"] == list(range(first, first + len(cycles["o"])))


def full_commands() -> list[tuple[int, int]]:
    """Over bursts, pages and commands."""
    page = config.page_words * config.word_bytes
    found = [(7 * page, 3 * BURST), (9 * page, BURST), (20 * page, 4 * BURST)]
    return [(address, min(words, (1 << config.length_bits) - 1)) for address, words in found]


RNG = random.Random(f"{cocotb.RANDOM_SEED} commands")
MIXED = [(5 * config.word_bytes, 1), *random_commands(RNG, config, 40)]
# Lengths of 0 and more, ends of pages, top of the address space, errors on some beats.
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = Reads(
    MIXED, errors=20
).tests()
BURST = min(config.burst_beats, config.page_words)
# A burst's place is free the cycle after its last beat, and AR takes two cycles more.
COVERED = BURST * (config.outstanding - 1) - 3
if COVERED >= 1:
    full_rate = Reads(full_commands(), latency=COVERED, is_full=True).tests()[3]


@cocotb.test()
@cocotb.parametrize(
    p_idle=[0.0, {"command": 0.6, "axi__r": 0.4}],
    p_stall=[0.0, {"axi__ar": 0.7, "o": 0.3}, {"axi__ar": 0.0, "o": 0.8}],
    latency=[1, 9],
)
async def slow_memory(dut, p_idle, p_stall, latency):
    """A memory of another latency, whose requests and answers stall at rates of their own."""
    reads = Reads(MIXED, errors=20, latency=latency)
    bench = await reads.started(dut)
    await reads.replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def reset_in_mid_burst(dut):
    """Other commands after each reset: neither they nor their words pass for those before it."""
    rng = random.Random(f"{cocotb.RANDOM_SEED} cut")

    def fresh() -> list[tuple[int, int]]:
        return [(address, words) for address, words in random_commands(rng, config, 12) if words]

    first = Reads(fresh(), errors=20, latency=3)
    await replay_after_resets(dut, first, lambda reads: reads.renewed(fresh()), rng)


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
