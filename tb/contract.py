"""The checks that follow from a block's signature and its timing, inside the simulator.

A bench says which words go in and which come out; the streams, their directions and the timing
come from the block itself. ``Contract(...).tests()`` gives the cocotb tests that every block of
streams must pass::

    contract = Contract(words, packets={"i": ends_of_packets, "o": range(1, n + 1)})
    random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.timing import Timing
from tb.bench import Bench, interface

WITHHELD = 40  # cycles without words on one stream, before a reset


def block_timing() -> Timing:
    """The timing of the block under test, as its description has it."""
    fields = dict(interface["timing"])
    fields["interval"] = Fraction(fields["interval"]).limit_denominator(1 << 16)
    fields["delays"] = tuple(fields["delays"].items())
    return Timing(**fields)


class Contract:
    """Words in, words out, and what the block promises about cycles.

    Parameters
    ----------
    words : payload words by stream, for every stream of the block
    packets : by stream, how many words are done after each packet; None: each word is a packet
        on every stream. A shortened run moves whole packets.
    some : packets of the runs with idle and stall cycles; None: all
    causes : for the full rate, the index of the word of ``timing.start`` that each word of
        ``timing.end`` needs; None: the last word of its packet, for a stream of one word per
        packet, else the word of the same index
    units : how many units of ``timing.interval`` the words are; None: the words of timing.start
    idles : chances per cycle, in the runs with idle and stall cycles, that a source is idle
    slow : the chance per cycle that the slow stream of ``uneven_flow`` idles or stalls
    cuts : cycles after which the block is reset
    first : cycle after a reset in which the first word of ``timing.start`` is taken
    masks : by sink, the bits of each word that are specified; all bits of a sink left out
    check : compares a run; called as check(flow, counts) in addition to the comparison of words

    ValueError if ``words`` leaves out a stream of the block or names one that it does not have.
    """

    def __init__(
        self,
        words: Mapping[str, Sequence[int]],
        *,
        packets: Mapping[str, Sequence[int]] | None = None,
        some: int | None = None,
        causes: Sequence[int] | None = None,
        units: int | None = None,
        idles: Sequence[float] = (0.0, 0.5),
        slow: float = 0.8,
        cuts: Sequence[int] = range(1, 16),
        first: int = 0,
        masks: Mapping[str, Sequence[int]] | None = None,
        check=None,
    ):
        self.sources, self.sinks = interface["sources"], interface["sinks"]
        missing = {*self.sources, *self.sinks} ^ set(words)
        if missing:
            raise ValueError(f"words: {', '.join(sorted(missing))}: not of the block, or left out")
        if packets is None:
            lengths = {len(stream) for stream in words.values()}
            if len(lengths) != 1:
                raise ValueError("packets must be given: the streams differ in length")
            packets = dict.fromkeys(words, range(1, lengths.pop() + 1))
        self.words, self.packets = words, packets
        self.count = len(next(iter(packets.values())))
        self.some = min(some or self.count, self.count)
        self.causes, self.units, self.cuts, self.check = causes, units, cuts, check
        self.first, self.masks, self.idles, self.slow = first, masks or {}, idles, slow

    def bench(self, dut) -> Bench:
        return Bench(dut, sources=self.sources, sinks=self.sinks)

    async def started(self, dut) -> Bench:
        """A bench whose block has been reset."""
        bench = self.bench(dut)
        await self.restart(bench)
        return bench

    async def restart(self, bench: Bench, cycles: int = 3) -> None:
        """Reset the block, and ``enter``."""
        await bench.reset(cycles)
        await self.enter(bench)

    async def enter(self, bench: Bench, p_idle: float = 0.0) -> None:
        """Give the block what these words need, such as a table, after a reset or other words."""

    def offers(self, counts: Mapping[str, int]) -> dict[str, Sequence[int]]:
        """Words of each source for one run; a list may grow during the run."""
        return {name: self.words[name][: counts[name]] for name in self.sources}

    async def replay(self, bench: Bench, packets: int | None = None, **flow):
        """Send the first ``packets`` packets, all by default, and compare every word."""
        packets = self.count if packets is None else packets
        counts = {name: self.packets[name][packets - 1] for name in self.words}
        takes = {name: counts[name] for name in self.sinks}
        result = await bench.run(self.offers(counts), takes, **flow)
        for name in self.sinks:
            result.check(name, self.words[name][: counts[name]], masks=self.masks.get(name))
        if self.check is not None:
            self.check(result, counts)
        return result

    async def interrupt(self, bench: Bench, cut: int, **flow) -> None:
        """Run all words for ``cut`` cycles, and leave those in flight where they are."""
        counts = {name: len(words) for name, words in self.words.items()}
        takes = {name: counts[name] for name in self.sinks}
        await bench.run(self.offers(counts), takes, stop_at=cut, **flow)

    def tests(self, *others: "Contract") -> tuple:
        """random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet.

        Each does the words of ``others`` too: one block, several tables or modes in turn.
        """
        phases = (self, *others)

        @cocotb.test()
        @cocotb.parametrize(p_idle=list(self.idles), p_stall=[0.0, 0.5, 0.9])
        async def random_flow(dut, p_idle, p_stall):
            """No word is lost, repeated or changed, whatever idles or stalls."""
            bench = await self.started(dut)
            for phase in phases:
                await phase.enter(bench, p_idle)
                await phase.replay(bench, phase.some, p_idle=p_idle, p_stall=p_stall)

        @cocotb.test()
        async def uneven_flow(dut):
            """Each stream in turn is slow; the others are fast, or their sinks stall at times."""
            bench = self.bench(dut)
            for phase, slow in product(phases, (*self.sources, *self.sinks)):
                for stall in (0.0, 0.3):
                    await phase.restart(bench)
                    await phase.replay(
                        bench,
                        phase.some,
                        p_idle={name: phase.slow * (name == slow) for name in self.sources},
                        p_stall={n: phase.slow if n == slow else stall for n in self.sinks},
                        late_ready=stall > 0,
                    )

        @cocotb.test()
        async def late_ready(dut):
            """A sink is ready only after valid, and stalls: a producer must not wait for it."""
            bench = self.bench(dut)
            for phase, stall in product(phases, (0.0, 0.3)):
                await phase.restart(bench)
                await phase.replay(bench, phase.some, p_stall=stall, late_ready=True)

        @cocotb.test()
        async def full_rate(dut):
            """Every word, with the latency and the interval that the block's timing states."""
            bench = await self.started(dut)
            for phase in phases:
                await phase.enter(bench)
                phase.check_timing(await phase.replay(bench))

        @cocotb.test()
        async def reset_in_mid_packet(dut):
            """A reset forgets the words in flight; the block then behaves as new."""
            bench = await self.started(dut)
            for phase, following in zip(phases, (*others, self), strict=True):
                for cut, stall in product(phase.cuts, (0.6, 0.3)):
                    if others:  # the words before were those of another phase
                        await phase.restart(bench, 1)
                    await phase.interrupt(bench, cut, p_stall=stall)
                    await following.restart(bench, 1)
                    if stall > 0.5:  # no word comes out; else the next words come at once
                        await bench.run({}, {})
                    await following.replay(bench, min(4, following.count))
            for withheld in (*self.sources, *self.sinks):  # the others go on as far as they can
                idle = {name: float(name == withheld) for name in self.sources}
                stall = {name: float(name == withheld) for name in self.sinks}
                await self.interrupt(bench, WITHHELD, p_idle=idle, p_stall=stall)
                await self.restart(bench, 1)
                await self.replay(bench, min(2, self.count))
            await self.restart(bench, 1)
            self.check_timing(await self.replay(bench, self.some), self.some)

        return random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet

    def check_timing(self, flow, packets: int | None = None) -> None:
        """AssertionError unless a run without idle and stall cycles keeps the block's timing."""
        timing, packets = block_timing(), self.count if packets is None else packets
        taken, given = flow.cycles[timing.start], flow.cycles[timing.end]
        assert taken[0] == self.first, f"{timing.start}: first word in cycle {taken[0]}"
        causes = self.causes
        if causes is None:
            ends = self.packets[timing.start]
            one_each = len(given) == packets
            causes = [end - 1 for end in ends] if one_each else range(len(given))
        longest = timing.latency if timing.latency_max is None else timing.latency_max
        for n, cycle in enumerate(given):
            latency = cycle - taken[causes[n]]
            assert timing.latency <= latency <= longest, (
                f"{timing.end}: word {n} came {latency} cycles after word {causes[n]} of "
                f"{timing.start}, not {timing.latency_text}"
            )
        units = self.units if self.units is not None and packets == self.count else len(taken)
        spent, steady = taken[-1] - taken[0] + 1, units * timing.interval
        assert steady - timing.interval < spent <= steady, (
            f"{units} {timing.unit}s took {spent} cycles, not {float(steady):g}"
        )


class Gapless(Contract):
    """A word of ``timing.end`` leaves at full rate in every ``timing.interval``-th cycle.

    For a block of which one word of ``timing.start`` causes any number of words. The first one
    leaves ``timing.latency`` cycles after the run's first cycle.

    is_full : whether the words of ``timing.start`` keep up; else the latency is a lower bound
    """

    def __init__(self, words, *, is_full: bool = True, **fields):
        super().__init__(words, **fields)
        self.is_full = is_full

    def check_timing(self, flow, packets=None) -> None:
        timing = block_timing()
        given = flow.cycles[timing.end]
        if not self.is_full:
            assert given[0] >= timing.latency, f"{timing.end}: first word in cycle {given[0]}"
            return
        for n, cycle in enumerate(given):
            due = timing.latency + int(n * timing.interval)
            assert cycle == due, f"{timing.end}: word {n} came in cycle {cycle}, not {due}"


class Followed(Contract):
    """Sees each cycle and drives the plain inputs; starts anew with each reset."""

    task = None

    def begin(self, bench) -> None:
        """Sets the state and the plain inputs after a reset, before each run."""
        raise NotImplementedError

    def sample(self, bench) -> None:
        """Sees each cycle, when all signals are settled."""
        raise NotImplementedError

    def drive(self, bench) -> None:
        """Drives the inputs at the start of each cycle."""
        raise NotImplementedError

    async def restart(self, bench, cycles=3) -> None:
        if self.task is not None:
            self.task.cancel()
        await super().restart(bench, cycles)
        self.begin(bench)
        self.drive(bench)
        self.task = cocotb.start_soon(self._follow(bench))

    async def _follow(self, bench) -> None:
        while True:
            await ReadOnly()
            self.sample(bench)
            await FallingEdge(bench.dut.clk)
            self.drive(bench)
