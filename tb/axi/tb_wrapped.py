"""Runs inside the simulator, started by test_wrapped.py: streams of a wrapped block.

``params``: "sources" and "sinks", names of streams; "first", those sources that go before all
others of a phase; "phases", sent and taken in turn; "packed",
name -> (tdata fields (offset, width), offset of last or None). ``vectors`` holds the payloads of
stream NAME in phase PHASE under "PHASE.NAME".
"""

import cocotb
from cocotb.triggers import ClockCycles, with_timeout

from golden.words import unpack_ints
from tb.axi.support.buses import reset, sink, source, start_clock
from tb.bench import params, vectors


def frames(phase: str, name: str) -> list[list[int]]:
    """Packets of tdata; a stream without tlast is one."""
    fields, last = params["packed"][name]
    found, packet = [], []
    for payload in unpack_ints(vectors.get(f"{phase}.{name}", [])):
        word = at = 0
        for offset, width in fields:
            word |= (payload >> offset & (1 << width) - 1) << at
            at += width
        packet.append(word)
        if last is not None and payload >> last & 1:
            found.append(packet)
            packet = []
    return found + ([packet] if packet else [])


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.6])
async def random_flow(dut, p_idle, p_stall):
    sources = {name: source(dut, name, p_idle) for name in params["sources"]}
    sinks = {name: sink(dut, name, p_stall) for name in params["sinks"]}
    start_clock(dut)
    await reset(dut)
    for phase in params["phases"]:
        for name in sorted(sources, key=lambda name: name not in params["first"]):
            for frame in frames(phase, name):
                await sources[name].send(frame)
            if name in params["first"]:
                await with_timeout(sources[name].wait(), 10, "ms")
        for name, model in sinks.items():
            golden = frames(phase, name)
            if params["packed"][name][1] is None:
                golden = [word for frame in golden for word in frame]
                got = []
                while len(got) < len(golden):
                    got += await with_timeout(model.read(), 10, "ms")
                assert got == golden, f"phase {phase}: {name}"
                continue
            for n, frame in enumerate(golden):
                got = await with_timeout(model.recv(), 10, "ms")
                assert list(got.tdata) == frame, f"phase {phase}: {name} packet {n}"
        for model in sources.values():
            await with_timeout(model.wait(), 10, "ms")
    await ClockCycles(dut.aclk, 20)
    assert all(model.empty() for model in sinks.values())
