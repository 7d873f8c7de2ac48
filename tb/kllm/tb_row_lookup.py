"""Runs inside the simulator, started by test_row_lookup.py: tables, then beats through them."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing


class Beats(Contract):
    """All beats of one phase, after its table."""

    def __init__(self, name: str):
        phase = params["phases"][name]
        words = {each: unpack_ints(vectors[f"{name}.{each}"]) for each in ("i", "o")}
        self.digits, self.integer = phase["digits"], phase["integer"]
        self.taken = phase["taken"]  # the cycle in which the first word of the table is taken
        count = len(words["i"])
        packets = {
            "product": [0] * count,
            "i": range(1, count + 1),
            "o": range(self.digits, self.digits * count + 1, self.digits),
        }
        super().__init__(words | {"product": []}, packets=packets)
        self.table = unpack_ints(vectors[f"{name}.product"])

    async def enter(self, bench, p_idle=0.0) -> None:
        bench.dut.is_integer.value = self.integer
        flow = await bench.run({"product": self.table}, {}, p_idle=p_idle, settle=0)
        cycles = flow.cycles["product"]
        is_whole = cycles == list(range(self.taken, self.taken + len(cycles)))
        assert is_whole or p_idle, "a word waited"

    def check_timing(self, flow, packets=None) -> None:
        """A beat, or a digit of one, leaves in each cycle; the last digit takes the beat."""
        timing = block_timing()
        if self.digits > 1:
            assert timing.delay("cycles of a beat in integer mode") == self.digits
        given, taken = flow.cycles["o"], flow.cycles["i"]
        assert given == list(range(timing.latency, timing.latency + len(given)))
        assert taken == [end - timing.latency for end in given[self.digits - 1 :: self.digits]]


first, *others = map(Beats, params["phases"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
