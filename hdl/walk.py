"""Nested loops in hardware: one position per loop, advanced together (docs/walk.md)."""

from types import SimpleNamespace

from amaranth import Const, Module, Mux, Signal, Value


class Walk:
    """Visits every position of nested loops in order, the last named loop innermost.

    ``Walk(m, "walk", groups=8, tokens=tokens, beats=beats)`` visits the positions of
    ``for groups: for tokens: for beats`` and moves one position per cycle of ``step``.
    A count is a Python integer or a value; it is 1 or more and constant from ``start`` to
    ``done``. Loops of a count 1 known at elaboration have no register.

    Set by the parent (combinational, zero unless driven)
    ------------------------------------------------------
    start : the walk begins: position 0 everywhere, ``done`` falls. ``start`` wins over ``step``.
    step : move on by one position; ignored once ``done``

    Read by the parent
    ------------------
    - at.NAME : position in loop NAME, 0..count - 1
    - last.NAME : loop NAME is at its last position
    - is_last : every loop is at its last position
    - wraps.NAME : loop NAME and all loops inside it are at their last position
    - done : every position was left by a ``step``; 1 after reset

    ``counts`` with values are compared with ``at`` each cycle, which costs one adder and one
    comparator per loop.
    """

    def __init__(self, m: Module, name: str, **counts):
        if not counts:
            raise TypeError(f"{name}: a walk needs at least one loop")
        self.start = Signal(name=f"{name}_start")
        self.step = Signal(name=f"{name}_step")
        self.done = Signal(name=f"{name}_done", init=1)
        self.is_last = Signal(name=f"{name}_is_last")
        self.at, self.last, self.wraps = SimpleNamespace(), SimpleNamespace(), SimpleNamespace()
        inner = Const(1)  # all loops inside this one are at their last position
        moves = Signal(name=f"{name}_moves")
        m.d.comb += moves.eq(self.step & ~self.done)
        for loop, count in reversed(counts.items()):
            if isinstance(count, int) and count < 1:
                raise ValueError(f"{name}: {loop} must be 1 or more, not {count}")
            at, is_last = self._position(m, f"{name}_{loop}", count)
            if isinstance(at, Signal):
                with m.If(moves & inner):
                    m.d.sync += at.eq(Mux(is_last, 0, at + 1))
                with m.If(self.start):
                    m.d.sync += at.eq(0)
            wraps = Signal(name=f"{name}_{loop}_wraps")
            m.d.comb += wraps.eq(inner & is_last)
            setattr(self.at, loop, at)
            setattr(self.last, loop, is_last)
            setattr(self.wraps, loop, wraps)
            inner = wraps
        m.d.comb += self.is_last.eq(inner)
        with m.If(moves & self.is_last):
            m.d.sync += self.done.eq(1)
        with m.If(self.start):
            m.d.sync += self.done.eq(0)

    @staticmethod
    def _position(m: Module, name: str, count):
        """(position, whether it is the last) of one loop."""
        if isinstance(count, int):
            if count == 1:
                return Const(0), Const(1)
            at = Signal(range(count), name=f"{name}_at")
            last = count - 1
        else:
            count = Value.cast(count)
            at = Signal(len(count), name=f"{name}_at")
            last = (count - 1)[: len(count)]
        is_last = Signal(name=f"{name}_is_last")
        m.d.comb += is_last.eq(at == last)
        return at, is_last
