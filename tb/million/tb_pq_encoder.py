"""Runs inside the simulator, started by test_pq_encoder.py: vectors through MillionPqEncoder."""

import cocotb

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing
from tb.million.support.store import serve

WORDS = {name: unpack_ints(vectors[name]) for name in ("job", "x", "code")}
STORES = [unpack_ints(vectors[name]) for name in ("k", "v")]
READS, BEATS = params["words"], params["beats"]
JOBS = range(1, len(READS) + 1)
STEPS = max(1, config.rate.lanes // config.rate.macs)  # cycles of a beat of x
LAST_TO_CODE = "from the last codebook word granted to code"
BAD_MASK = 1 << config.code_layout["bad"].offset  # the codes of a bad vector are unspecified


def schedule(packets: int) -> tuple[list[int], list[int]]:
    """Cycles of the beats of x and of the codes, when nothing idles or stalls.

    The words of a vector are taken when those of the vector before the last one have been read. A
    vector begins when the codes of the vector before the last one have left.
    """
    beats, codes, filled, ends = [], [], -1, []
    for n in range(packets):
        first = max(filled + 1, ends[n - 2] + 2 if n > 1 else 0)
        beats += [first + STEPS * (beat + 1) - 1 for beat in range(BEATS)]
        filled = beats[-1]
        start = max(filled + 2, ends[-1] + 1 if ends else 0, codes[n - 2] + 2 if n > 1 else 0)
        ends.append(start + READS[n] - 1)  # the grant of the last word
        codes.append(ends[-1] + block_timing().delay(LAST_TO_CODE))
    return beats, codes


class Codes(Contract):
    """The contract with memories of K's and V's codebooks, which at times serve another reader."""

    grant = 1.0

    def bench(self, dut):
        self.reads: list[int] = []
        cocotb.start_soon(serve(dut, STORES, grant=lambda: self.grant, log=self.reads))
        return super().bench(dut)

    async def replay(self, bench, packets=None, **flow):
        """Each word of the codebook is read once."""
        self.reads.clear()
        result = await super().replay(bench, packets, **flow)
        assert len(self.reads) == sum(READS[: self.count if packets is None else packets])
        return result

    def check_timing(self, flow, packets=None) -> None:
        beats, codes = schedule(self.count if packets is None else packets)
        assert flow.cycles["x"] == beats
        assert flow.cycles["code"] == codes


contract = Codes(
    WORDS,
    packets={"job": JOBS, "x": [BEATS * n for n in JOBS], "code": JOBS},
    masks={"code": [BAD_MASK if bad else -1 for bad in params["bad"]]},
    some=30,
    cuts=(*range(1, 16), 40, 90),
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
@cocotb.parametrize(grant=[0.1, 0.5, 0.9])
async def random_grants(dut, grant):
    """Codes do not depend on when the words of the codebook come."""
    bench = await contract.started(dut)
    contract.grant = grant
    for p_stall in (0.0, 0.5):
        await contract.replay(bench, contract.some, p_idle=p_stall, p_stall=p_stall)
    contract.grant = 1.0
