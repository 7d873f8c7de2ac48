"""Runs inside the simulator, started by test_entry_writer.py: rows of indices, and of integers.

An engine offers rows of one kind at a time. So each kind has the checks of tb.contract.
"""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import params
from tb.contract import Contract, block_timing


class Rows(Contract):
    """A row per cycle, to either output in the same cycle."""

    def __init__(self, kind: str):
        given = params[kind]
        self.kind, self.lasts = kind, given["last"]
        super().__init__(given["words"], packets=given["packets"])

    def check_timing(self, flow, packets=None):
        timing, rows = block_timing(), flow.cycles[self.kind]
        assert rows == [n * timing.interval for n in range(len(rows))]
        entries = [cycle + timing.latency for cycle in rows]
        assert flow.cycles["entries"] == entries
        ends = [0, *self.packets["beat"]]
        with_beat = [n for n in range(len(rows)) if ends[n + 1] > ends[n]]
        assert flow.cycles["beat"] == [entries[n] for n in with_beat]


KINDS = {kind: Rows(kind) for kind in params}
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = KINDS["index"].tests()
if "value" in KINDS:
    value_flow, value_uneven, value_late, value_rate, value_reset = KINDS["value"].tests()


@cocotb.test()
async def token_done_with_the_last_row(dut):
    for rows in KINDS.values():
        bench = await rows.started(dut)
        seen, taken = [], []

        async def watch(bench=bench, seen=seen, taken=taken):
            while True:
                await ReadOnly()
                seen.append(bool(dut.token_done.value))
                taken.append(bool(list(bench.transfers(("entries",)))))
                await FallingEdge(dut.clk)

        task = cocotb.start_soon(watch())
        await rows.replay(bench, p_idle=0.3, p_stall=0.5)
        task.cancel()
        ends = iter(rows.lasts)
        assert seen == [done and bool(next(ends)) for done in taken]
        assert next(ends, None) is None


@cocotb.test(skip=len(KINDS) < 2)
async def integers_go_first(dut):
    """A row of indices waits for every row of integers where both are offered."""
    index, value = KINDS["index"], KINDS["value"]
    bench = await index.started(dut)
    offers = {"index": index.words["index"], "value": value.words["value"]}
    entries = value.words["entries"] + index.words["entries"]
    takes = {"entries": len(entries), "beat": len(index.words["beat"])}
    flow = await bench.run(offers, takes)
    flow.check("entries", entries)
    flow.check("beat", index.words["beat"])
