"""Runs inside the simulator, started by test_lane_codebook.py: codebook packets."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import params
from tb.contract import Contract, block_timing

# Of each packet: words of its stream, its centroids if they are loaded, what is loaded.
LENGTHS, CENTROIDS, MODES = params["lengths"], params["centroids"], params["modes"]
NOTHING = 0


class Packets(Contract):
    """A word per cycle; a product in the cycle of its word."""

    def check_timing(self, flow, packets=None):
        timing, packets = block_timing(), self.count if packets is None else packets
        taken = flow.cycles["i"]
        assert taken == [n * timing.interval for n in range(len(taken))]
        ends = [0, *self.packets["product"]]
        starts = [0, *self.packets["i"]]
        causes = [
            taken[starts[n] + k] for n in range(packets) for k in range(ends[n + 1] - ends[n])
        ]
        assert flow.cycles["product"] == [cycle + timing.latency for cycle in causes]


def joined(words: list[int]) -> int:
    return sum(word << 16 * n for n, word in enumerate(words))


async def watch(dut, bench, loaded: list[int]):
    """``loaded`` and the codebooks in every cycle: they change in the cycle after a word."""
    held, packet, place = NOTHING, 0, 0
    while True:
        await ReadOnly()
        assert int(dut.loaded.value) == held
        if held != NOTHING:
            centroids = list(CENTROIDS[packet - 1])
            if params["mirrored"]:
                centroids += [word ^ 0x8000 for word in reversed(centroids)]
            assert int(dut.codebook_b.value) == joined(centroids)
        for _ in bench.transfers(("i",)):
            held, place = NOTHING, place + 1
            if place == LENGTHS[packet]:
                held, packet, place = MODES[packet], packet + 1, 0
                loaded.append(held)
        await FallingEdge(dut.clk)


contract = Packets(params["words"], packets=params["packets"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5])
async def what_is_loaded(dut, p_idle):
    delay = block_timing().delay("from a packet's last word to loaded")
    assert delay == 1, "watch() expects it in the next cycle"
    bench, loaded = contract.bench(dut), []
    await bench.reset()
    task = cocotb.start_soon(watch(dut, bench, loaded))
    await contract.replay(bench, p_idle=p_idle, p_stall=0.3)
    task.cancel()
    assert loaded == MODES


@cocotb.test()
async def a_reset_forgets_what_is_loaded(dut):
    """Also in mid-packet: the next packet is judged by its own words."""
    bench = await contract.started(dut)
    # Its first word is no packet by itself.
    first = next(n for n, mode in enumerate(MODES) if mode and LENGTHS[n] > 1)
    words = contract.words["i"]
    ends = [0, *contract.packets["i"]]
    packet = words[ends[first] : ends[first + 1]]
    takes = dict.fromkeys(bench.sinks)
    for before in (packet, [*packet, packet[0]]):
        await bench.run({"i": before}, takes)
        assert int(dut.loaded.value) == (MODES[first] if before is packet else NOTHING)
        await bench.reset(1)
        assert int(dut.loaded.value) == NOTHING
        await bench.run({"i": packet}, takes)
        assert int(dut.loaded.value) == MODES[first]
