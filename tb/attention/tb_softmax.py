"""Runs inside the simulator, started by test_softmax.py: rows one after another."""

import cocotb

from golden.attention.timing import softmax
from tb.bench import Bench, params

WORDS, COUNTS = params["words"], params["counts"]
SOURCES, SINKS = ("row", "score", "difference"), ("maximum", "total", "weight")
ROWS = len(COUNTS)
BAD = 1 << 16  # of a word of ``maximum``


async def replay(bench, rows=ROWS, **flow):
    """The first rows. The word of a bad row's maximum is unspecified."""
    good = [count for count in COUNTS[:rows] if count > 0]
    sizes = {
        "row": rows,
        "score": sum(map(abs, COUNTS[:rows])),
        "maximum": rows,
        "difference": sum(good),
        "total": len(good),
        "weight": sum(good),
    }
    offers = {name: WORDS[name][: sizes[name]] for name in SOURCES}
    result = await bench.run(offers, {name: sizes[name] for name in SINKS}, **flow)
    result.words["maximum"] = [
        want if got & want & BAD else got
        for got, want in zip(result.words["maximum"], WORDS["maximum"], strict=False)
    ]
    for name in SINKS:
        result.check(name, WORDS[name][: sizes[name]])
    return result


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await replay(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def late_ready(dut):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    await replay(bench, 20, late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """Each packet without a gap, and the latencies between the packets of a row."""
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    flow = await replay(bench)
    moved = {name: iter(flow.cycles[name]) for name in (*SOURCES, *SINKS)}

    def packet(name, begin, beats=1):
        """Cycle of the last of ``beats`` words, of which the first moves at ``begin``."""
        cycles = [next(moved[name]) for _ in range(beats)]
        assert cycles == list(range(begin, begin + beats)), f"{name}: {cycles}, not from {begin}"
        return cycles[-1]

    timing, begin = softmax(), 0
    for count in COUNTS:
        row = packet("row", begin)
        score = packet("score", row + timing.delay("from row to the first score"), abs(count))
        maximum = packet("maximum", score + timing.latency)
        begin = maximum + 1
        if count > 0:
            first = maximum + timing.delay("from maximum to the first difference")
            difference = packet("difference", first, count)
            total = packet("total", difference + timing.delay("from the last difference to total"))
            first = total + timing.delay("from total to the first weight")
            begin = packet("weight", first, count) + timing.delay("from the last weight to row")


@cocotb.test()
async def reset_in_mid_row(dut):
    bench = await Bench.started(dut, sources=SOURCES, sinks=SINKS)
    offers = {name: WORDS[name] for name in SOURCES}
    await bench.cut_off(offers, dict.fromkeys(SINKS), range(1, 400, 23), p_stall=0.2)
    await replay(bench, 12)
