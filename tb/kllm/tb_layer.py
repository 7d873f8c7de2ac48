"""Runs inside the simulator: a recorded layer on KllmAccelerator, part by part."""

import json
import os
import time
from pathlib import Path

import cocotb

from tb.bench import config, params
from tb.kllm.support.host import BATCH, Host
from tb.kllm.support.reports import compare


@cocotb.test()
async def layer(dut):
    """Every status, every word read back, and at the end every row and every slot.

    Programs of products alone come without a final state: their rows are read back in the parts.
    Writes the cycle of each status to layer.json, and how many cycles took how much processor time.
    """
    began = time.process_time()
    host = Host(dut, config)
    await host.reset()
    state, latency = params.get("state"), params["latency"]
    if state:
        host.data.data = bytearray(state["rows"])
        (loaded,), _ = await host.run(state["fill"], 1, latency=latency)
        assert not loaded.status
        await host.reset()  # keeps the memories
    if params.get("requests"):  # of the cache, which the reset before has emptied
        answers = await host.request([words for words, _ in params["requests"]])
        assert sorted(answers) == sorted(answer for _, answer in params["requests"])
    host.data.data = bytearray(params["data"])
    for memory, data in zip(host.weights, params["ports"], strict=True):
        memory.data = bytearray(data)
    measured = []
    for part in params["parts"]:
        before = [memory.words for memory in host.weights]
        if part.get("batch"):
            await host.run(part["batch"], to=BATCH, latency=latency)
        got, taken = await host.run(
            part["words"], len(part["results"]), len(part["readback"]),
            latency=latency,
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
    if state:
        got, taken = await host.run(
            state["words"], len(state["results"]), len(state["readback"]), latency=latency
        )
        compare(got, taken, state["results"], state["readback"])
    simulated = {"cycles": host.cycle, "seconds": time.process_time() - began}
    made = {"parts": measured, "simulated": simulated}
    Path(os.environ["TB_DIR"], "layer.json").write_text(json.dumps(made))
