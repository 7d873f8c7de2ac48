"""Runs inside the simulator, started by senbazuru.runs: matrices through QetDecoder, at full rate.

``params["packets"]``: rows after each matrix. Writes to replay.json the cycles from the first row
of each matrix to its last words, and the processor time.
"""

import time

import cocotb

from golden.words import unpack_ints
from tb.bench import Bench, interface, vectors
from tb.qet.support.replay import save_replay


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
    simulated = {"cycles": flow.cycles["o"][-1], "seconds": time.process_time() - began}
    save_replay(flow.cycles["row"], flow.cycles["o"], simulated)
