"""Runs inside the simulator, for QetEncoder: codes and maps of each row, loads meanwhile."""

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract


class Tiles(Contract):
    """A row in an empty block takes its latency; rows that wait follow at the slowest stage's."""

    def check_timing(self, flow, packets=None) -> None:
        taken, given = flow.cycles["x"], flow.cycles["o"]
        for n, (latency, interval) in enumerate(params["rows"][: len(taken)]):
            if not latency:
                continue  # without codebooks
            if n in params["switches"]:
                last = flow.cycles["load"][params["ends"][params["switches"].index(n)]]
                limit = max(given[n - 1], last, taken[n]) + latency + 1
                assert given[n] <= limit, f"row {n} came in cycle {given[n]}, not by {limit}"
                if taken[n] > max(given[n - 1], last):
                    assert given[n] == taken[n] + latency, f"row {n}: {given[n] - taken[n]} cycles"
            else:
                spent = given[n] - given[n - 1]
                assert spent <= interval, f"row {n} came {spent} cycles after the one before"


contract = Tiles(
    {name: unpack_ints(vectors[name]) for name in ("info", "load", "verdict", "x", "o")},
    packets=params["packets"],
    masks={"o": unpack_ints(vectors["mask"])},
    cuts=range(1, 400, 26),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def alone(dut):
    """The last row comes to an empty block, and takes its latency to the cycle."""
    bench = await contract.started(dut)
    words, mask = contract.words, contract.masks["o"]
    counts = {name: len(each) - (name in ("x", "o")) for name, each in words.items()}
    takes = {name: counts[name] for name in contract.sinks}
    await bench.run(contract.offers(counts), takes)
    found = await bench.run({"x": words["x"][-1:]}, {"o": 1})
    found.check("o", words["o"][-1:], masks=mask[-1:])
    assert found.cycles["o"][0] - found.cycles["x"][0] == params["rows"][-1][0]
