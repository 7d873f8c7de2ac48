"""Inside the simulator: the test's configuration and vectors, and a bench of streams.

The bench drives everything after the falling edge and samples in ReadOnly of the same step. The
rising edge that follows makes the transfer. No simulator can race the bench.
"""

import dataclasses
import os
import pickle
import random
from pathlib import Path

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

__all__ = ["SILENCE", "Bench", "Flow", "config", "interface", "params", "vectors"]

# Cycles without any transfer that are a hang. The longest computation of a block between two
# transfers takes 8,192: a lane with one multiplier reduces 256 bins of each of 32 columns.
SILENCE = 20_000
LIVELOCK = 5_000_000  # cycles of one run, far above the longest: words that move in a circle

_DIRECTORY = Path(os.environ["TB_DIR"])
config, params, interface = pickle.loads((_DIRECTORY / "setup.pickle").read_bytes())
vectors = dict(np.load(_DIRECTORY / "vectors.npz"))


@dataclasses.dataclass
class Flow:
    """What one run moved: words per sink, and the cycle of each transfer per stream."""

    words: dict[str, list[int]]
    cycles: dict[str, list[int]]  # of sources and sinks alike; the run starts at cycle 0
    sent: dict[str, int]

    def check(self, sink, golden, *, what="word", sent=None) -> None:
        """AssertionError unless the words of ``sink`` are ``golden``, all of it.

        For the message: ``what`` a word is, and ``sent``, the words that these are the answers to.
        """
        for n, (got, want) in enumerate(zip(self.words[sink], golden, strict=True)):
            of = f" ({sent[n]:#x})" if sent else ""
            assert got == want, f"{sink}: {what} {n}{of}: got {got:#x}, golden {want:#x}"


class Bench:
    """Drives the sources and checks the sinks of ``dut``, all in one loop per cycle.

    Parameters
    ----------
    sources, sinks : names of stream members, such as "i" (ports i__payload, i__valid, i__ready)
    """

    def __init__(self, dut, *, sources, sinks):
        self.dut = dut
        self._port = {
            name: tuple(dut[f"{name}__{field}"] for field in ("payload", "valid", "ready"))
            for name in (*sources, *sinks)
        }
        self.sources, self.sinks = tuple(sources), tuple(sinks)
        self._running = False

    @classmethod
    async def started(cls, dut, *, sources=("i",), sinks=("o",)):
        """A bench whose ``dut`` has been reset."""
        bench = cls(dut, sources=sources, sinks=sinks)
        await bench.reset()
        return bench

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{cocotb.RANDOM_SEED} {name}")

    async def reset(self, cycles: int = 3) -> None:
        """Hold reset with junk on every input, then release it with every stream idle."""
        if not self._running:
            Clock(self.dut.clk, 10, "ns").start(start_high=False)
            self._running = True
            await FallingEdge(self.dut.clk)
        rng = self.rng("reset")
        self.dut.rst.value = 1
        for _ in range(cycles):
            for name in self.sources:
                payload, valid, _ready = self._port[name]
                payload.value = rng.getrandbits(len(payload))
                valid.value = rng.getrandbits(1)
            for name in self.sinks:
                self._port[name][2].value = rng.getrandbits(1)
            await FallingEdge(self.dut.clk)
        for name in self.sources:
            self._port[name][1].value = 0
        for name in self.sinks:
            self._port[name][2].value = 0
        self.dut.rst.value = 0

    async def run(
        self, offers, takes, *, p_idle=0.0, p_stall=0.0, stop_at=None, settle=8,
        late_ready=False, silence=SILENCE,
    ) -> Flow:
        """Send every word of ``offers`` and take ``takes[name]`` words from each sink.

        takes None: any number; the run does not wait for them.
        p_idle, p_stall: chance per cycle that a source is idle or a sink stalls, for all streams
        or by name. stop_at: return after that many cycles, whatever was moved. late_ready: a sink
        is ready only once it has seen valid, so a producer that waits for ready hangs.

        AssertionError: an offered word changes before its transfer, or a sink gives more words
        than were to be taken. Also a hang: no stream moves a word for ``silence`` cycles,
        or words move for LIVELOCK cycles.
        """
        idle = p_idle if isinstance(p_idle, dict) else dict.fromkeys(self.sources, p_idle)
        stall = p_stall if isinstance(p_stall, dict) else dict.fromkeys(self.sinks, p_stall)
        rngs = {name: self.rng(name) for name in (*self.sources, *self.sinks)}
        sent = dict.fromkeys(self.sources, 0)
        offered = dict.fromkeys(self.sources, False)
        words = {name: [] for name in self.sinks}
        held = dict.fromkeys(self.sinks)
        cycles = {name: [] for name in (*self.sources, *self.sinks)}
        offers = {name: offers.get(name, []) for name in self.sources}
        takes = {name: takes.get(name, 0) for name in self.sinks}
        # A chance of 1 - q holds a stream for 60 / q cycles with a probability of e**-60.
        chances = [chance for chance in (*idle.values(), *stall.values()) if chance < 1]
        moves = 1 - max([0.0, *chances])
        silence += int(60 / max(moves, 0.001))
        clk = self.dut.clk
        cycle, quiet, moved = 0, 0, 0
        while stop_at is None or cycle < stop_at:
            for name in self.sources:
                payload, valid, _ = self._port[name]
                queue, rng = offers[name], rngs[name]
                if not offered[name]:
                    if sent[name] < len(queue) and (
                        not idle[name] or rng.random() >= idle[name]
                    ):
                        offered[name] = True
                        valid.value = 1
                        payload.value = queue[sent[name]]
                    else:
                        valid.value = 0
                        if idle[name]:
                            payload.value = rng.getrandbits(len(payload))
            ready_now = {}
            for name in self.sinks:
                ready_now[name] = not stall[name] or rngs[name].random() >= stall[name]
                ready_now[name] &= not late_ready or held[name] is not None
                self._port[name][2].value = ready_now[name]
            await ReadOnly()
            for name in self.sources:
                if offered[name] and self._port[name][2].value:
                    offered[name] = False
                    sent[name] += 1
                    cycles[name].append(cycle)
                    moved = cycle
            for name in self.sinks:
                payload, valid, _ = self._port[name]
                if valid.value:
                    word = int(payload.value)
                    assert held[name] in (None, word), (
                        f"{name}: word {len(words[name])} changed before its transfer"
                    )
                    assert takes[name] is None or len(words[name]) < takes[name], (
                        f"{name}: a word beyond the expected {takes[name]}"
                    )
                    held[name] = word
                    if ready_now[name]:
                        held[name] = None
                        words[name].append(word)
                        cycles[name].append(cycle)
                        moved = cycle
                else:
                    assert held[name] is None, f"{name}: valid fell before the transfer"
            await FallingEdge(clk)
            cycle += 1
            if all(sent[n] == len(offers[n]) for n in self.sources) and all(
                takes[n] in (None, len(words[n])) for n in self.sinks
            ):
                quiet += 1
                if quiet > settle and stop_at is None:
                    break
            assert cycle < LIVELOCK, f"words move for {LIVELOCK} cycles and nothing is complete"
            if stop_at is None and cycle - moved > silence:
                progress = {**sent, **{n: len(words[n]) for n in self.sinks}}
                raise AssertionError(f"nothing moves after cycle {moved}: {progress}")
        for name in self.sources:
            self._port[name][1].value = 0
        for name in self.sinks:
            self._port[name][2].value = 0
        return Flow(words, cycles, sent)

    async def cut_off(self, offers, takes, cuts, **flow) -> None:
        """Reset in mid-packet: for each of ``cuts`` a run of so many cycles, then a reset.

        AssertionError if a word comes out in the cycles after a reset.
        """
        for cut in cuts:
            await self.run(offers, takes, stop_at=cut, **flow)
            await self.reset(1)
            await self.run({}, {})

    def offered(self, name) -> bool:
        """Whether the stream ``name`` offers a word in this cycle; in ReadOnly."""
        return bool(self._port[name][1].value)

    def transfers(self, names):
        """(name, word) of each stream of ``names`` that moves a word in this cycle; in ReadOnly."""
        for name in names:
            payload, valid, ready = self._port[name]
            if valid.value and ready.value:
                yield name, int(payload.value)
