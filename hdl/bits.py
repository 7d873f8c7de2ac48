"""Expressions that blocks of every room use. Combinational."""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value

__all__ = ["after", "let"]


def after(place: Value, count: int) -> Value:
    """The place after ``place`` in a ring: ``(place + 1) mod count``, for ``place`` < ``count``."""
    return Mux(place == count - 1, 0, place + 1)


def let(m: Module, name: str, value) -> Signal:
    """Name an expression: a signal of its shape, driven by it."""
    value = Value.cast(value)
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal
