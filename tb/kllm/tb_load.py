"""Runs inside the simulator, started by test_load.py: commands between a read port and rows."""

from itertools import accumulate

from golden.words import join
from tb.bench import config, params
from tb.contract import block_timing
from tb.kllm.support.answers import Served

PROGRAM, MEMORY = params["program"], params["memory"]  # MEMORY: row: (word, error)
ANSWERS = ("read", "write", "status")


def look_up(word: int) -> list[int]:
    """A read port's words."""
    row, count = (word & ((1 << config.address_bits) - 1)) // 32, word >> config.address_bits
    held = [MEMORY[row + n] for n in range(count)]
    return [
        join((word, 256), (error, 1), (n == count - 1, 1)) for n, (word, error) in enumerate(held)
    ]


class Commands(Served):
    def check_timing(self, flow, packets=None) -> None:
        """The first command: latency to its read; a row per cycle in the cycle of its data."""
        timing, rows = block_timing(), len(PROGRAM[0]["write"])
        read, data, write = (flow.cycles[name] for name in ("read", "data", "write"))
        assert read[0] == timing.latency  # the command is offered in cycle 0
        assert write[:rows] == data[:rows]
        assert write[rows - 1] - write[0] == (rows - 1) * timing.interval
        assert flow.cycles["status"][0] == write[rows - 1] + 1


def in_order(flow, counts) -> None:
    """Read, rows, status."""
    steps = PROGRAM[: counts["command"]]
    order = [name for step in steps for name in ANSWERS for _ in step[name]]
    assert flow.order(("status", "read", "write")) == order


words = {name: [word for step in PROGRAM for word in step[name]] for name in ANSWERS}
packets = {name: list(accumulate(len(step[name]) for step in PROGRAM)) for name in ANSWERS}
contract = Commands(
    words | {"command": [step["command"] for step in PROGRAM]},
    {"read": ("data", look_up)}, delay=10, check=in_order, cuts=range(1, 60, 4),
    packets=packets | {"command": range(1, len(PROGRAM) + 1)},
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
