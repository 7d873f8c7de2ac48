"""Runs inside the simulator, started by test_batch.py: words in, and the table in every cycle."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.bench import Bench, config, params
from tb.contract import block_timing
from tb.simulate.ports import Signal

WORDS, TABLES = params["words"], params["tables"]
VALID = 1


class Table:
    """The block, what it was given, and a look at every output in each cycle."""

    def __init__(self, dut):
        self.bench = Bench(dut, sources=("i",), sinks=())
        self.rng = self.bench.rng("batch")
        self.index = [Signal(dut[f"index_{k}"]) for k in range(config.readers)]
        self.entry = [Signal(dut[f"entry_{k}"]) for k in range(config.readers)]
        self.present = Signal(dut.present)
        self.has_choice = config.top > 1
        if self.has_choice:
            self.chooses, self.choice = Signal(dut.chooses), Signal(dut.choice)
        self.given = 0  # words taken, up to the cycle before

    def look(self, where) -> None:
        """The entries at the readers' indices are golden's, and so is the choice."""
        made = TABLES[self.given]
        table = made["entries"]
        held = sum(1 << place for place, entry in enumerate(table) if entry is not None)
        assert self.present.get() == held, f"after {self.given} words"
        for reader, place in enumerate(where):
            got = self.entry[reader].get()
            wanted = table[place] if place < config.places else None
            told = f"reader {reader}, place {place}, after {self.given} words: {got:#x}"
            assert got & VALID == int(wanted is not None), told
            assert wanted is None or got == wanted, told
        if self.has_choice:
            place, got = self.chosen, self.choice.get()
            choices = made["choices"]
            wanted, mask = choices[place] if place < len(choices) else (1, 0x7F)
            assert (got ^ wanted) & mask == 0, f"choice of place {place}: {got:#x}, not {wanted:#x}"

    def choose(self, place) -> None:
        if self.has_choice:
            self.chosen = place
            self.chooses.put(place)

    async def run(self, words: int, p_idle: float) -> None:
        """Offer the words in turn; every reader looks at another place in each cycle."""
        payload, valid, ready = self.bench._port["i"]
        await self.bench.reset()
        self.given = 0
        turn = 0
        while self.given < words:
            offered = self.rng.random() >= p_idle
            valid.put(int(offered))
            payload.put(WORDS[self.given] if offered else self.rng.getrandbits(32))
            where = [
                self.rng.randrange(256) if self.rng.random() < 0.1
                else (turn + 5 * reader) % config.places
                for reader in range(config.readers)
            ]  # fmt: skip
            for port, place in zip(self.index, where, strict=True):
                port.put(place)
            self.choose(where[turn % len(where)])
            turn += 1
            await ReadOnly()
            assert ready.get(), "a word waits"
            self.look(where)
            await FallingEdge(self.bench.dut.clk)
            self.given += offered
        valid.put(0)

    async def settled(self) -> None:
        """Every place, for every reader, when nothing more comes."""
        for place in range(256):
            where = [(place + reader) % 256 for reader in range(config.readers)]
            for port, at in zip(self.index, where, strict=True):
                port.put(at)
            self.choose(place)
            await ReadOnly()
            self.look(where)
            await FallingEdge(self.bench.dut.clk)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9])
async def every_place(dut, p_idle):
    """A place changes in the cycle after its last word, to the bit, and no other does."""
    assert block_timing().latency == 1
    table = Table(dut)
    await table.run(len(WORDS), p_idle)
    await table.settled()


@cocotb.test()
async def reset_in_mid_place(dut):
    """No place has a token after a reset, and the words before it are forgotten."""
    table = Table(dut)
    for cut in (1, 2, 3, 4, 5, 6, 7, 31):
        await table.run(cut, 0.3)
        await table.run(9, 0.0)
        await table.settled()
