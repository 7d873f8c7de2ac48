"""Runs inside the simulator, started by test_weight_buffer.py: beats in, replays out."""

import cocotb

from tb.bench import config, params
from tb.contract import Contract, block_timing

WORDS = tuple(f"word_{k}" for k in range(config.lane_words))


class Jobs(Contract):
    """A beat per cycle, one group after the other; replays hide the gathering.

    shape: (beats, groups, tokens) of the only job; None: there are others
    """

    def __init__(self, words, shape=None) -> None:
        self.shape = shape
        packets = {name: [len(each)] for name, each in words.items()}
        super().__init__(words, packets=packets, slow=0.9, cuts=(3, 9, 20, 41, 83))

    def check_timing(self, flow, packets=None) -> None:
        complete = max(flow.cycles[name][0] for name in WORDS)
        assert flow.cycles["w"][0] == complete + block_timing().latency
        if self.shape is None:
            return
        beats, groups, tokens = self.shape
        first, last = flow.cycles["w"][0], flow.cycles["w"][-1]
        took = last - first + 1
        handed, given = tokens * beats, tokens * config.columns
        if tokens == 1 or 2 * beats <= config.buffer_beats:
            # Every stage at one per cycle: the busiest sets the pace.
            pace = max(handed, given, beats + config.scale_beats)
            assert took <= groups * pace + config.columns, (took, groups, pace)
        else:
            # A group as long as the buffer comes in while the last replay makes room.
            assert took <= groups * max(handed, given) + 4 * groups + config.columns, took
        scales = flow.cycles["s_b"]
        assert scales[given - 1] - scales[0] + 1 <= max(handed, given) + 4


contract = Jobs(params["words"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def one_job_at_full_rate(dut):
    bench = await contract.started(dut)
    for (*shape, _), words in params["rates"]:
        jobs = Jobs(words, shape)
        jobs.check_timing(await jobs.replay(bench))


@cocotb.test()
async def long_groups(dut):
    await Jobs(params["long"]).replay(await contract.started(dut))


@cocotb.test()
async def done_is_last(dut):
    """``done`` comes after the final beat and the final scale of its job."""
    bench = await contract.started(dut)
    for (beats, groups, tokens, _), words in params["rates"]:
        for slow in ("w", "s_b"):
            stall = dict.fromkeys(bench.sinks, 0.0) | {slow: 0.8}
            flow = await Jobs(words).replay(bench, p_stall=stall)
            final = max(flow.cycles["w"][-1], flow.cycles["s_b"][-1])
            assert flow.cycles["done"] == [final + 1]
        assert len(flow.cycles["w"]) == beats * groups * tokens


@cocotb.test()
async def weights_wait_at_most_for_scales(dut):
    """Weights run ahead of stalled scales by 6 replays and no further."""
    bench = await contract.started(dut)
    words = params["words"]
    flow = await bench.run(
        {name: words[name] for name in bench.sources},
        {name: len(words[name]) for name in bench.sinks},
        p_stall={"w": 0.0, "s_b": 1.1, "done": 0.0}, stop_at=400,
    )  # fmt: skip
    assert flow.words["w"] == words["w"][: len(flow.words["w"])]
    assert flow.sent["replay"] <= 7 + 2
