"""Runs inside the simulator, started by test_histogram_parallel.py: packets through a counter."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.index.support.two_sets import TwoSets

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
PACKETS = params["packets"]  # (beats in, words out) of each
IS_SRAM = config.architecture == "sram"
CLEAR = config.bins if IS_SRAM else 0  # after reset the RAMs are cleared, one bin per cycle


class Counter(TwoSets):
    """Counting overlaps reading, in flip-flops and in RAMs."""

    def cycles(self, packets):
        if not IS_SRAM:
            return super().cycles(packets)
        i, o = [], []
        free = CLEAR
        end = -1  # cycle of the last word out
        for beats, words in self.sizes[:packets]:
            i += range(free, free + beats)
            # The last beat is written in the next cycle; a side that was read is free in the cycle
            # after its last word, both for reading the other side and for counting into it.
            fetch = free = max(i[-1] + 2, end + 1)
            o += range(fetch + 1, fetch + 1 + words)
            end = o[-1]
        return i, o

    def check_timing(self, flow, packets=None) -> None:
        super().check_timing(flow, packets)
        i, o = flow.cycles["i"], flow.cycles["o"]
        overlapped = set(i) & set(range(o[0], o[-1]))
        assert packets or len(overlapped) > len(i) // 4, "counting does not overlap reading"


contract = Counter(
    WORDS, PACKETS, some=params["flow"], cuts=range(CLEAR + 1, CLEAR + 180, 13)
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def long_packets_with_pauses(dut):
    """Bins keep their bits, also the high ones, while no beat comes."""
    if len(PACKETS) == params["flow"]:
        return
    bench = await contract.started(dut)
    await contract.replay(bench, p_idle=0.01)


@cocotb.test()
async def ready_is_low_while_clearing(dut):
    """Words written before a reset are gone when ``i.ready`` rises, at whatever cycle it came."""
    if not IS_SRAM:
        return
    bench = await contract.started(dut)
    for cut in (0, 1, config.bins // 2, config.bins - 1, config.bins + 9):
        await bench.run({"i": WORDS["i"]}, {"o": len(WORDS["o"])}, stop_at=cut)
        await bench.reset(1)
    for _ in range(config.bins):
        await ReadOnly()
        assert not dut.i__ready.value
        await FallingEdge(dut.clk)
    await ReadOnly()
    assert dut.i__ready.value
    await FallingEdge(dut.clk)
    await contract.replay(bench, 6)
