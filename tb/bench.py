"""The test's configuration and vectors inside the simulator, and a bench of streams.

The bench drives everything after the falling edge and samples in ReadOnly of the same step. The
rising edge that follows makes the transfer. No simulator can race the bench.
"""

import dataclasses
import gc
import os
import pickle
import random
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from tb.simulate import scheduling
from tb.simulate.ports import stream_port

# The imports of numpy and of the configuration's block follow. The collector took a fifth of
# their time, and need not look again at what they leave.
gc.disable()
import numpy as np  # noqa: E402

# Cycles without any transfer that are a hang. The longest computation of a block between two
# transfers takes 8,192: a lane with one multiplier reduces 256 bins of each of 32 columns.
SILENCE = 20_000
LIVELOCK = 5_000_000  # cycles of one run, far above the longest: words that move in a circle

_DIRECTORY = Path(os.environ["TB_DIR"])
config, params, interface = pickle.loads((_DIRECTORY / "setup.pickle").read_bytes())
vectors = dict(np.load(_DIRECTORY / "vectors.npz"))
gc.freeze()
gc.enable()
scheduling.install()


@dataclasses.dataclass
class Flow:
    """The transfers of one run: words per sink, and the cycle of each transfer per stream."""

    words: dict[str, list[int]]
    cycles: dict[str, list[int]]  # of sources and sinks alike; the run starts at cycle 0
    sent: dict[str, int]

    def check(self, sink, golden, *, what="word", sent=None, masks=None) -> None:
        """AssertionError unless the words of ``sink`` are ``golden``, all of it.

        masks: the bits of each word that are compared; None: all. For the message: ``what`` a word
        is, and ``sent``, the words that these are the answers to.
        """
        for n, (got, want) in enumerate(zip(self.words[sink], golden, strict=True)):
            of = f" ({sent[n]:#x})" if sent else ""
            wrong = (got ^ want) & (-1 if masks is None else masks[n])
            assert not wrong, f"{sink}: {what} {n}{of}: got {got:#x}, golden {want:#x}"

    def order(self, names) -> list[str]:
        """The streams of ``names`` by the cycles of their transfers; in one cycle as given."""
        moves = [(cycle, k) for k, name in enumerate(names) for cycle in self.cycles[name]]
        return [names[k] for _, k in sorted(moves)]


class Watch:
    """Finds a hang: no transfer for too long, or a run without an end.

    chances: per cycle, that a stream of the bench idles or stalls. held: cycles in which the bench
    holds back on purpose. moved: cycle of the latest transfer, set by the bench.
    """

    def __init__(self, *chances: float, held: int = 0, silence: int = SILENCE) -> None:
        # A chance of 1 - q holds a stream for 60 / q cycles with a probability of e**-60.
        moves = 1 - max([0.0, *(chance for chance in chances if chance < 1)])
        self.silence = silence + held + int(60 / max(moves, 0.001))
        self.moved = 0

    def check(self, cycle: int, progress) -> None:
        """AssertionError with ``progress()``: a hang."""
        assert cycle < LIVELOCK, (
            f"words move for {LIVELOCK} cycles and nothing is complete: {progress()}"
        )
        assert cycle - self.moved <= self.silence, (
            f"nothing moves after cycle {self.moved}: {progress()}"
        )


class _Source:
    """A stream into the block, during one run: drives an offer, and sees whether it was taken."""

    def __init__(self, name, port, rng, queue, idle):
        self.name, self.queue, self.idle, self.rng = name, queue, idle, rng
        self.payload, self.valid, self.ready = port
        self.cycles: list[int] = []
        self.at = 0  # words sent
        self.is_offered = False
        self.shown = None  # what valid was driven to

    def is_complete(self) -> bool:
        return self.at == len(self.queue)

    def drive(self) -> None:
        if self.is_offered:
            return
        if self.at < len(self.queue) and (not self.idle or self.rng.random() >= self.idle):
            self.is_offered = True
            self.payload.put(self.queue[self.at])
        elif self.idle:
            self.payload.put(self.rng.getrandbits(self.payload.width))
        if self.shown != self.is_offered:
            self.shown = self.is_offered
            self.valid.put(int(self.is_offered))

    def sample(self) -> bool:
        """Whether a word moved."""
        if not (self.is_offered and self.ready.get()):
            return False
        self.is_offered = False
        self.at += 1
        return True


class _Sink:
    """A stream out of the block, during one run: drives ready, and checks what is offered."""

    def __init__(self, name, port, rng, limit, stall, late):
        self.name, self.limit, self.stall, self.late, self.rng = name, limit, stall, late, rng
        self.payload, self.valid, self.ready = port
        self.words: list[int] = []
        self.cycles: list[int] = []
        self.held = None  # the word offered and not yet taken
        self.is_ready = False
        self.shown = None  # what ready was driven to

    def is_complete(self) -> bool:
        return self.limit is None or len(self.words) == self.limit

    def drive(self) -> None:
        self.is_ready = (not self.stall or self.rng.random() >= self.stall) and (
            not self.late or self.held is not None
        )
        if self.shown != self.is_ready:
            self.shown = self.is_ready
            self.ready.put(int(self.is_ready))

    def sample(self) -> bool:
        """Whether a word moved."""
        if not self.valid.get():
            assert self.held is None, f"{self.name}: valid fell before the transfer"
            return False
        word = self.payload.get()
        assert self.held in (None, word), (
            f"{self.name}: word {len(self.words)} changed before its transfer"
        )
        assert self.limit is None or len(self.words) < self.limit, (
            f"{self.name}: a word beyond the expected {self.limit}"
        )
        if not self.is_ready:
            self.held = word
            return False
        self.held = None
        self.words.append(word)
        return True


class Bench:
    """Drives the sources and checks the sinks of ``dut``, all in one loop per cycle.

    Parameters
    ----------
    sources, sinks : names of stream members, such as "i" (ports i__payload, i__valid, i__ready)
    """

    def __init__(self, dut, *, sources, sinks):
        self.dut = dut
        self._port = {
            name: stream_port(dut, name)
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
        # Before the first edge: the proofs of tb.faults.equivalence assume it.
        self.dut.rst.value = 1
        if not self._running:
            Clock(self.dut.clk, 10, "ns").start(start_high=False)
            self._running = True
            await FallingEdge(self.dut.clk)
        rng = self.rng("reset")
        for _ in range(cycles):
            for name in self.sources:
                payload, valid, _ready = self._port[name]
                payload.put(rng.getrandbits(payload.width))
                valid.put(rng.getrandbits(1))
            for name in self.sinks:
                self._port[name][2].put(rng.getrandbits(1))
            await FallingEdge(self.dut.clk)
        for name in self.sources:
            self._port[name][1].put(0)
        for name in self.sinks:
            self._port[name][2].put(0)
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
        sources = [
            _Source(name, self._port[name], rngs[name], offers.get(name, []), idle[name])
            for name in self.sources
        ]
        sinks = [
            _Sink(name, self._port[name], rngs[name], takes.get(name, 0), stall[name], late_ready)
            for name in self.sinks
        ]
        watch = Watch(*idle.values(), *stall.values(), silence=silence)
        falling, settled = FallingEdge(self.dut.clk), ReadOnly()
        open_streams = {each.name for each in (*sources, *sinks) if not each.is_complete()}
        cycle, quiet = 0, 0
        while stop_at is None or cycle < stop_at:
            for source in sources:
                source.drive()
            for sink in sinks:
                sink.drive()
            await settled
            for each in (*sources, *sinks):
                if each.sample():
                    each.cycles.append(cycle)
                    watch.moved = cycle
                    if each.is_complete():
                        open_streams.discard(each.name)
            await falling
            cycle += 1
            # A queue may have grown meanwhile.
            if not open_streams and all(each.is_complete() for each in (*sources, *sinks)):
                quiet += 1
                if quiet > settle and stop_at is None:
                    break
            if stop_at is None:
                watch.check(
                    cycle, lambda: {each.name: len(each.cycles) for each in (*sources, *sinks)}
                )
        for source in sources:
            source.valid.put(0)
        for sink in sinks:
            sink.ready.put(0)
        words = {sink.name: sink.words for sink in sinks}
        cycles = {each.name: each.cycles for each in (*sources, *sinks)}
        sent = {source.name: len(source.cycles) for source in sources}
        return Flow(words, cycles, sent)

    def offered(self, name) -> bool:
        """Whether the stream ``name`` offers a word in this cycle; in ReadOnly."""
        return bool(self._port[name][1].get())

    def transfers(self, names):
        """(name, word) of each stream of ``names`` that moves a word in this cycle; in ReadOnly."""
        for name in names:
            payload, valid, ready = self._port[name]
            if valid.get() and ready.get():
                yield name, payload.get()
