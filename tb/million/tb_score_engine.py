"""Runs inside the simulator, started by test_score_engine.py: jobs through MillionScoreEngine."""

from itertools import accumulate

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract, block_timing

WORDS = {name: unpack_ints(vectors[name]) for name in ("entry", "job", "code", "score", "end")}
BEATS, ENTRIES = params["beats"], params["entries"]
JOBS = range(1, len(BEATS) + 1)
TO_CODE = "from the last entry to the first code"
TO_END = "from the last code to end"


def schedule(packets: int) -> tuple[list[int], list[int]]:
    """Cycles of the beats of code and of the words of end, when nothing idles or stalls.

    A table is taken while a buffer is free: from the cycle after the job before the last one ended.
    """
    timing = block_timing()
    cycles, ends, filled = [], [], -1
    for n in range(packets):
        begin = max(filled + 1, ends[n - 2] + 1 if n > 1 else 0)
        filled = begin + ENTRIES[n] - 1
        start = max(filled + timing.delay(TO_CODE), ends[-1] + 1 if ends else 0)
        beats = [start + beat for beat in range(BEATS[n])]
        # One job ends in two cycles.
        end = max(beats[-1] if beats else start, ends[-1] + 2 if ends else 0)
        cycles += [*beats[:-1], end] if beats else []
        ends.append(end)
    return cycles, [end + timing.delay(TO_END) for end in ends]


class Scores(Contract):
    """The cycle of each beat, score and end follows from the sizes of the jobs."""

    def check_timing(self, flow, packets=None) -> None:
        codes, ends = schedule(self.count if packets is None else packets)
        assert flow.cycles["code"] == codes
        assert flow.cycles["score"] == [cycle + block_timing().latency for cycle in codes]
        assert flow.cycles["end"] == ends


contract = Scores(
    WORDS,
    packets={
        "entry": list(accumulate(ENTRIES)),
        "job": JOBS,
        "code": list(accumulate(BEATS)),
        "score": list(accumulate(BEATS)),
        "end": JOBS,
    },
    some=34,
    cuts=(*range(1, 16), 40, 90),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
