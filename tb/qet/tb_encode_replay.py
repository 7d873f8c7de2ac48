"""Runs inside the simulator, started by senbazuru.runs: matrices through QetEncoder, at full rate.

All ready signals of the encoder depend on registers alone. So one look per cycle, after the falling
edge, says what the next rising edge moves. ``params["packets"]``: rows after each matrix. Writes
to replay.json the cycles from the first row of each matrix to its last codes, and the time.
"""

import time

import cocotb
from cocotb.triggers import FallingEdge

from golden.words import unpack_ints
from tb.bench import Bench, interface, vectors
from tb.qet.support.replay import save_replay
from tb.simulate.ports import stream_port

LIMIT = 50_000  # cycles without a row

SOURCES = ("info", "load", "x")
SINKS = ("verdict", "o")


@cocotb.test()
async def replay(dut):
    began = time.process_time()
    bench = Bench(dut, sources=interface["sources"], sinks=interface["sinks"])
    await bench.reset()
    port = {name: stream_port(dut, name) for name in (*SOURCES, *SINKS)}
    words = {name: unpack_ints(vectors[name]) for name in port}
    at = dict.fromkeys(port, 0)
    moved = dict.fromkeys(SOURCES, True)  # the next word is to be offered
    cycles: dict[str, list[int]] = {"x": [], "o": []}
    cycle = waited = 0
    for name in SINKS:
        port[name][2].put(1)
    while at["o"] < len(words["o"]):
        for name in SOURCES:
            payload, valid, ready = port[name]
            if moved[name]:
                moved[name] = False
                if at[name] < len(words[name]):
                    payload.put(words[name][at[name]])
                    valid.put(1)
                else:
                    valid.put(0)
            if at[name] < len(words[name]) and ready.get():
                at[name] += 1
                moved[name] = True
                if name == "x":
                    cycles["x"].append(cycle)
        waited += 1
        for name in SINKS:
            payload, valid, _ready = port[name]
            if valid.get():
                n, got = at[name], payload.get()
                assert n < len(words[name]), f"{name}: a word beyond the expected {n}"
                assert got == words[name][n], (
                    f"{name}: word {n} is {got:#x}, not {words[name][n]:#x}"
                )
                at[name] += 1
                if name == "o":
                    cycles["o"].append(cycle)
                    waited = 0
        assert waited < LIMIT, f"no row in {LIMIT} cycles: {at}"
        await FallingEdge(dut.clk)
        cycle += 1
    assert at == {name: len(words[name]) for name in port}, at
    simulated = {"cycles": cycle, "seconds": time.process_time() - began}
    save_replay(cycles["x"], cycles["o"], simulated)
