"""Runs inside the simulator, started by test_code_reader.py: words through MillionCodeReader."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in ("word", "code")}


class Beats(Contract):
    """The cycle of each word and beat follows from the bytes of the words."""

    def check_timing(self, flow, packets=None) -> None:
        for stream in ("word", "code"):
            cycles = params["word_cycles" if stream == "word" else "beat_cycles"]
            assert flow.cycles[stream] == cycles[: len(flow.cycles[stream])]
        words, beat = flow.cycles["word"], flow.cycles["code"][0]
        assert beat - words[params["completing"]] == block_timing().latency
        assert words[0] == 0


contract = Beats(
    WORDS, packets={"word": params["words"], "code": params["beats"]}, some=40,
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
