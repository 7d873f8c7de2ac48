"""Runs inside the simulator, started by test_gemv_core.py: a matrix, its vectors, and a memory.

``params["matrices"]``: phases of the cache, one for each tile, and the words of the streams.
"""

import cocotb
from cocotb.triggers import FallingEdge

from tb.bench import config, params
from tb.vqllm.support.host import CacheHost

MATRICES = params["matrices"]
STREAMS = tuple(MATRICES[0]["words"])
SOURCES = tuple(name for name in STREAMS if name != "sum")


class Host(CacheHost):
    """Matrices one after another."""

    def __init__(self, dut, latency: int = 5):
        super().__init__(dut, SOURCES, ("sum",), config.cache.axi_signature, latency)

    async def start(self):
        return await super().start([phase for each in MATRICES for phase in each["phases"]])

    async def matrix(self, matrix, **flow):
        words = matrix["words"]
        offers = {name: words[name] for name in SOURCES}
        found = await self.run(matrix["phases"], offers, {"sum": len(words["sum"])}, **flow)
        if flow.get("stop_at") is None:
            found.check("sum", words["sum"], masks=matrix["masks"])
            assert int(self.dut.worst.value) == matrix["worst"]
            assert int(self.dut.bad.value) == matrix["bad"]
            await self.clear()
        return found

    async def clear(self) -> None:
        self.dut.clear.value = 1
        await FallingEdge(self.dut.clk)
        self.dut.clear.value = 0
        await FallingEdge(self.dut.clk)
        assert not any(self.counts().values())


@cocotb.test()
@cocotb.parametrize(
    (
        ("p_idle", "p_stall", "latency"),
        [(0.0, 0.0, 1), (0.4, 0.4, 9), (0.0, 0.8, 3), (0.8, 0.0, 30)],
    )
)
async def random_flow(dut, p_idle, p_stall, latency):
    host = await Host(dut, latency).start()
    for matrix in MATRICES:
        await host.matrix(matrix, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def uneven_flow(dut):
    """Each stream in turn is slow."""
    for slow in (*SOURCES, *Host.SOURCES, "sum"):
        host = await Host(dut).start()
        idle = {name: 0.9 * (name == slow) for name in (*SOURCES, *Host.SOURCES)}
        stall = {name: 0.9 * (name == slow) for name in ("sum", *Host.SINKS)}
        await host.matrix(MATRICES[0], p_idle=idle, p_stall=stall)


@cocotb.test()
async def late_ready(dut):
    host = await Host(dut).start()
    await host.matrix(MATRICES[0], p_stall=0.3, late_ready=True)


@cocotb.test()
async def reset_in_mid_matrix(dut):
    host = await Host(dut).start()
    rng = host.bench.rng("cuts")
    for _ in range(6):
        await host.matrix(MATRICES[0], p_stall=0.3, stop_at=rng.randrange(3, 900))
        await host.restart()
    await host.matrix(MATRICES[0])


@cocotb.test()
async def full_rate(dut):
    """On chip: 1.05 x the cycles of the beats, or of a load that outlasts a tile, and the fill."""
    for matrix in MATRICES:
        host = await Host(dut, 2).start()
        found = await host.matrix(matrix)
        if any(phase["counts"]["memory"] for phase in matrix["phases"]):
            continue
        taken = found.cycles["code"]
        spent = found.cycles["sum"][-1] - taken[0]
        # A load behind a short tile takes longer than the tile.
        loads = [len(phase["loads"][0]["words"]) + 4 for phase in matrix["phases"]]
        tiles = [sum(phase["cycles"]) for phase in matrix["phases"]]
        bound = loads[0] + sum(
            max(tile, load) for tile, load in zip(tiles, [*loads[1:], 0], strict=True)
        )
        assert spent <= 1.05 * bound + params["latency"], (spent, bound)
