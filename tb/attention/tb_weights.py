"""Runs inside the simulator, started by test_weights.py: rows through AttentionWeights."""

import cocotb

from tb.bench import Bench, params
from tb.contract import Contract, block_timing

WORDS, ENDS = params["words"], params["ends"]
AHEAD = 8  # cycles by which a score leaves the RAM before its weight leaves the block


def of_row(cycles, name, row):
    """Cycles of the words of a stream in one row."""
    return cycles[name][ENDS[name][row - 1] if row else 0 : ENDS[name][row]]


class Rows(Contract):
    """The time of a row is that of its scores, or that of the weights of the row before."""

    def check_timing(self, flow, packets=None):
        timing, cycles = block_timing(), flow.cycles
        begin, free = 0, 0  # earliest cycles of ``row`` and of the first weight
        leaves = [0, 0]  # cycles after those in which a row left the RAMs
        totals = [-AHEAD, -AHEAD]
        for row in range(packets or self.count):
            assert cycles["row"][row] == begin, f"row {row}: {cycles['row'][row]}, not {begin}"
            first = begin + timing.delay("from row to the first score")
            last = 0
            for name in ("window_score", "past_score"):
                got = of_row(cycles, name, row)
                assert got == list(range(first, first + len(got))), f"{name} of row {row}: {got}"
                last = max(last, *got, 0)
            weights = of_row(cycles, "window_weight", row) + of_row(cycles, "past_weight", row)
            # Two rows are in flight before a total is taken.
            first = max(free, last + timing.latency, totals[row] + 1 + AHEAD)
            wanted = list(range(first, first + len(weights)))
            assert weights == wanted, f"weights of row {row}: {weights}, not {wanted}"
            free = weights[-1] + 1
            total = weights[-1] + timing.delay("from the last weight to total")
            assert cycles["total"][row] == total
            totals.append(total)
            # The RAMs have room for the next row when the row before this one has left them.
            begin = max(last + timing.delay("from the last score to row"), leaves[row + 1])
            leaves.append(weights[-1] - AHEAD + 1)


contract = Rows(WORDS, packets=ENDS, cuts=range(1, 200, 13))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def a_total_that_waits(dut):
    """Two rows go through while no total is taken, and no weight of the third."""
    bench = await Bench.started(dut, sources=contract.sources, sinks=contract.sinks)
    flow = await bench.run(
        {name: WORDS[name][: ENDS[name][3]] for name in contract.sources},
        dict.fromkeys(contract.sinks),
        p_stall={"total": 1.0, "window_weight": 0.0, "past_weight": 0.0},
        stop_at=4 * ENDS["past_score"][3] + 4 * ENDS["window_score"][3] + 100,
    )
    for name in ("window_weight", "past_weight"):
        assert flow.words[name] == WORDS[name][: ENDS[name][1]]
    await bench.reset(1)
    await contract.replay(bench, 3)
