"""Runs inside the simulator, started by test_integer_quantizer.py."""

from golden.words import unpack_ints
from tb.bench import config, vectors
from tb.contract import Contract, block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in ("largest", "scale", "i", "o")}
ROWS, SCALES = len(WORDS["i"]), len(WORDS["largest"])


class Rows(Contract):
    """A row per ``parts`` cycles, taken with its last part; scales in the stated time."""

    def check_timing(self, flow, packets=None) -> None:
        timing, parts, taken = block_timing(), config.parts, flow.cycles
        assert taken["i"] == [parts - 1 + parts * n for n in range(len(taken["i"]))]
        assert taken["o"] == [timing.latency + parts * n for n in range(len(taken["o"]))]
        for start, end in zip(taken["largest"], taken["scale"], strict=True):
            assert end - start == timing.delay("from largest to scale")


steps = range(1, max(ROWS, SCALES) + 1)
rows, scales = ([min(n, count) for n in steps] for count in (ROWS, SCALES))
packets = {"largest": scales, "scale": scales, "i": rows, "o": rows}
contract = Rows(WORDS, packets=packets, some=150, cuts=range(1, 24))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
