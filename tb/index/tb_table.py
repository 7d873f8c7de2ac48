"""Runs inside the simulator, started by test_table.py: tables, then rows through them."""

from itertools import accumulate, pairwise

import cocotb

from golden.index.timing import table_row
from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing

OUTLIERS = params["outliers"]  # of each row


class Rows(Contract):
    """All rows of one phase, after its table."""

    def __init__(self, phase: int):
        count = len(OUTLIERS)
        words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in ("i", "outlier", "o")}
        packets = {
            "table": [0] * count,
            "i": range(1, count + 1),
            "outlier": list(accumulate(OUTLIERS)),
            "o": range(1, count + 1),
        }
        super().__init__(words | {"table": []}, packets=packets, cuts=range(1, 20))
        self.table = unpack_ints(vectors[f"{phase}.table"])

    async def load(self, bench, words=None) -> None:
        await bench.run({"table": self.table[:words]}, {}, settle=0)

    async def restart(self, bench, cycles=3) -> None:
        await super().restart(bench, cycles)
        await self.load(bench)

    def check_timing(self, flow, packets=None) -> None:
        """A row takes max(16 / width, outliers) cycles, and the next one begins at once."""
        timing, start = block_timing(), flow.cycles[block_timing().start]
        given = flow.cycles[timing.end]
        taken = [table_row(config.width, 16, outliers) for outliers in OUTLIERS]
        assert {timing.latency, timing.latency_max} == {min(taken), max(taken)}
        assert timing.interval == min(taken)
        assert given == list(accumulate(taken))[: len(given)]
        assert [end - begin for begin, end in zip(start, given, strict=True)] == taken[: len(given)]
        assert all(then == end for (_, then), end in zip(pairwise(start), given, strict=False))


PHASES = [Rows(phase) for phase in range(params["phases"])]
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = PHASES[0].tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def new_tables(dut, p_idle, p_stall):
    """Further tables, each after the rows of the one before."""
    bench = PHASES[0].bench(dut)
    await bench.reset()
    for phase in PHASES:
        await phase.load(bench)
        await phase.replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_words(dut):
    """One source much slower than the others; a consumer that waits for valid."""
    bench = PHASES[0].bench(dut)
    await PHASES[0].restart(bench)
    for slow in ("i", "outlier"):
        idle = {name: 0.9 * (name == slow) for name in bench.sources}
        await PHASES[0].replay(bench, p_idle=idle, late_ready=True)


@cocotb.test()
async def reset_in_mid_table(dut):
    """A table that a reset cut begins anew; rows in flight are forgotten."""
    rows = PHASES[0]
    bench = rows.bench(dut)
    await bench.reset()
    for cut in range(1, 20):
        await rows.load(bench, cut % 3)
        offers = {name: rows.words[name] for name in ("i", "outlier")}
        await bench.run(offers, {"o": len(OUTLIERS)}, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        await bench.run({}, {})
        await PHASES[1].load(bench)
        await rows.load(bench)
        await rows.replay(bench, 6)
