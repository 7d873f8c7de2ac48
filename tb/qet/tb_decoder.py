"""Runs inside the simulator, for QetDecoder: a row out for each row in, loads meanwhile."""

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing


class Tiles(Contract):
    """Rows wait for loads alone: the others come in every cycle, and so do words of a load."""

    def check_timing(self, flow, packets=None) -> None:
        timing = block_timing()
        taken, given = flow.cycles["row"], flow.cycles["o"]
        for n, (first, then) in enumerate(zip(taken, given, strict=True)):
            assert then - first == timing.latency, f"row {n} took {then - first} cycles"
        for n in range(1, len(taken)):
            if n not in params["switches"]:
                assert taken[n] == taken[n - 1] + 1, f"row {n} waited"
        words = flow.cycles["load"]
        for n in range(1, len(words)):
            if n not in params["begins"]:
                assert words[n] == words[n - 1] + 1, f"word {n} of a load waited"
        assert taken[0] == 0
        # A row uses its load in the cycle after the last word.
        for n, last in zip(params["switches"], params["ends"], strict=True):
            if n < len(taken):
                assert taken[n] == max(words[last] + 1, taken[n - 1] + 1), f"row {n} waited"


contract = Tiles(
    {name: unpack_ints(vectors[name]) for name in ("info", "load", "verdict", "row", "o")},
    packets=params["packets"],
    cuts=range(1, 200, 13),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def stalled(dut):
    """Rows that nobody takes fill every register: as many as the latency has cycles."""
    bench = await contract.started(dut)
    counts = {name: len(words) for name, words in contract.words.items()}
    takes = {name: counts[name] for name in contract.sinks}
    found = await bench.run(
        contract.offers(counts), takes, p_idle={"info": 0.0, "load": 0.0, "row": 0.7},
        p_stall={"verdict": 0.0, "o": 1.0}, stop_at=3000 + counts["load"],
    )  # fmt: skip
    assert found.sent["row"] == block_timing().latency
