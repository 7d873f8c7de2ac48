"""Runs inside the simulator, started by senbazuru.runs: scripts of requests, and when they ended.

Leaves ``cycles.json`` in the run's folder: for each script the cycles from its first request to
each status. Every output and status is compared with golden's. A script may have "reads", the
images that its reads of memory make up.
"""

import json
import os
from pathlib import Path

import cocotb

from tb.axi.support.reads import check_reads
from tb.bench import params
from tb.vqllm.tb_attention import Host

SCRIPTS = params["scripts"]


@cocotb.test()
async def scripts(dut):
    cycles = []
    for script in SCRIPTS:
        host = await Host(dut, script, params["latency"]).start()
        ends = []
        for phase in script["phases"]:
            found = await host.phase(phase)
            first = found.cycles["request"][0]
            ends += [cycle - first for cycle in found.cycles["status"]]
        cycles.append(ends)
        if "reads" in script:
            bursts = [(at, words) for _, at, words in host.ram.requests]
            check_reads(host.ram, bursts, script["reads"])
    Path(os.environ["TB_DIR"], "cycles.json").write_text(json.dumps(cycles))
