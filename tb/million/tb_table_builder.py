"""Runs inside the simulator, started by test_table_builder.py: queries through the builder."""

from itertools import accumulate

import cocotb

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing
from tb.million.support.store import serve

WORDS = {name: unpack_ints(vectors[name]) for name in ("job", "q", "entry")}
STORE = unpack_ints(vectors["store"])
ENTRIES, BEATS = params["entries"], params["beats"]
JOBS = range(1, len(ENTRIES) + 1)
STEPS = max(1, config.rate.lanes // config.rate.macs)  # cycles of a beat of q


def schedule(packets: int) -> tuple[list[int], list[int]]:
    """Cycles of the beats of q and of the entries, when nothing idles or stalls.

    The queries of a job are taken when those of the job before the last one have been read.
    """
    beats, entries, filled, begun = [], [], -1, []
    for n in range(packets):
        first = max(filled + 1, begun[n - 2] + 3 if n > 1 else 0)
        beats += [first + STEPS * (beat + 1) - 1 for beat in range(BEATS)]
        filled = beats[-1]
        start = max(filled + 1, begun[-1] + 1 if begun else 0)
        begun.append(start + ENTRIES[n] - 1)
        entries += [start + entry + block_timing().latency - 1 for entry in range(ENTRIES[n])]
    return beats, entries


class Tables(Contract):
    """The contract with a memory of codebooks; the sizes of jobs give the cycle of each beat."""

    def bench(self, dut):
        self.reads: list[int] = []
        cocotb.start_soon(serve(dut, STORE, log=self.reads))
        return super().bench(dut)

    async def replay(self, bench, packets=None, **flow):
        """Each word of the codebook is read once for all queries."""
        self.reads.clear()
        result = await super().replay(bench, packets, **flow)
        entries = sum(ENTRIES[: self.count if packets is None else packets])
        assert len(self.reads) * config.rate.queries == entries
        return result

    def check_timing(self, flow, packets=None) -> None:
        beats, entries = schedule(self.count if packets is None else packets)
        assert flow.cycles["q"] == beats
        assert flow.cycles["entry"] == entries


contract = Tables(
    WORDS,
    packets={
        "job": JOBS,
        "q": [BEATS * n for n in JOBS],
        "entry": list(accumulate(ENTRIES)),
    },
    some=36,
    cuts=(*range(1, 16), 40, 90),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
