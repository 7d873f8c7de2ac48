"""Runs inside the simulator, for senbazuru.runs.lane_rates and .demo: jobs at full rate.

Writes rates.json: cycles and wall time of each phase. Every output and status is compared with
golden.
"""

import json
import os
import time
from pathlib import Path

import cocotb

from hdl.index.reducer import IndexReducer
from tb.bench import Bench, config, params, vectors
from tb.kllm.support.phases import load, streams, words
from tb.kllm.tb_pe_lane import SINKS, SOURCES

# Cycles from the last sum to its output: rounding, then the scaler. A lane with counters has its
# reducer before them, from the cycle in which the last bins are read.
_REDUCER = 0 if config.counter == "select" else IndexReducer.timing.latency
PIPELINE = 1 + _REDUCER + config.scaler_config.stages


@cocotb.test()
async def rates(dut):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    measured = {}
    for phase in params["phases"]:
        if f"{phase}.codebook" in vectors:
            await load(bench, phase)
        offers, takes = streams(bench, phase)
        start = time.perf_counter()
        flow = await bench.run(offers, takes)
        seconds = time.perf_counter() - start
        equal = {
            name: sum(a == b for a, b in zip(flow.words[name], words(phase, name), strict=True))
            for name in SINKS
        }
        first = min(flow.cycles["w"][0], flow.cycles["a"][0])
        measured[phase] = {
            "outputs": len(flow.words["y"]),
            "equal": equal["y"],
            "cycles": flow.cycles["y"][-1] - first + 1,
            # until the last sum, or bin, leaves its column: without the pipeline
            "reduced": flow.cycles["y"][-1] - PIPELINE - first + 1,
            "simulated": max(map(max, filter(None, flow.cycles.values()))) + 1,
            "seconds": seconds,
        }
        measured[phase]["statuses_equal"] = equal["status"] == len(flow.words["status"])
    Path(os.environ["TB_DIR"], "rates.json").write_text(json.dumps(measured))
    for phase, found in measured.items():
        assert found["equal"] == found["outputs"], f"{phase}: {found}"
        assert found["statuses_equal"], f"{phase}: a status differs"
