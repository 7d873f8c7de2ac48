"""Runs inside the simulator, started by test_output.py: groups through MillionOutput."""

import cocotb

from tb.bench import params
from tb.contract import Contract, block_timing

WORDS, ENDS = params["words"], params["ends"]


def of_group(cycles, name, group):
    """Cycles, or words, of a stream in one group."""
    return cycles[name][ENDS[name][group - 1] if group else 0 : ENDS[name][group]]


class Groups(Contract):
    """The latest of a group's total and sums begins it; its beats come at the pace of elements."""

    def check_timing(self, flow, packets=None):
        timing, cycles = block_timing(), flow.cycles
        period = timing.delay("from total to the next, at least")
        after = timing.delay("from the last past to o, at least")
        pace, free = int(timing.interval), 0
        for group in range(packets or self.count):
            total, given = cycles["total"][group], of_group(cycles, "o", group)
            first = max(total + timing.latency, of_group(cycles, "past", group)[-1] + after)
            assert given == [first + n * pace for n in range(len(given))], f"{group}: {given}"
            assert total == free, f"total {group}: {total}, not {free}"
            free = first - timing.latency + period


contract = Groups(WORDS, packets=ENDS, cuts=range(1, 200, 19), some=12)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def sums_of_one_group_wait(dut):
    """The block takes, without a total, the past sums of one group and all of its exact sums."""
    bench = await contract.started(dut)
    offers = {name: WORDS[name] for name in ("past", "window")}
    flow = await bench.run(offers, {"o": 0}, stop_at=ENDS["past"][1] + ENDS["window"][1] + 20)
    assert flow.sent["past"] == ENDS["past"][0]
    assert flow.sent["window"] >= ENDS["window"][0]
    await contract.restart(bench)
    await contract.replay(bench, 3)


@cocotb.test()
async def exact_sums_come_late(dut):
    """No output comes before its exact sums, which come word by word."""
    bench = await contract.started(dut)
    own = {name: of_group(WORDS, name, 0) for name in WORDS}
    await bench.run({"past": own["past"], "total": own["total"]}, {"o": 0}, settle=60)
    for n, word in enumerate(own["window"]):
        given = (n + 1) * len(own["o"]) // len(own["window"])
        begin = n * len(own["o"]) // len(own["window"])
        flow = await bench.run({"window": [word]}, {"o": given - begin}, settle=60)
        flow.check("o", own["o"][begin:given])
