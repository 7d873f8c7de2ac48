"""Runs inside the simulator, started by test_choices.py: elements in, choices in every cycle."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, config, params
from tb.contract import block_timing
from tb.simulate.ports import Signal

WORDS, STATES = params["words"], params["states"]
VALID = 1


class Table:
    """The block, what it was given, and a look at its output in each cycle."""

    def __init__(self, dut):
        self.bench = Bench(dut, sources=("i",), sinks=())
        self.rng = self.bench.rng("choices")
        self.index, self.rank, self.choice = (
            Signal(dut[name]) for name in ("index", "rank", "choice")
        )

    def ask(self) -> tuple[int, int]:
        """A place and a rank, some of them beyond the configuration."""
        rng = self.rng
        place = rng.choice([rng.randrange(config.places), config.places, rng.randrange(256)])
        rank = rng.choice([rng.randrange(config.experts), config.experts, rng.randrange(256)])
        self.index.put(place)
        self.rank.put(rank)
        return place, rank

    async def run(self, words: int, p_idle: float) -> None:
        payload, valid, ready = self.bench._port["i"]
        await self.bench.reset()
        given, asked = 0, None  # words taken; what was asked in the cycle before, and then
        while given < words or asked is not None:
            is_last = given == words
            offered = not is_last and self.rng.random() >= p_idle
            valid.put(int(offered))
            payload.put(WORDS[given] if offered else self.rng.getrandbits(65))
            now = self.ask()
            await ReadOnly()
            assert ready.get() == 1
            if asked is not None:
                self.check(*asked)
            asked = None if is_last else (*now, STATES[given], STATES[given + offered])
            given += offered
            await FallingEdge(self.bench.dut.clk)

    def check(self, place, rank, before, after) -> None:
        """``choice`` is that before the word of the same cycle, which may write it."""
        got, wanted = self.choice.get(), before.get((place, rank))
        told = f"place {place}, rank {rank}: {got:#x}"
        assert got & VALID == int((place, rank) in before), told
        if wanted is not None and wanted == after.get((place, rank)):
            assert got == wanted, f"{told}, not {wanted:#x}"


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5])
async def every_choice(dut, p_idle):
    assert block_timing().latency == 1
    table = Table(dut)
    for words in (len(WORDS), 7, 20, len(WORDS)):  # each after a reset
        await table.run(words, p_idle)
