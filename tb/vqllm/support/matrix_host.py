"""An engine of codes inside the simulator, one matrix after another, and its tests.

``params["matrices"]``: phases of the cache, one for each tile, and the words of the streams; which
bits of the results are compared. ``params["latency"]``: from the last beat to the last result.
"""

import cocotb
from cocotb.triggers import FallingEdge

from tb.bench import config, params
from tb.vqllm.support.host import CacheHost


class _Host(CacheHost):
    """Matrices whose results leave ``sink``."""

    def __init__(self, dut, sink: str, latency: int = 5, matrices=params["matrices"]):
        self.matrices, self.sink = matrices, sink
        names = tuple(name for name in self.matrices[0]["words"] if name != sink)
        # Where the core is a part, its configuration has the cache all the same.
        super().__init__(dut, names, (sink,), config.cache.axi_signature, latency)
        self.names = names

    async def begin(self) -> "_Host":
        await self.start([phase for each in self.matrices for phase in each["phases"]])
        return self

    async def matrix(self, matrix, **flow):
        words, sink = matrix["words"], self.sink
        if "exponent" in matrix:
            self.dut.exponent.value = matrix["exponent"]
        offers = {name: words[name] for name in self.names}
        found = await self.run(matrix["phases"], offers, {sink: len(words[sink])}, **flow)
        if flow.get("stop_at") is None:
            found.check(sink, words[sink], masks=matrix["masks"])
            assert int(self.dut.worst.value) == matrix["worst"]
            assert int(self.dut.bad.value) == matrix["bad"]
            assert int(self.dut.uneven.value) == matrix.get("uneven", 0)
            await self.clear()
        return found

    def idle(self, slow: str, share: float) -> dict[str, float]:
        """``p_idle`` where one stream is slow."""
        return {name: share * (name == slow) for name in (*self.names, *self.SOURCES)}

    async def clear(self) -> None:
        self.dut.clear.value = 1
        await FallingEdge(self.dut.clk)
        self.dut.clear.value = 0
        await FallingEdge(self.dut.clk)
        assert not any(self.counts().values())


def latency_test(sink: str):
    """Rows of one beat, in ``params["alone"]``: a row alone takes the latency.

    The words of a beat after its first one come on top.
    """

    @cocotb.test()
    async def latency(dut):
        matrix = params["alone"]
        host = await _Host(dut, sink, matrices=[matrix]).begin()
        found = await host.matrix(matrix, p_idle=host.idle("code", 0.95))
        times = zip(found.cycles["code"], found.cycles[sink], strict=True)
        due = params["latency"] + matrix["phases"][0]["held"] - 1
        assert min(given - taken for taken, given in times) == due

    return latency


def matrix_tests(sink: str) -> tuple:
    """random_flow, uneven_flow, late_ready, reset_in_mid_matrix, full_rate.

    Matrices with ``is_long`` take part in full_rate alone, and all in the first random_flow.
    """
    matrices = params["matrices"]
    short = [matrix for matrix in matrices if not matrix.get("is_long")]

    @cocotb.test()
    @cocotb.parametrize(
        (
            ("p_idle", "p_stall", "latency"),
            [(0.0, 0.0, 1), (0.4, 0.4, 9), (0.0, 0.8, 3), (0.8, 0.0, 30)],
        )
    )
    async def random_flow(dut, p_idle, p_stall, latency):
        host = await _Host(dut, sink, latency).begin()
        for matrix in short if p_idle + p_stall else matrices:
            await host.matrix(matrix, p_idle=p_idle, p_stall=p_stall)

    @cocotb.test()
    async def uneven_flow(dut):
        """Each stream in turn is slow."""
        for slow in (*_Host(dut, sink).names, *_Host.SOURCES, sink):
            host = await _Host(dut, sink).begin()
            stall = {name: 0.9 * (name == slow) for name in (sink, *_Host.SINKS)}
            await host.matrix(short[0], p_idle=host.idle(slow, 0.9), p_stall=stall)

    @cocotb.test()
    async def late_ready(dut):
        host = await _Host(dut, sink).begin()
        await host.matrix(short[0], p_stall=0.3, late_ready=True)

    @cocotb.test()
    async def reset_in_mid_matrix(dut):
        host = await _Host(dut, sink).begin()
        rng = host.bench.rng("cuts")
        for _ in range(6):
            await host.matrix(short[0], p_stall=0.3, stop_at=rng.randrange(3, 900))
            await host.restart()
        await host.matrix(short[0])

    @cocotb.test()
    async def full_rate(dut):
        """On chip: 1.05 x the cycles of the beats, or of a load that outlasts a tile, and the fill.

        A beat takes the cycles of its look-ups or of its groups, ``held``.
        """
        for matrix in matrices:
            host = await _Host(dut, sink, 2).begin()
            found = await host.matrix(matrix)
            if any(phase["counts"]["memory"] for phase in matrix["phases"]):
                continue
            spent = found.cycles[sink][-1] - found.cycles["code"][0]
            # A load behind a short tile takes longer than the tile.
            loads = [sum(len(load["words"]) + 4 for load in phase["loads"])
                     for phase in matrix["phases"]]  # fmt: skip
            tiles = [max(sum(phase["cycles"]), len(phase["cycles"]) * phase.get("held", 1))
                     for phase in matrix["phases"]]  # fmt: skip
            bound = loads[0] + sum(
                max(tile, load) for tile, load in zip(tiles, [*loads[1:], 0], strict=True)
            )
            assert spent <= 1.05 * bound + params["latency"], (spent, bound)

    return random_flow, uneven_flow, late_ready, reset_in_mid_matrix, full_rate
