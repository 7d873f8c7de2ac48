"""Runs inside the simulator, for senbazuru.runs.vq_tables and vq_batch: a matrix in an engine."""

import json
import os
from pathlib import Path

import cocotb

from tb.bench import Bench, config, params
from tb.vqllm.support.host import CacheHost


@cocotb.test()
async def rates(dut):
    """Cycles from the first word of any stream to the last result; writes rates.json."""
    words, sink = params["words"], params["sink"]
    offers = {name: each for name, each in words.items() if name != sink}
    takes = {sink: len(words[sink])}
    if hasattr(dut, "exponent"):
        dut.exponent.value = params["exponent"]
    if params["phases"]:
        host = CacheHost(dut, tuple(offers), (sink,), config.cache.axi_signature)
        await host.start(params["phases"])
        found = await host.run(params["phases"], offers, takes)
    else:
        bench = Bench(dut, sources=tuple(offers), sinks=(sink,))
        await bench.reset()
        found = await bench.run(offers, takes)
    found.check(sink, words[sink])
    Path(os.environ["TB_DIR"], "rates.json").write_text(json.dumps(found.cycles[sink][-1] + 1))
