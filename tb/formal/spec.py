"""The parts that every proof shares: reset from any state, lawful sources, a model queue."""

import abc

from amaranth import Elaboratable, Module, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume, Cover

from hdl.block import Block


def transfer(stream):
    return stream.valid & stream.ready


class Spec(Elaboratable, abc.ABC):
    """Properties of ``block``, whose inputs are all free.

    Registers start in any state with reset high, and reset may come again at any time. It
    resets the properties' own registers too, so a proof covers "after reset no memory of
    before". Properties hold in every cycle after the first.
    """

    invariants = True

    def __init__(self, block: Block):
        self.block = block
        # The one register with an initial value: the runner removes all others.
        self.first = Signal(init=1, reset_less=True, name="first")
        self.ports: list[Signal] = []  # the top's free inputs
        # Of mode "cases": values of inputs and registers by case, and bits of registers that split.
        self.cases: dict[str, dict[str, int]] = {}
        self.splits: dict[str, tuple[str, int]] = {}

    @abc.abstractmethod
    def specify(self, m: Module) -> None:
        """Add the properties to ``m``."""

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.dut = self.block
        m.d.sync += self.first.eq(0)
        with m.If(self.first):
            m.d.comb += Assume(ResetSignal())
        self.specify(m)
        return m

    def always(self, m: Module, condition, message: str, src_loc_at: int = 0) -> None:
        m.d.comb += Assert(self.first | condition, message, src_loc_at=1 + src_loc_at)

    def state(self, m: Module, condition, message: str, src_loc_at: int = 0) -> None:
        """Asserts how the block holds its state: what k-induction needs beyond the properties.

        Left out where a defect is planted: a property must find it.
        """
        if self.invariants:
            m.d.comb += Assert(self.first | condition, message, src_loc_at=1 + src_loc_at)

    def cover(self, m: Module, condition, message: str) -> None:
        """Some run reaches ``condition``: what was proved is not vacuous."""
        m.d.comb += Cover(~self.first & ~ResetSignal() & condition, message, src_loc_at=1)

    def source(self, m: Module, stream, *, holds: bool):
        """Free producer; with ``holds`` it keeps an offered word until it is taken.

        Returns a signal: the producer is bound to offer the word of the cycle before.
        """
        self.ports += [stream.valid, Value.cast(stream.payload)]
        waiting, same = self._watch(m, stream)
        if holds:
            m.d.comb += Assume(self.first | ~waiting | same)
        return waiting

    def sink(self, m: Module, stream) -> None:
        """Free consumer; the block must hold an offered word until it is taken."""
        self.ports += [stream.ready]
        waiting, same = self._watch(m, stream)
        self.always(m, ~waiting | same, "an offered word holds until it is taken")

    def _watch(self, m: Module, stream):
        payload = Value.cast(stream.payload)
        waiting, word = Signal(), Signal(len(payload))
        m.d.sync += [waiting.eq(stream.valid & ~stream.ready), word.eq(payload)]
        return waiting, stream.valid & (payload == word)


class Queue:
    """Model of an ideal queue: ``slots[0]`` is the oldest of ``count`` words.

    A push beyond ``capacity`` counts on but stores nothing: properties bound ``count``.
    """

    def __init__(self, m: Module, capacity: int, *, push, word, pop):
        word = Value.cast(word)
        self.count = count = Signal(range(capacity + 2))
        self.slots = [Signal(len(word), name=f"slot_{j}") for j in range(capacity)]
        m.d.sync += count.eq(count + push - pop)
        for j, slot in enumerate(self.slots):
            with m.If(push & (count - pop == j)):
                m.d.sync += slot.eq(word)
            with m.Elif(pop & (j + 1 < capacity)):
                m.d.sync += slot.eq(self.slots[(j + 1) % capacity])
