"""Runs inside the simulator, started by test_read_share.py: readers, and a memory for all."""

import random

import cocotb

from golden.words import join
from tb.bench import config, params
from tb.contract import Followed, block_timing

READS, WORDS = params["reads"], params["words"]
READERS = range(config.readers)


def row_word(row: int, is_last: bool) -> int:
    """A row of the memory, as the read port gives it."""
    rng = random.Random(row)
    return join((rng.getrandbits(256), 256), (rng.random() < 0.2, 1), (is_last, 1))


def row_of(read: int) -> int:
    return (read & ((1 << config.address_bits) - 1)) // 32


class Reads(Followed):
    """The order of the readers is free: each read is known by its address."""

    def __init__(self) -> None:
        count = len(READS[0])
        words = WORDS | {"read": [], "data": []}
        packets = {name: range(1, count + 1) for name in WORDS}
        packets |= {"read": [0] * count, "data": [0] * count}
        for k in READERS:
            words[f"o_{k}"] = [
                row_word(row + n, n == rows - 1) for row, rows in READS[k] for n in range(rows)
            ]
            ends = [sum(rows for _, rows in READS[k][: n + 1]) for n in range(count)]
            packets[f"o_{k}"] = ends
        super().__init__(words, packets=packets, cuts=range(1, 60, 5), some=12)

    def begin(self, bench) -> None:
        self.given: list[int] = []
        self.next = [0] * config.readers
        self.in_flight = 0

    def sample(self, bench) -> None:
        for name, word in bench.transfers(("read", "data")):
            if name == "data":
                self.in_flight -= word >> 257
                continue
            row, count = row_of(word), word >> config.address_bits
            reader = row >> 20
            assert (row, count) == tuple(READS[reader][self.next[reader]])
            self.next[reader] += 1
            self.in_flight += 1
            assert self.in_flight <= config.ahead
            self.given += [row_word(row + n, n == count - 1) for n in range(count)]

    def drive(self, bench) -> None:
        pass

    def offers(self, counts):
        return super().offers(counts) | {"data": self.given}

    async def replay(self, bench, packets=None, **flow):
        packets = self.count if packets is None else packets
        counts = {name: self.packets[name][packets - 1] for name in self.words}
        takes = {name: counts[name] for name in self.sinks} | {"read": None}
        result = await bench.run(self.offers(counts), takes, **flow)
        for k in READERS:
            result.check(f"o_{k}", self.words[f"o_{k}"][: counts[f"o_{k}"]])
        return result

    async def interrupt(self, bench, cut, **flow) -> None:
        self.begin(bench)
        counts = {name: len(words) for name, words in self.words.items()}
        await bench.run(self.offers(counts), dict.fromkeys(self.sinks), stop_at=cut, **flow)

    def check_timing(self, flow, packets=None) -> None:
        """The first read passes in its cycle; then a row in each cycle."""
        assert flow.cycles["read"][0] == flow.cycles["i_0"][0] + block_timing().latency
        rows = flow.cycles["data"]
        assert rows == list(range(rows[0], rows[0] + len(rows)))


contract = Reads()
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
async def readers_take_turns(dut):
    """None of them waits for more than one read of each other one."""
    flow = await contract.replay(await contract.started(dut))
    for k in READERS:
        assert len(flow.cycles[f"i_{k}"]) == len(READS[k])
    reads = [row_of(word) >> 20 for word in flow.words["read"]]
    for n in range(len(reads) - len(READERS)):
        assert len(set(reads[n : n + len(READERS)])) == len(READERS)
