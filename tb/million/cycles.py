"""A contract that knows every cycle, and what moves plain ports, inside the simulator."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import params
from tb.contract import Contract


class Scheduled(Contract):
    """Each word of the streams in ``params["cycles"]`` moves in the cycle that they state.

    The test file computes the cycles from the block's timing.
    """

    def check_timing(self, flow, packets=None) -> None:
        for name, cycles in params["cycles"].items():
            got = flow.cycles[name]
            assert got, f"{name}: no word"
            for n, (cycle, due) in enumerate(zip(got, cycles, strict=False)):
                assert cycle == due, f"{name}: word {n} moved in cycle {cycle}, not {due}"
            assert packets is not None or len(got) == len(cycles)


class Followed(Scheduled):
    """Sees each cycle and drives the plain inputs; starts anew with each reset."""

    task = None

    def begin(self, bench) -> None:
        """After a reset, and before each run."""
        raise NotImplementedError

    def sample(self, bench) -> None:
        """Sees each cycle, when all signals are settled."""
        raise NotImplementedError

    def drive(self, bench) -> None:
        """Drives the inputs at the start of each cycle."""
        raise NotImplementedError

    async def restart(self, bench, cycles=3) -> None:
        if self.task is not None:
            self.task.cancel()
        await super().restart(bench, cycles)
        self.begin(bench)
        self.drive(bench)
        self.task = cocotb.start_soon(self._follow(bench))

    async def _follow(self, bench) -> None:
        while True:
            await ReadOnly()
            self.sample(bench)
            await FallingEdge(bench.dut.clk)
            self.drive(bench)
