"""Runs inside the simulator, started by test_load_at.py: commands, the batch, a read port, rows."""

from itertools import accumulate

import cocotb

from golden.words import join
from tb.bench import config, params
from tb.contract import Followed, block_timing
from tb.kllm.support.answers import Served

MEMORY = params["memory"]  # row: (word, error)
ANSWERS = ("read", "write", "status")


def look_up(word: int) -> list[int]:
    """A read port's words; rows beyond the memory give errors."""
    row, count = (word & ((1 << config.address_bits) - 1)) // 32, word >> config.address_bits
    held = [MEMORY.get(row + n, (row + n, True)) for n in range(count)]
    return [
        join((word, 256), (error, 1), (n == count - 1, 1)) for n, (word, error) in enumerate(held)
    ]


class Commands(Served, Followed):
    """The batch changes with each status; places that no command looks at hold anything."""

    def __init__(self, steps, **fields) -> None:
        self.steps = steps
        words = {name: [word for step in steps for word in step[name]] for name in ANSWERS}
        packets = {name: list(accumulate(len(step[name]) for step in steps)) for name in ANSWERS}
        super().__init__(
            words | {"command": [step["command"] for step in steps]},
            {"read": ("data", look_up)}, check=self.in_order,
            packets=packets | {"command": range(1, len(steps) + 1)}, **fields,
        )  # fmt: skip

    def begin(self, bench) -> None:
        self.done, self.asked = 0, (0, 0)

    def sample(self, bench) -> None:
        self.done += sum(1 for _ in bench.transfers(("status",)))

    def drive(self, bench) -> None:
        batch = self.steps[min(self.done, len(self.steps) - 1)]["batch"]
        place = int(bench.dut.index.value)
        bench.dut.entry.value = batch[place] if place < len(batch) else 1
        if getattr(config, "experts", 0):
            self.choose(bench, place)

    def choose(self, bench, place: int) -> None:
        """The choice that was requested in the cycle before; without one an id below 16."""
        choices = self.steps[min(self.done, len(self.steps) - 1)]["choices"]
        at, rank = self.asked
        held = choices[at] if at < len(choices) else []
        found = held[rank] if rank < len(held) else bench.rng("choice").getrandbits(20) << 1
        bench.dut.choice.value = found
        self.asked = place, int(bench.dut.rank.value)

    async def replay(self, bench, packets=None, **flow):
        self.begin(bench)
        return await super().replay(bench, packets, **flow)

    def check_timing(self, flow, packets=None) -> None:
        """The first command: latency to its read; a row per cycle in the cycle of its data."""
        rows = len(self.steps[0]["write"])
        read, data, write = (flow.cycles[name] for name in ("read", "data", "write"))
        assert read[0] == params["latency"]  # the command is offered in cycle 0
        assert write[:rows] == data[:rows]
        assert write[rows - 1] - write[0] == (rows - 1) * block_timing().interval
        assert flow.cycles["status"][0] == write[rows - 1] + 1

    def in_order(self, flow, counts) -> None:
        """Rows of a command are written before its status."""
        steps = self.steps[: counts["command"]]
        order = [name for step in steps for name in ("write", "status") for _ in step[name]]
        assert flow.order(("status", "write")) == order


contract = Commands(params["program"], delay=10, cuts=range(1, 60, 4))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def tokens_at_full_rate(dut):
    """A row per cycle from token to token: the memory answers 8 cycles after a request."""
    rate = Commands(params["rate"], delay=8, fastest=1)
    flow = await rate.replay(await rate.started(dut))
    at = 0
    for step in params["rate"]:
        rows = flow.cycles["write"][at : at + len(step["write"])]
        assert rows == list(range(rows[0], rows[0] + len(rows)))
        at += len(rows)
