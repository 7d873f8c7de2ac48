"""Inside the simulator: a packed layer on KllmAccelerator, part by part, the host between them."""

import json
import os
from pathlib import Path

import cocotb

from tb.bench import config, params
from tb.kllm.support.host import Host
from tb.kllm.support.reports import compare


@cocotb.test()
async def layer(dut):
    """Every status and every word read back; writes the cycle of each status to layer.json."""
    host = Host(dut, config)
    await host.reset()
    host.data.data = bytearray(params["data"])
    for memory, data in zip(host.weights, params["ports"], strict=True):
        memory.data = bytearray(data)
    measured = []
    for part in params["parts"]:
        for memory, words in zip((host.data, *host.weights), part["append"], strict=True):
            for address, word in words:
                first = address * memory.word_bytes
                memory.data[first : first + memory.word_bytes] = word.to_bytes(
                    memory.word_bytes, "little"
                )
        before = [memory.words for memory in host.weights]
        got, taken = await host.run(
            part["words"], len(part["results"]), len(part["readback"]),
            latency=params["latency"], limit=1_000_000,
        )  # fmt: skip
        compare(got, taken, part["results"], part["readback"])
        measured.append(
            {
                "reports": [[report.tag, report.unit, report.cycle] for report in got],
                "words": [
                    memory.words - was for memory, was in zip(host.weights, before, strict=True)
                ],
                "readback": len(taken),
            }
        )
    Path(os.environ["TB_DIR"], "layer.json").write_text(json.dumps(measured))
