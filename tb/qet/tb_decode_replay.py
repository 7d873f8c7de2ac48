"""Runs inside the simulator, started by tb.runs: matrices through QetDecoder, at full rate.

``params["packets"]``: rows after each matrix. Writes to replay.json the cycles from the first row
of each matrix to its last words, and the processor time.
"""

import json
import os
import time
from pathlib import Path

import cocotb

from tb.bench import Bench, interface, params, vectors
from tb.words import unpack_ints


@cocotb.test()
async def replay(dut):
    began = time.process_time()
    bench = Bench(dut, sources=interface["sources"], sinks=interface["sinks"])
    await bench.reset()
    words = {name: unpack_ints(vectors[name]) for name in (*bench.sources, *bench.sinks)}
    offers = {name: words[name] for name in bench.sources}
    flow = await bench.run(offers, {name: len(words[name]) for name in bench.sinks})
    for name in bench.sinks:
        flow.check(name, words[name])
    found, first = [], 0
    for end in params["packets"]:
        cycles = flow.cycles["o"][end - 1] - flow.cycles["row"][first]
        found.append({"cycles": cycles, "rows": end - first})
        first = end
    simulated = {"cycles": flow.cycles["o"][-1], "seconds": time.process_time() - began}
    text = json.dumps({"matrices": found, "simulated": simulated})
    Path(os.environ["TB_DIR"], "replay.json").write_text(text)
