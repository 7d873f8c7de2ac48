"""Runs inside the simulator, started by senbazuru.runs: jobs of an engine, each alone.

``params``: "jobs" of golden.vqllm.vectors.engine, and the "latency" of memory. Writes to
replay.json the cycles of each job, its counters, and the processor time.
"""

import json
import os
import time
from pathlib import Path

import cocotb

from golden.words import layout_field
from tb.bench import config, params
from tb.vqllm.support.engine_host import EngineHost

COUNTERS = ("registers", "shared", "memory", "conflicts", "stalls")


@cocotb.test()
async def replay(dut):
    began = time.process_time()
    host = await EngineHost(dut, params["jobs"], params["latency"]).start()
    found, total = [], 0
    for job in params["jobs"]:
        flow = await host.run([job])
        (status,) = flow.words["status"]
        first = flow.cycles["job"][0]
        counts = {name: layout_field(config.status_layout, status, name) for name in COUNTERS}
        found.append({
            "cycles": flow.cycles["y"][-1] - first, "first": flow.cycles["y"][0] - first,
            "words": len(flow.cycles["axi__r"]), **counts,
        })  # fmt: skip
        total += flow.cycles["status"][0]
    simulated = {"cycles": total, "seconds": time.process_time() - began}
    text = json.dumps({"jobs": found, "simulated": simulated})
    Path(os.environ["TB_DIR"], "replay.json").write_text(text)
