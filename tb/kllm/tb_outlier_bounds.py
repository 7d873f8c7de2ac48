"""Runs inside the simulator, started by test_outlier_bounds.py: pops of tokens, their bounds."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, params
from tb.contract import Contract, block_timing
from tb.kllm.support.cared import check_cared

POPS, ENDS = ("pop_max", "pop_min"), params["packets"]


class Trees(Bench):
    """Sends as the trees do: the pops of a token, its ``done``, then the pops of the next one."""

    async def run(self, offers, takes, **flow):
        live = {name: [] for name in self.sources}
        if offers:
            self._add_pops(offers, live, 0)
        task = cocotb.start_soon(self._feed(offers, live))
        try:
            return await super().run(live, takes, **flow)
        finally:
            task.cancel()

    def _add_pops(self, offers, live, token: int) -> None:
        for name in POPS:
            first = ENDS[name][token - 1] if token else 0
            live[name] += offers[name][first : ENDS[name][token]]

    async def _feed(self, offers, live) -> None:
        moved, tokens = dict.fromkeys(self.sources, 0), len(offers.get("done", ()))
        token = 0
        while token < tokens:
            if all(moved[name] == ENDS[name][token] for name in POPS):
                if len(live["done"]) == token:
                    live["done"].append(offers["done"][token])
                elif moved["done"] == token + 1:
                    token += 1
                    if token < tokens:
                        self._add_pops(offers, live, token)
                        continue
            await ReadOnly()
            for name in self.sources:
                moved[name] += len(list(self.transfers((name,))))
            await FallingEdge(self.dut.clk)


class Bounds(Contract):
    def bench(self, dut) -> Bench:
        return Trees(dut, sources=self.sources, sinks=self.sinks)

    async def replay(self, bench, packets=None, **flow):
        packets = self.count if packets is None else packets
        offers = {n: self.words[n][: self.packets[n][packets - 1]] for n in self.sources}
        result = await bench.run(offers, {"o": packets}, **flow)
        check_cared("o", result.words["o"], self.words["o"][:packets])
        return result

    def check_timing(self, flow, packets=None) -> None:
        """Pops in every cycle, ``o`` after ``done``."""
        timing = block_timing()
        assert flow.cycles["o"] == [cycle + timing.latency for cycle in flow.cycles["done"]]
        for name in POPS:
            for token in range(len(flow.cycles["done"])):
                first = ENDS[name][token - 1] if token else 0
                taken = flow.cycles[name][first : ENDS[name][token]]
                assert taken == [taken[0] + n * timing.interval for n in range(len(taken))]


contract = Bounds(params["words"], packets=params["packets"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
