"""Runs inside the simulator, started by test_readback.py: rows and slots to words."""

from itertools import accumulate

import cocotb

from hdl.kllm.slots.readback import read_slot_cycles
from tb.bench import config, params
from tb.contract import Followed, block_timing
from tb.kllm.support.answers import Served

TABLES = params["tables"]
REQUESTS = {
    "row_request": ("row_row", (16,)),
    "slot_slot": ("slot_descriptor", (8,)),
    "slot_entry_request": ("slot_entries", (8, 10)),
    "slot_outlier_request": ("slot_outlier", (8, 14)),
}
CHOSEN = ("chosen",) if config.has_experts else ()
SINKS = (*REQUESTS, "o", *CHOSEN, "status")


def look_up(answer, fields):
    def word_at(word):
        place = []
        for bits in fields:
            place.append(word & ((1 << bits) - 1))
            word >>= bits
        return TABLES[answer][tuple(place)]

    return word_at


class Commands(Served, Followed):
    """The batch stays: the engine of TOP_K has a bench of its own."""

    def __init__(self, steps) -> None:
        self.steps = steps
        words = {name: [word for step in steps for word in step[name]] for name in SINKS}
        packets = {name: list(accumulate(len(step[name]) for step in steps)) for name in SINKS}
        super().__init__(
            words | {"command": [step["command"] for step in steps]},
            {name: (given[0], look_up(*given)) for name, given in REQUESTS.items()},
            packets=packets | {"command": range(1, len(steps) + 1)},
            delay=8, check=self.in_order, cuts=range(2, 90, 7),
        )  # fmt: skip

    def begin(self, bench) -> None:
        pass

    def sample(self, bench) -> None:
        pass

    def drive(self, bench) -> None:
        if config.has_choices:
            place = int(bench.dut.chooses.value)
            bench.dut.choice.value = params["choices"][min(place, config.batch - 1)]

    def in_order(self, flow, counts) -> None:
        steps = self.steps[: counts["command"]]
        given = ("o", *CHOSEN, "status")
        order = [name for step in steps for name in given for _ in step[name]]
        assert flow.order(given) == order

    def check_timing(self, flow, packets=None) -> None:
        assert flow.cycles["row_request"][0] == block_timing().latency


contract = Commands(params["program"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def rows_at_full_rate(dut):
    """A word per cycle from the first one on, though the memory takes up to 8 cycles."""
    rows = Commands(params["rows"])
    flow = await rows.replay(await rows.started(dut), p_stall=0.0)
    rows.check_timing(flow)
    cycles = flow.cycles["o"]
    assert len(cycles) >= 64
    assert flow.cycles["row_row"] == cycles[7::8]
    interval = block_timing().interval
    assert cycles == [cycles[0] + int(interval * n) for n in range(len(cycles))]


@cocotb.test()
async def slots_at_full_rate(dut):
    """Every READ_SLOT takes the cycles that golden states, from a memory without stalls."""
    slots = Commands(params["slots"])
    flow = await slots.replay(await slots.started(dut))
    begin, ends = 0, []
    for length, outliers in params["slot_sizes"]:
        ends.append(begin + read_slot_cycles(length, outliers))
        begin = ends[-1] + 1
    assert flow.cycles["status"] == ends
