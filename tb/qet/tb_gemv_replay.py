"""Runs inside the simulator, started by senbazuru.runs: jobs of QetDequantGemv, each alone.

``params``: "jobs" of golden.qet.vectors.gemv, and the "latency" of memory. Writes to replay.json
the cycles of each job, the words of its codebooks and of its rows, and the processor time.
"""

import json
import os
import time
from pathlib import Path

import cocotb

from golden.words import layout_field
from tb.bench import config, params
from tb.vqllm.support.engine_host import EngineHost


@cocotb.test()
async def replay(dut):
    began = time.process_time()
    host = await EngineHost(dut, params["jobs"], params["latency"]).start()
    ar = config.share.axi_signature.members["ar"].signature.members["payload"].shape
    found, total = [], 0
    for job in params["jobs"]:
        flow = await host.run([job])
        codes = layout_field(config.job_layout, job["job"][0], "codes")
        words = {"books": 0, "codes": 0}
        for request in flow.words["axi__ar"]:
            which = "books" if layout_field(ar, request, "addr") < codes else "codes"
            words[which] += layout_field(ar, request, "len") + 1
        found.append({"cycles": flow.cycles["y"][-1] - flow.cycles["job"][0], **words})
        total += flow.cycles["status"][0]
    simulated = {"cycles": total, "seconds": time.process_time() - began}
    text = json.dumps({"jobs": found, "simulated": simulated})
    Path(os.environ["TB_DIR"], "replay.json").write_text(text)
