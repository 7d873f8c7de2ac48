"""An engine that fetches its matrices, its memory and its bench, inside the simulator."""

import cocotb

from golden.axi.format import RESP_OKAY
from tb.axi.support.memory import Ram
from tb.bench import Bench, config

SOURCES = ("x", "job", "axi__r")
SINKS = ("y", "status", "axi__ar")


class EngineHost:
    """Jobs of golden.vqllm.vectors.engine, and the memory of their images."""

    def __init__(self, dut, jobs, latency: int = 5):
        self.jobs = jobs
        self.bench = Bench(dut, sources=SOURCES, sinks=SINKS)
        signature = config.share.axi_signature
        self.ram = Ram(dut, "axi", signature, latency, self._response)
        self.task = None
        self.refused = [tuple(each) for job in jobs for each in job["refused"]]

    def _response(self, address: int) -> int:
        found = (response for low, high, response in self.refused if low <= address < high)
        return max(found, default=RESP_OKAY)

    async def start(self):
        for job in self.jobs:
            self.ram.poke(job["base"], bytes.fromhex(job["memory"]))
        await self.restart()
        return self

    async def restart(self) -> None:
        if self.task:
            self.task.cancel()
        self.ram.clear()
        await self.bench.reset()
        self.task = cocotb.start_soon(self.ram.run())

    async def run(self, jobs, **flow):
        words = {
            name: [word for job in jobs for word in job[name]]
            for name in ("x", "job", "y", "masks", "status", "status_mask")
        }
        self.ram.beats.clear()
        found = await self.bench.run(
            {"x": words["x"], "job": words["job"], "axi__r": self.ram.beats},
            {"y": len(words["y"]), "status": len(words["status"]), "axi__ar": None},
            **flow,
        )
        if flow.get("stop_at") is None:
            found.check("y", words["y"], what="row", masks=words["masks"])
            found.check("status", words["status"], what="job", masks=words["status_mask"])
        return found
