"""Runs inside the simulator, started by test_histogram_ram.py: packets through the banks."""

from itertools import accumulate

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in ("packet", "i", "o")}
PACKETS = params["packets"]  # (beats in, words out) of each


def cycles(packets) -> tuple[list[int], list[int]]:
    """Cycle of each transfer of ``i`` and ``o`` at full rate, from the contract alone."""
    i, o, ends = [], [], []
    free = config.rows  # after reset the RAMs are cleared
    for n, (beats, words) in enumerate(packets):
        # The set is free in the cycle after its last word.
        begin = max(free, ends[n - 2] + 1) if n > 1 else free
        i += range(begin, begin + beats)
        free = begin + max(beats, 1)
        # The final write, then a row is read; the first one while the last word leaves.
        fetch = max(free + 1, ends[-1] if ends else 0)
        o += range(fetch + 1, fetch + 1 + words)
        ends.append(o[-1])
    return i, o


class Histogram(Contract):
    def check_timing(self, flow, packets=None) -> None:
        i, o = cycles(PACKETS[: packets or len(PACKETS)])
        assert flow.cycles["i"] == i
        assert flow.cycles["o"] == o
        assert o[0] - i[PACKETS[0][0] - 1] == block_timing().latency


contract = Histogram(
    WORDS,
    packets={
        "packet": range(1, len(PACKETS) + 1),
        "i": list(accumulate(beats for beats, _ in PACKETS)),
        "o": list(accumulate(words for _, words in PACKETS)),
    },
    some=params["some"],
    cuts=[config.rows // 2, *(config.rows + cut for cut in (1, 2, 3, 5, 8, 20, 60, 101))],
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def ready_is_low_while_clearing(dut):
    """Rows written before a reset are 0 when ``i.ready`` rises."""
    bench = await contract.started(dut)
    stop = config.rows + 30
    await bench.run(contract.offers({"packet": 9, "i": len(WORDS["i"])}), {"o": None}, stop_at=stop)
    await bench.reset(1)
    task = cocotb.start_soon(bench.run({"packet": WORDS["packet"]}, {}, stop_at=config.rows + 1))
    for _ in range(config.rows):
        await ReadOnly()
        assert not dut.i__ready.value
        await FallingEdge(dut.clk)
    await ReadOnly()
    assert dut.i__ready.value
    await task
    await bench.reset(1)
    await contract.replay(bench, 4)
