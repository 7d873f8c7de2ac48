"""Runs inside the simulator, started by test_attention.py: attends, requests, and a memory.

``params``: "scripts", phases by name as golden.oaken.vectors.attention makes them. Addresses of the
scripts begin at 0, those of the memory at any base.
"""

import cocotb
from cocotb.triggers import FallingEdge

from golden.paging.format import Op, Status
from hdl.paging.layouts import STATUS_LAYOUT
from tb.axi.support.host import PagedRamHost
from tb.bench import config, params
from tb.paging.support.statuses import StatusesToCome

SOURCES = ("request", "kv", "attend", "q", "axi__r", "axi__b")
SINKS = ("o", "status", "attended", "axi__ar", "axi__aw", "axi__w")
MEMORY = {"axi__ar": None, "axi__aw": None, "axi__w": None}
SCRIPTS = params["scripts"]


class Host(PagedRamHost):
    """Block, memory and bench together."""

    def __init__(self, dut, name: str, latency: int = 5):
        super().__init__(dut, SOURCES, SINKS, config.engine.mmu, name, latency=latency)

    async def phase(self, phase, **flow):
        """One phase; its statuses and words, then an idle block with golden's free pages."""
        requests, attends = phase["requests"], phase["attends"]
        self.refuse(phase["faults"])
        for address, byte in phase["pokes"]:
            self.ram.poke(address + self.base, bytes([byte]))
        self.ram.beats, self.ram.answers = [], []
        o = [word for attend in attends for word in attend["o"]]
        result = await self.bench.run(
            {
                "request": [request["payload"] for request in requests],
                "kv": [beat for request in requests for beat in request["kv"]],
                "attend": [attend["payload"] for attend in attends],
                "q": [word for attend in attends for word in attend["q"]],
                "axi__r": self.ram.beats,
                "axi__b": self.ram.answers,
            },
            {"o": len(o), "status": len(requests), "attended": len(attends), **MEMORY},
            **flow,
        )
        if "stop_at" in flow:
            return result
        expected = StatusesToCome(requests, STATUS_LAYOUT, Op, Status)
        for word in result.words["status"]:
            expected.take(word)
        result.check("attended", [attend["attended"] for attend in attends], what="attend")
        result.check("o", o)
        for _ in range(8 * (config.cache.streams + config.cache.pages)):  # tables after a reset
            if self.dut.idle.value == 1:
                break
            await FallingEdge(self.dut.clk)
        assert self.dut.idle.value == 1
        assert int(self.dut.free_pages.value) == phase["free_pages"]
        self.ram.requests.clear()
        return result

    async def script(self, name: str, **flow) -> list:
        return [await self.phase(phase, **flow) for phase in SCRIPTS[name]]


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [
            (0.0, 0.0, 1),
            (0.3, 0.3, 9),
            (0.0, {"o": 0.9, "status": 0.5, "attended": 0.5, "axi__ar": 0.0, "axi__aw": 0.8,
                   "axi__w": 0.5}, 40),
        ],
    )
)  # fmt: skip
async def random_script(dut, p_idle, p_stall, latency):
    """Runs of attends beside APPENDs, right and wrong."""
    host = await Host(dut, f"random_script {p_stall}", latency).start()
    await host.script("random", p_idle=p_idle, p_stall=p_stall)
