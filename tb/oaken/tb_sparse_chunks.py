"""Runs inside the simulator: transfers through OakenSparseChunks, whole and dropped."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Gapless

WORDS = {name: unpack_ints(vectors[name]) for name in ("i", "o")}
ENDS = params["ends"]  # words and chunks after each transfer
LAST = 1 << config.o_layout["last"].offset


class Chunks(Gapless):
    """A word is taken with its final piece, so chunks are counted from the first cycle on."""

    def bench(self, dut):
        dut.drop.value = 0
        return super().bench(dut)


contract = Chunks(WORDS, packets=ENDS, some=60, cuts=range(1, 20))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.4])
async def dropped_transfers(dut, p_idle):
    """``drop`` rises at any time: chunks before it are right, and so is the next transfer."""
    bench = await contract.started(dut)
    rng, given = bench.rng("drop"), []  # (chunk, was it dropped)

    async def drop():
        while True:
            await ReadOnly()
            ended = False
            for _, word in bench.transfers(["o"]):
                given.append((word, bool(dut.drop.value)))
                ended = word & LAST != 0
            assert len(given) <= len(WORDS["o"]), "more chunks than the transfers have"
            await FallingEdge(dut.clk)
            if dut.drop.value and ended:
                dut.drop.value = 0
            elif rng.random() < 0.1:
                dut.drop.value = 1

    dropper = cocotb.start_soon(drop())
    await bench.run({"i": WORDS["i"]}, {"o": None}, p_idle=p_idle, settle=8)
    dropper.cancel()
    first_word, first_chunk, discarded = 0, 0, 0
    for word_end, chunk_end in zip(ENDS["i"], ENDS["o"], strict=True):
        golden, count = WORDS["o"][first_chunk:chunk_end], word_end - first_word
        kept = []
        while given and not given[0][1]:
            kept.append(given.pop(0)[0])
            if kept[-1] & LAST:
                break
        assert kept == golden[: len(kept)]
        if not kept or not kept[-1] & LAST:
            left = 1
            while not given.pop(0)[0] & LAST:
                left += 1
            assert left <= 1 + count
            discarded += len(kept) + left < len(golden)
        first_word, first_chunk = word_end, chunk_end
    assert not given
    assert config.pieces == 1 or discarded > 10
