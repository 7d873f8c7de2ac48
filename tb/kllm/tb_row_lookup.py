"""Runs inside the simulator, started by test_row_lookup.py: tables, then beats through them."""

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing


class Beats(Contract):
    """All beats of one phase, after its table."""

    def __init__(self, name: str):
        phase = params["phases"][name]
        words = {each: unpack_ints(vectors[f"{name}.{each}"]) for each in ("i", "o")}
        self.digits, self.integer = phase["digits"], phase["integer"]
        count = len(words["i"])
        packets = {
            "product": [0] * count,
            "i": range(1, count + 1),
            "o": range(self.digits, self.digits * count + 1, self.digits),
        }
        super().__init__(words | {"product": []}, packets=packets)
        self.table = unpack_ints(vectors[f"{name}.product"])

    async def load(self, bench) -> None:
        bench.dut.is_integer.value = self.integer
        flow = await bench.run({"product": self.table}, {}, settle=0)
        cycles = flow.cycles["product"]
        assert cycles == list(range(cycles[0], cycles[0] + len(cycles))), "a word waited"

    async def restart(self, bench, cycles=3) -> None:
        bench.dut.is_integer.value = self.integer
        await super().restart(bench, cycles)
        await self.load(bench)

    def check_timing(self, flow, packets=None) -> None:
        """A beat, or a digit of one, leaves in each cycle; the last digit takes the beat."""
        timing = block_timing()
        if self.digits > 1:
            assert timing.delay("cycles of a beat in integer mode") == self.digits
        given, taken = flow.cycles["o"], flow.cycles["i"]
        assert given == list(range(timing.latency, timing.latency + len(given)))
        assert taken == [end - timing.latency for end in given[self.digits - 1 :: self.digits]]


PHASES = {name: Beats(name) for name in params["phases"]}
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = PHASES["kmeans"].tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.5, 0.9])
async def new_tables(dut, p_idle, p_stall):
    """Each table in turn, after the beats of the one before: nothing of a table is left."""
    bench = PHASES["kmeans"].bench(dut)
    dut.is_integer.value = 0
    await bench.reset()
    for phase in PHASES.values():
        await phase.load(bench)
        flow = await phase.replay(bench, p_idle=p_idle, p_stall=p_stall)
        if not p_idle and not p_stall:
            phase.check_timing(flow)


@cocotb.test()
async def late_tables(dut):
    """A consumer that waits for valid; a reset in mid-beat of each phase."""
    bench = PHASES["kmeans"].bench(dut)
    dut.is_integer.value = 0
    await bench.reset()
    for phase in PHASES.values():
        await phase.load(bench)
        await phase.replay(bench, late_ready=True, p_stall=0.3)
        for cut in range(1, 12):
            await phase.interrupt(bench, cut, p_stall=0.5)
            await phase.restart(bench, 1)
            await bench.run({}, {})
            await phase.replay(bench, 4)
