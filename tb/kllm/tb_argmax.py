"""Runs inside the simulator, started by test_argmax.py: rows to ids."""

from itertools import accumulate

import cocotb

from tb.bench import params
from tb.contract import block_timing
from tb.kllm.support.answers import Served

TABLE = params["table"]
SINKS = ("row_request", "o", "status")


class Commands(Served):
    def __init__(self, steps, **fields) -> None:
        self.steps = steps
        words = {name: [word for step in steps for word in step[name]] for name in SINKS}
        packets = {name: list(accumulate(len(step[name]) for step in steps)) for name in SINKS}
        super().__init__(
            words | {"command": [step["command"] for step in steps]},
            {"row_request": ("row_row", TABLE.__getitem__)}, check=self.in_order,
            packets=packets | {"command": range(1, len(steps) + 1)}, **fields,
        )  # fmt: skip

    def in_order(self, flow, counts) -> None:
        steps = self.steps[: counts["command"]]
        order = [name for step in steps for name in ("o", "status") for _ in step[name]]
        assert flow.order(("o", "status")) == order

    def check_timing(self, flow, packets=None) -> None:
        """The first command: latency, then a row per cycle, and the ids in time."""
        first, timing = self.steps[0], block_timing()
        rows = flow.cycles["row_request"][: len(first["row_request"])]
        assert rows == list(range(timing.latency, timing.latency + len(rows)))
        after = flow.cycles["row_row"][len(rows) - 1] + timing.delays[0][1]
        each = timing.delay("per word of o")
        ids = [after + 1 + each * n for n in range(len(first["o"]))]
        assert flow.cycles["o"][: len(ids)] == ids
        assert flow.cycles["status"][0] == (ids[-1] + 1 if ids else after)


contract = Commands(params["program"], delay=8, cuts=range(1, 60, 3))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def every_command_at_full_rate(dut):
    """Rows of all tokens without a gap; the next command one cycle after a status."""
    rate = Commands(params["rate"], delay=8, fastest=3)
    flow = await rate.replay(await rate.started(dut))
    timing, start = block_timing(), 0
    at = {name: iter(flow.cycles[name]) for name in ("row_request", "row_row", "o", "status")}
    for step in params["rate"]:
        wanted = [start + timing.latency + n for n in range(len(step["row_request"]))]
        assert [next(at["row_request"]) for _ in wanted] == wanted
        after = [next(at["row_row"]) for _ in wanted][-1] + timing.delays[0][1]
        each = timing.delay("per word of o")
        ids = [after + 1 + each * n for n in range(len(step["o"]))]
        assert [next(at["o"]) for _ in ids] == ids
        start = next(at["status"])
        assert start == (ids[-1] + 1 if ids else after)
        start += 1
