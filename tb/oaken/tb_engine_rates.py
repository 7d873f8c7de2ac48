"""Runs inside the simulator, for senbazuru.runs.engine_rates: vectors of one length at full rate.

Writes rates.json. It holds for each phase the cycles from the first vector's last code to the last
vector's, in all and per vector. It also holds the cycles from a vector's last beat to its first
code.
"""

import json
import os
from pathlib import Path

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, params, vectors

SOURCES, SINKS = ("request", "i"), ("header", "dense", "sparse")


@cocotb.test()
async def rates(dut):
    bench = Bench(dut, sources=SOURCES, sinks=SINKS)
    await bench.reset()
    measured = {}
    for phase in params["phases"]:
        words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in (*SOURCES, *SINKS)}
        flow = await bench.run(
            {name: words[name] for name in SOURCES},
            {name: len(words[name]) for name in SINKS},
        )
        assert flow.words == {name: words[name] for name in SINKS}, phase
        count = len(words["header"])
        beats = len(words["i"]) // count
        codes = flow.cycles["dense"]
        measured[phase] = {
            "vectors": count,
            "span": codes[-1] - codes[beats - 1],
            "cycles": (codes[-1] - codes[beats - 1]) / (count - 1),
            "latency": codes[0] - flow.cycles["i"][beats - 1],
        }
        assert flow.cycles["sparse"][-1] - codes[-1] <= 4
    Path(os.environ["TB_DIR"], "rates.json").write_text(json.dumps(measured))
