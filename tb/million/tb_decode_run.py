"""Runs inside the simulator, started by senbazuru.runs.vq_attention: jobs on MillionDecodeEngine.

``params``: "words" of each stream. Leaves ``cycles.json`` in the run's folder: by side, the cycle
in which each job gives its last word. Every score, sum and end is compared with golden's.
"""

import json
import os
from pathlib import Path

import cocotb

from tb.bench import Bench, interface, params

WORDS = params["words"]
LASTS = {"k": "k_score", "v": "v_sum"}  # what a job gives last


@cocotb.test()
async def jobs(dut):
    sources, sinks = interface["sources"], interface["sinks"]
    bench = await Bench.started(dut, sources=sources, sinks=sinks)
    found = await bench.run(
        {name: WORDS[name] for name in sources}, {name: len(WORDS[name]) for name in sinks}
    )
    for name in sinks:
        found.check(name, WORDS[name])
    ends = {}
    for side, name in LASTS.items():
        each = len(WORDS[name]) // len(WORDS[f"{side}_job"])
        ends[side] = found.cycles[name][each - 1 :: each]
    Path(os.environ["TB_DIR"], "cycles.json").write_text(json.dumps(ends))
