"""Runs inside the simulator, started by test_top_k.py: rows to ids."""

from itertools import accumulate

import cocotb

from tb.bench import config, params
from tb.contract import Followed, block_timing
from tb.kllm.support.answers import Served

CHOSEN = ("chosen",) if config.experts else ()
SINKS = ("row_request", "o", *CHOSEN, "status")
DELAY = 3  # of the memory, at full rate
DRAW = (59, 41, 9)  # cycles of kllm_draw, which its own bench asserts


class Commands(Served, Followed):
    """The choices change with each status."""

    def __init__(self, steps, table, **fields) -> None:
        self.steps = steps
        words = {name: [word for step in steps for word in step[name]] for name in SINKS}
        packets = {name: list(accumulate(len(step[name]) for step in steps)) for name in SINKS}
        super().__init__(
            words | {"command": [step["command"] for step in steps]},
            {"row_request": ("row_row", table.__getitem__)}, check=self.in_order,
            packets=packets | {"command": range(1, len(steps) + 1)}, delay=8, fastest=DELAY,
            **fields,
        )  # fmt: skip

    def begin(self, bench) -> None:
        self.done = 0

    def sample(self, bench) -> None:
        self.done += sum(1 for _ in bench.transfers(("status",)))

    def drive(self, bench) -> None:
        if config.top > 1:
            choices = self.steps[min(self.done, len(self.steps) - 1)]["choices"]
            place = int(bench.dut.chooses.value)
            bench.dut.choice.value = choices[place] if place < len(choices) else 0

    async def replay(self, bench, packets=None, **flow):
        self.begin(bench)
        return await super().replay(bench, packets, **flow)

    def in_order(self, flow, counts) -> None:
        steps = self.steps[: counts["command"]]
        given = ("o", *CHOSEN, "status")
        order = [name for step in steps for name in given for _ in step[name]]
        assert flow.order(given) == order

    def check_timing(self, flow, packets=None) -> None:
        """The first command: latency, then a row per cycle as long as they are taken."""
        first, timing = self.steps[0], block_timing()
        rows = flow.cycles["row_request"][: len(first["row_request"])]
        assert rows == list(range(timing.latency, timing.latency + len(rows)))


contract = Commands(params["program"], params["table"], some=45, cuts=range(1, 60, 3))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


def drawn(k: int) -> int:
    """Cycles from the first element that ``kllm_draw`` takes to the id."""
    few, many, last = DRAW
    return max(few, k - 1 + many) + k - 1 + last


@cocotb.test()
async def every_command_at_full_rate(dut):
    """Each row, id and status in the cycle that the timing says."""
    rate = Commands(params["rate"], params["rate_table"])
    flow = await rate.replay(await rate.started(dut))
    timing, start = block_timing(), 0
    (_, after_rows), (_, after_id), (_, between) = timing.delays
    assert between == after_rows - 1  # so that the next token's list comes at once
    at = {name: iter(flow.cycles[name]) for name in ("row_request", "row_row", "o", "status")}
    for step in params["rate"]:
        k, held, rows = step["k"], step["held"], step["rows"]
        asked = len(step["row_request"])
        wanted = [start + timing.latency + n for n in range(asked)]
        assert [next(at["row_request"]) for _ in wanted] == wanted
        # The row at hand leaves its first registers: when the list is there, and the row.
        at_list = start + timing.latency + max(held, 1) + 2 * (held > 0 and k > 1)
        moves = max(at_list, start + timing.latency + DELAY + 1)
        for token in range(asked // rows):
            last = moves - 1 + step["first"] - 1 + rows - 1  # its last row would be taken
            after = last + after_rows + k
            if step["end"]:
                due = after if k == 1 else after + 1 + drawn(k)
                assert next(at["o"]) == due, f"token {token} of k = {k}"
                after = due + after_id
            moves = after + max(held, 1) + 2 * (held > 0 and k > 1)
        assert [next(at["row_row"]) for _ in range(asked)][-1] <= last
        assert next(at["status"]) == after
        start = after + 1
