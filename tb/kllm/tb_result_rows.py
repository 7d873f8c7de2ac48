"""Runs inside the simulator, started by test_result_rows.py: walks, and words for their rows."""

from itertools import accumulate, chain

import cocotb
from cocotb.triggers import ReadOnly

from tb.bench import params
from tb.contract import Contract, block_timing

WALKS = params["walks"]
TIMING = block_timing()


def words_per_row(source: str) -> int:
    return TIMING.delay("per row of elements") if source == "element" else int(TIMING.interval)


class Walks(Contract):
    """All walks and all words at the same time: each word waits for its walk."""

    def __init__(self, walks) -> None:
        self.walks, words, packets = walks, {}, {}
        for name in ("walk", "i", "element", "write"):
            own = [
                [walk["walk"]] if name == "walk"
                else walk["write"] if name == "write"
                else walk["words"] if name == walk["source"] else []
                for walk in walks
            ]  # fmt: skip
            words[name] = list(chain(*own))
            packets[name] = list(accumulate(map(len, own)))
        super().__init__(words, packets=packets, idles=(0.0, 0.5, 0.9), cuts=range(1, 60, 3))

    async def replay(self, bench, packets=None, **flow):
        result = await super().replay(bench, packets, **flow)
        assert bench.dut.idle.value == 1
        return result

    def check_timing(self, flow, packets=None) -> None:
        """Checks the first walk alone: the others wait for its end."""
        source, count = self.walks[0]["source"], len(self.walks[0]["words"])
        first, row = TIMING.delay("from walk to the first word"), words_per_row(source)
        assert flow.cycles[source][:count] == list(range(first, first + count))
        ends = range(first + row - 1, first + count, row)
        assert flow.cycles["write"][: len(ends)] == [end + TIMING.latency for end in ends]


contract = Walks(WALKS)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def each_walk_at_full_rate(dut):
    bench = await contract.started(dut)
    for walk in map(Walks, zip(WALKS, strict=True)):
        walk.check_timing(await walk.replay(bench))


@cocotb.test()
async def idle_until_the_last_row_was_taken(dut):
    bench = await contract.started(dut)
    walk = WALKS[0]
    offers = {"walk": [walk["walk"]], walk["source"]: walk["words"]}
    await bench.run(offers, {"write": None}, p_stall=1.0, stop_at=200)
    await ReadOnly()
    assert bench.dut.write__valid.value == 1
    assert bench.dut.idle.value == 0


@cocotb.test()
async def words_of_the_next_row_while_a_row_waits(dut):
    """No row is taken: the words of two rows are, but for the last word of the second row."""
    bench = await contract.started(dut)
    for walk in WALKS:
        if len(walk["write"]) > 1:
            source = walk["source"]
            offers = {"walk": [walk["walk"]], source: walk["words"]}
            flow = await bench.run(offers, {"write": None}, p_stall=1.0, stop_at=60)
            assert flow.sent[source] == 2 * words_per_row(source) - 1
            await bench.reset(1)


@cocotb.test()
async def longest_walks(dut):
    await Walks(params["longest"]).replay(await contract.started(dut))
