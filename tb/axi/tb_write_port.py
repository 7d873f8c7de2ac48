"""Runs inside the simulator, started by test_write_port.py: packets through AxiWritePort."""

import random

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import RESP_SLVERR
from golden.axi.reference import write_packet
from tb.axi.support.memory import Ram, random_packets
from tb.axi.support.resets import replay_after_resets
from tb.axi.support.writes import (
    WORD,
    answers,
    command,
    commands_of,
    errors_of_256,
    i_words,
    no_errors,
    random_words,
    requests,
)
from tb.bench import Bench, config
from tb.contract import Contract, block_timing

SOURCES, SINKS = ("command", "i", "axi__b"), ("axi__aw", "axi__w", "done")
CUTS = (*range(3, 15), 21, 34, 55)


class Pulses:
    """Cycles in which misfit and stray were high."""

    def __init__(self, dut):
        self.dut, self.misfit, self.stray = dut, 0, 0

    async def run(self):
        while True:
            await ReadOnly()
            self.misfit += int(self.dut.misfit.value)
            self.stray += int(self.dut.stray.value)
            await FallingEdge(self.dut.clk)


async def start(dut, latency=1, errors=no_errors, salt=""):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    ram = Ram(dut, "axi", config.write_signature, latency, errors, salt)
    cocotb.start_soon(ram.run())
    pulses = Pulses(dut)
    cocotb.start_soon(pulses.run())
    return bench, ram, pulses


async def write(bench, ram, packets, contents, **flow):
    """Packets through the port; every byte, strobe, burst and answer is golden's."""
    ram.clear()
    goldens = [
        write_packet(packet, words, config.data_bits, config.address_bits)
        for packet, words in zip(packets, contents, strict=True)
    ]
    golden = [pair for written, _ in goldens for command in written for pair in command]
    asked, wanted = requests(packets), commands_of(packets)
    beats = sum(count for _, _, count in asked)
    image = {}  # what the memory must hold afterwards wherever a beat came
    for _, where, count in asked:
        old = enumerate(ram.peek(where, count * WORD), where)
        image.update((address, byte) for address, byte in old if address not in image)
    for address, byte in golden:
        if ram.errors(address - address % WORD) < RESP_SLVERR:
            image[address] = byte
    result = await bench.run(
        {"command": [command(*each) for each in wanted], "i": i_words(contents),
         "axi__b": ram.answers},
        {"done": len(wanted), "axi__aw": len(asked), "axi__w": beats},
        **flow,
    )  # fmt: skip
    assert ram.requests == asked
    written = [
        (where + k, data >> 8 * k & 0xFF)
        for where, data, strobes in ram.writes
        for k in range(WORD)
        if strobes >> k & 1
    ]
    for n, (got, expected) in enumerate(zip(written, golden, strict=True)):
        assert got == expected, f"byte {n}: got {got}, golden {expected}"
    for _, where, count in asked:
        got = ram.peek(where, count * WORD)
        assert list(got) == [image[where + k] for k in range(count * WORD)], f"{where:#x}"
    assert result.words["done"] == answers(packets, ram.errors)
    assert ram.most["aw"] <= config.outstanding
    return result, sum(misfit for _, misfit in goldens)


class Writes(Contract):
    """Packets into a memory that starts anew, with other junk, at every reset.

    The first packet is one command. ``is_full``: the memory answers in time for a beat in every
    cycle.
    """

    def __init__(self, written, contents, *, errors=no_errors, latency=1, is_full=False):
        self.written, self.contents = written, contents
        self.errors, self.latency, self.is_full = errors, latency, is_full
        self.resets = 0
        words: dict[str, list[int]] = {name: [] for name in (*SOURCES, *SINKS)}
        ends: dict[str, list[int]] = {name: [] for name in words}
        for packet, content in zip(written, contents, strict=True):
            asked = requests([packet])
            words["command"] += [command(*each) for each in commands_of([packet])]
            words["i"] += i_words([content])
            words["done"] += answers([packet], errors)
            words["axi__aw"] += [0] * len(asked)
            words["axi__w"] += [0] * sum(beats for _, _, beats in asked)
            for name, of_stream in words.items():
                ends[name].append(len(of_stream))
        super().__init__(words, packets=ends, cuts=CUTS)

    def renewed(self, written, contents, errors) -> "Writes":
        """Other packets, after the same resets: the next reset stops this one's memory."""
        found = Writes(written, contents, errors=errors, latency=self.latency)
        found.running, found.resets = self.running, self.resets
        return found

    def bench(self, dut) -> Bench:
        self.running = []
        return super().bench(dut)

    async def restart(self, bench, cycles=3) -> None:
        for task in self.running:
            task.cancel()
        await bench.reset(cycles)
        self.resets += 1
        signature, salt = config.write_signature, str(self.resets)
        self.ram = Ram(bench.dut, "axi", signature, self.latency, self.errors, salt)
        self.pulses = Pulses(bench.dut)
        self.running = [cocotb.start_soon(each.run()) for each in (self.ram, self.pulses)]

    def offers(self, counts):
        return super().offers(counts) | {"axi__b": self.ram.answers}

    async def replay(self, bench, packets=None, **flow):
        before = self.pulses.misfit
        result, misfit = await write(
            bench, self.ram, self.written[:packets], self.contents[:packets], **flow
        )
        assert self.pulses.misfit - before == misfit
        assert self.pulses.stray == 0
        return result

    def check_timing(self, flow, packets=None) -> None:
        timing, cycles = block_timing(), flow.cycles
        assert (timing.start, timing.end) == ("command", "axi__aw and axi__w")
        assert cycles["axi__aw"][0] - cycles["command"][0] == timing.latency
        assert cycles["axi__w"][0] == cycles["axi__aw"][0]
        answer = cycles["axi__b"][len(requests(self.written[:1])) - 1]  # of its last burst
        assert cycles["done"][0] - answer == timing.delay("from axi__b to done")
        if self.is_full:
            first = timing.latency
            assert cycles["axi__w"] == list(range(first, first + len(cycles["axi__w"])))


def full_packets() -> list[list[tuple[int, int]]]:
    """Over bursts, pages and commands."""
    page = config.page_words * WORD
    most = ((1 << config.length_bits) - 1) // (BURST * WORD)
    return [
        [(7 * n * page, min(bursts, most) * BURST * WORD)] for n, bursts in enumerate((3, 1, 4))
    ]


RNG = random.Random(f"{cocotb.RANDOM_SEED} packets")
MIXED = [[(5 * WORD, WORD)], *random_packets(RNG, config, 30)]
CONTENTS = [random_words(RNG, packet) for packet in MIXED]
ERRORS = errors_of_256(6)
# Packets of one byte and more, in one command and more; errors on some words.
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = Writes(
    MIXED, CONTENTS, errors=ERRORS
).tests()
BURST = min(config.burst_beats, config.page_words)
# A burst's place is free the cycle after its B: the latency that the bursts in flight cover.
COVERED = BURST * (config.outstanding - 1) - 2
if COVERED >= 1:
    FULL = full_packets()
    full_rate = Writes(
        FULL, [random_words(RNG, packet) for packet in FULL], latency=COVERED, is_full=True
    ).tests()[3]


@cocotb.test()
@cocotb.parametrize(
    p_idle=[
        0.0,
        {"command": 0.6, "i": 0.0, "axi__b": 0.4},
        {"command": 0.0, "i": 0.5, "axi__b": 0.0},
    ],
    p_stall=[
        0.0,
        {"axi__aw": 0.7, "axi__w": 0.1, "done": 0.3},
        {"axi__aw": 0.0, "axi__w": 0.6, "done": 0.8},
    ],
    latency=[1, 9],
)
async def slow_memory(dut, p_idle, p_stall, latency):
    """A memory of another latency, whose requests and answers stall at rates of their own."""
    writes = Writes(MIXED, CONTENTS, errors=ERRORS, latency=latency)
    bench = await writes.started(dut)
    await writes.replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def reset_in_mid_burst(dut):
    """Other packets, words and errors after each reset: nothing of those before it is written."""
    rng = random.Random(f"{cocotb.RANDOM_SEED} cut")

    def fresh():
        packets = random_packets(rng, config, 12)
        contents = [random_words(rng, packet) for packet in packets]
        return packets, contents, errors_of_256(6, str(rng.random()))

    packets, contents, errors = fresh()
    first = Writes(packets, contents, errors=errors, latency=3)
    await replay_after_resets(dut, first, lambda writes: writes.renewed(*fresh()), rng)


@cocotb.test()
@cocotb.parametrize(turn=[0, 1, WORD // 2, WORD - 1])
async def full_rate_unaligned(dut, turn):
    """A beat per cycle over packets, whatever their alignment, long, short and in two commands."""
    if config.outstanding < 3 or turn >= WORD:
        return
    bench, ram, _ = await start(dut)
    rng = bench.rng("packets")
    page = config.page_words * WORD
    most = (1 << config.length_bits) - 1
    packets = []
    for n, words in enumerate([40, 3, 2, 60, 1, 1, 2, 1, 30]):
        at, size = 7 * n * page + turn, min(words * WORD - n, most)
        packets.append([(at, size)])
        if n % 2 and size > WORD:
            packets[-1] = [(at, WORD - turn), (9 * n * page, size - (WORD - turn))]
    contents = [random_words(rng, packet) for packet in packets]
    flow, _ = await write(bench, ram, packets, contents)
    cycles = flow.cycles["axi__w"]
    assert cycles == list(range(3, 3 + len(cycles)))


@cocotb.test()
async def requests_wait_for_data(dut):
    """No AW without a word for it; a beat one cycle after its word."""
    bench, ram, _ = await start(dut)
    await bench.run({"command": [command(5 * WORD, 1, 0)]}, {"axi__aw": 0}, settle=30)
    ram.clear()
    flow = await bench.run(
        {"i": [1 << config.data_bits | 0xA5], "axi__b": ram.answers},
        {"axi__aw": 1, "axi__w": 1, "done": 1},
    )
    promised = block_timing()
    to_w, to_done = promised.delay("from i to axi__w"), promised.delay("from axi__b to done")
    assert flow.cycles["axi__aw"] == flow.cycles["axi__w"] == [flow.cycles["i"][0] + to_w]
    assert flow.cycles["done"] == [flow.cycles["axi__b"][0] + to_done]
    assert ram.writes[0][2] == 1
    assert ram[5 * WORD] == 0xA5


@cocotb.test()
@cocotb.parametrize(p_stall=[0.0, 0.5], loose=[False, True])
async def misfits(dut, p_stall, loose):
    """Packets with too many or too few words: the next ones are right, and each is counted.

    With ``loose``, commands with ``more`` that end, and continuations that begin, within a word.
    """
    bench, ram, pulses = await start(dut)
    rng = bench.rng("packets")
    packets = [
        packet
        for packet in random_packets(rng, config, 40, loose=loose)
        if any(count for _, count in packet)
    ]
    contents = []
    for packet in packets:
        words = random_words(rng, packet)
        change = rng.choice([0, 0, 1, 3, -1, -2, -len(words)])
        words = words[: len(words) + change] if change < 0 else words
        words += [rng.getrandbits(config.data_bits) for _ in range(change)]
        contents.append(words or [rng.getrandbits(config.data_bits)])
    _, golden = await write(bench, ram, packets, contents, p_idle=p_stall, p_stall=p_stall)
    assert golden > 5
    assert pulses.misfit == golden


@cocotb.test()
async def strays_are_dropped(dut):
    """Answers that no burst requested: taken, counted, and the next command is right."""
    bench, ram, pulses = await start(dut)
    rng = bench.rng("stray")
    words = [rng.getrandbits(ram.shapes["b"].size) for _ in range(5)]
    idle = {"command": 0.0, "i": 0.0, "axi__b": 0.5}
    await bench.run({"axi__b": words}, {}, p_idle=idle)
    assert pulses.stray == len(words)
    packets = random_packets(rng, config, 8)
    await write(bench, ram, packets, [random_words(rng, packet) for packet in packets])
    assert pulses.stray == len(words)
