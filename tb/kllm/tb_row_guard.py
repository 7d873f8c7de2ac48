"""Runs inside the simulator, started by test_row_guard.py: a front that moves, and requests."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.kllm.walks import Front, is_held
from tb.bench import Bench, params

FRONTS, ROWS = params["fronts"], params["rows"]
FIELDS = [Front(**each) for each in params["fields"]]
WORD = 256  # bits of a row


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.3, 0.8])
async def requests(dut, p_idle, p_stall):
    """Each cycle shows what golden says of the request and of the front."""
    bench = Bench(dut, sources=("i",), sinks=("o",))
    dut.front.value = 0
    await bench.reset()
    rng = bench.rng(f"requests {p_idle} {p_stall}")
    payload, valid, ready = bench._port["i"]
    given, shown, wanted = bench._port["o"]
    word, sent, offered, stays, held, longest = 0, 0, False, False, 0, 0
    for cycle, front in enumerate(FRONTS):
        dut.front.value = front
        if not offered and rng.random() >= p_idle:
            offered = True
            word = ROWS[cycle]
            if params["writes"]:
                word |= rng.getrandbits(WORD) << 16
            payload.value = word
        valid.value = offered
        wanted.value = takes = rng.random() >= p_stall
        await ReadOnly()
        waits = is_held(FIELDS[cycle], word & 0xFFFF) and not stays
        assert bool(shown.value) == (offered and not waits), f"cycle {cycle}: row {word & 0xFFFF}"
        assert bool(ready.value) == (takes and not waits), f"cycle {cycle}"
        held += offered and waits
        stays = offered and not waits and not takes
        longest += stays and is_held(FIELDS[cycle], word & 0xFFFF)
        if shown.value:
            assert int(given.value) == word
        if shown.value and takes:
            offered, sent = False, sent + 1
        await FallingEdge(dut.clk)
    assert sent > 100
    assert held > 50
    assert longest or p_stall < 0.8, "no offered request met a front"
