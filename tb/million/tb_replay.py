"""Runs inside the simulator: parts of a script on MillionAttention, word for word.

``params``: "parts" of tb.million.support.replay, "base", and the "latency" of memory, of which a
part may have its own. A part may have "reads", the images that its reads of memory make up. Writes
to replay.json the cycles of requests and statuses, and the processor time.
"""

import json
import os
import time
from pathlib import Path

import cocotb

from golden.words import layout_field
from hdl.million.layouts import STATUS_LAYOUT
from tb.axi.support.host import RamHost
from tb.axi.support.reads import check_reads
from tb.bench import config, params
from tb.million.support.host import Expected, silence

SOURCES = ("request", "kv", "query", "codebook", "restored", "axi__r", "axi__b")
SINKS = ("o", "status", "axi__ar", "axi__aw", "axi__w")
MEMORY = dict.fromkeys(("axi__ar", "axi__aw", "axi__w"))
QUIET = 64  # cycles between looks whether a token is being encoded


class Host(RamHost):
    """Block and memory. A part's cycles begin with its first request."""

    def __init__(self, dut):
        super().__init__(
            dut, SOURCES, SINKS, config.mmu.axi_signature, params["base"], latency=params["latency"]
        )
        self.cycles = 0
        self.reads: list[tuple[int, int]] = []  # address and words of each burst of the part

    async def _run(self, offers, takes, **options):
        ram = self.ram
        flow = await self.bench.run(
            {**offers, "axi__r": ram.beats, "axi__b": ram.answers}, {**takes, **MEMORY}, **options
        )
        del ram.beats[: flow.sent["axi__r"]], ram.answers[: flow.sent["axi__b"]]
        ram.writes.clear()
        self.reads += [(at, words) for channel, at, words in ram.requests if channel == "ar"]
        ram.requests.clear()
        return flow

    async def part(self, part) -> dict[str, list]:
        """requests: the cycle in which each is taken; statuses: (op, cycle) of each."""
        self.ram.latency = part.get("latency", params["latency"])
        self.reads.clear()
        expected = Expected(part)
        takes = {"o": len(part["o"]), "status": len(part["requests"])}
        flow = await self._run(part["inputs"], takes, silence=silence(config))
        expected.take(flow)
        assert expected.is_empty
        statuses = flow.words["status"]
        ops = [layout_field(STATUS_LAYOUT, word, "op") for word in statuses]
        self.cycles += max(max(cycles, default=0) for cycles in flow.cycles.values())
        while not self.dut.idle.value:
            await self._run({}, {}, stop_at=QUIET)
            self.cycles += QUIET
        if "reads" in part:
            check_reads(self.ram, self.reads, part["reads"])
        return {
            "requests": flow.cycles["request"],
            "statuses": list(zip(ops, flow.cycles["status"], strict=True)),
        }


@cocotb.test()
async def replay(dut):
    began = time.process_time()
    host = Host(dut)
    await host.start()
    parts = {}
    for part in params["parts"]:
        parts[part["name"]] = await host.part(part)
    simulated = {"cycles": host.cycles, "seconds": time.process_time() - began}
    made = {"parts": parts, "simulated": simulated}
    Path(os.environ["TB_DIR"], "replay.json").write_text(json.dumps(made))
