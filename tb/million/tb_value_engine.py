"""Runs inside the simulator, started by test_value_engine.py: jobs through MillionValueEngine."""

import random
from itertools import accumulate

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.million.timing import value_finish, value_interval
from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing
from tb.simulate.ports import Signal

WORDS = {name: unpack_ints(vectors[name]) for name in ("job", "weight", "code", "sum", "end")}
MEMORY = unpack_ints(vectors["memory"])
SIZES = params["sizes"]  # (beats, entries) of each job
PARTS, QUERIES = config.finish.parts, config.rate.queries
TO_SUM = block_timing().latency - (config.pq.entries - 1) * QUERIES  # of a job of one entry
TO_END = block_timing().delay("from the last weight to end")


class Schedule:
    """Cycles of the transfers at full rate, from the contract alone."""

    def __init__(self, sizes):
        self.weight, self.sum, self.end, self.done = [], [], [], []
        free = config.pq.entries  # after reset the bins are cleared
        for n, (beats, entries) in enumerate(sizes):
            # A set of bins is free in the cycle after its last bins were used.
            begin = max(free, self.done[n - 2] + 1) if n > 1 else free
            self.weight += range(begin, begin + beats)
            free = begin + max(beats, 1)
            bins = max(free + TO_END - 2, self.done[-1] + 1 if self.done else 0)
            self.end.append(bins + 1)
            self.sum += [
                bins + TO_SUM - TO_END + 1 + (part * entries + entries - 1) * QUERIES + query
                for part in range(PARTS)
                for query in range(QUERIES)
            ]
            self.done.append(bins + value_finish(entries, PARTS, QUERIES))


async def store(dut):
    """The store: data one cycle after read_en, junk in every other cycle."""
    rng = random.Random(f"{cocotb.RANDOM_SEED} store")
    ports = [Signal(dut[name]) for name in ("read_en", "read_addr", "read_data")]
    enable, address, data = ports
    while True:
        await ReadOnly()
        word = MEMORY[address.get()] if enable.get() else None
        await FallingEdge(dut.clk)
        data.put(rng.getrandbits(data.width) if word is None else word)


class Values(Contract):
    """The cycle of each transfer follows from the sizes of the jobs."""

    async def restart(self, bench, cycles=3):
        if not hasattr(bench, "store"):
            bench.store = cocotb.start_soon(store(bench.dut))
        await super().restart(bench, cycles)

    def check_timing(self, flow, packets=None) -> None:
        wanted = Schedule(SIZES[: packets or len(SIZES)])
        assert flow.cycles["weight"] == flow.cycles["code"] == wanted.weight
        assert flow.cycles["end"] == wanted.end
        assert flow.cycles["sum"] == wanted.sum


def ends(counts):
    return list(accumulate(counts))


contract = Values(
    WORDS,
    packets={
        "job": range(1, len(SIZES) + 1),
        "weight": ends(beats for beats, _ in SIZES),
        "code": ends(beats for beats, _ in SIZES),
        "sum": [PARTS * QUERIES * n for n in range(1, len(SIZES) + 1)],
        "end": range(1, len(SIZES) + 1),
    },
    some=params["some"],
    cuts=[3, *(config.pq.entries + cut for cut in (1, 2, 5, 9, 14, 30, 61, 100, 151, 222))],
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def end_needs_no_sum(dut):
    """The block with ``sum`` stalled still gives the end of a job, and counts another one."""
    bench = await contract.started(dut)
    beats = sum(beats for beats, _ in SIZES[:2])
    flow = await bench.run(
        contract.offers({"job": 3, "weight": beats, "code": beats}),
        {"end": None, "sum": None},
        p_stall={"sum": 1.0, "end": 0.0},
        stop_at=config.pq.entries + beats + SIZES[0][1] * PARTS * QUERIES + 20,
    )
    given = flow.words["end"]
    assert given
    assert given == WORDS["end"][: len(given)]
    assert flow.sent["weight"] == beats


@cocotb.test()
async def one_job_after_another(dut):
    """Jobs of one size follow each other after value_interval cycles."""
    for beats in {1, *(n for n, _ in SIZES)}:
        for entries in {1, SIZES[0][1], config.pq.entries}:
            done = Schedule([(beats, entries)] * 12).done
            finish = value_finish(entries, PARTS, QUERIES)
            spent = (done[-1] - done[-5]) / 4
            assert value_interval(beats, finish) - 1 < spent <= value_interval(beats, finish)
            assert spent <= max(beats, finish) + 2
    bench = await contract.started(dut)
    await contract.replay(bench, 1)
