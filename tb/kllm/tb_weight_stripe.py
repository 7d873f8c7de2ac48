"""Runs inside the simulator, started by test_weight_stripe.py: port words to slots."""

import math

import cocotb

from tb.bench import config, params
from tb.contract import Contract, block_timing

DATA = tuple(f"data_{p}" for p in range(config.ports))
SLOTS = tuple(f"slot_{s}" for s in range(config.slots))


def whole(words, kind=Contract, **fields) -> Contract:
    """All words as one packet."""
    return kind(words, packets={name: [len(each)] for name, each in words.items()}, **fields)


class Jobs(Contract):
    """Two cycles between jobs."""

    def check_timing(self, flow, packets=None) -> None:
        took = flow.cycles["job"]
        done = flow.cycles["done"]
        assert done[:-1] == took[1:]
        last = [0] * len(took)
        for name in DATA:
            at = 0
            for cycle, word in zip(flow.cycles[name], self.words[name], strict=True):
                ends = word >> config.port_bits & 1
                at = max(at, next(j for j in range(len(took)) if done[j] > cycle))
                if ends:
                    last[at] = max(last[at], cycle)
        # The final word, the bits that say so, the rotations' start: then job and done.
        assert [d - cycle for d, cycle in zip(done, last, strict=True)] == [2] * len(took)


contract = whole(
    params["words"], Jobs, idles=(0.0, 0.5, 0.9), slow=0.9, cuts=(1, 2, 3, 5, 8, 13, 21)
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def long_jobs_at_full_rate(dut):
    """A word per port and cycle, or a word per slot and cycle where those are fewer."""
    flow = await whole(params["long"]).replay(await contract.started(dut))
    cycles = [cycle for name in SLOTS for cycle in flow.cycles[name]]
    timing = block_timing()
    bound = math.ceil(len(cycles) * timing.interval)
    assert max(cycles) - min(cycles) + 1 == bound, (max(cycles), min(cycles), bound)
    assert min(cycles) - min(flow.cycles[name][0] for name in DATA) == timing.latency


@cocotb.test()
async def nothing_is_taken_without_a_job(dut):
    bench = await contract.started(dut)
    flow = await bench.run(
        {name: params["words"][name] for name in DATA}, {}, stop_at=50, p_stall=0.3
    )
    assert not any(flow.sent[name] for name in DATA)
