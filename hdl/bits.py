"""Expressions that blocks of every room use. Combinational."""

import enum
from collections.abc import Mapping

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value


def after(place: Value, count: int) -> Value:
    """The place after ``place`` in a ring: ``(place + 1) mod count``, for ``place`` < ``count``."""
    return Mux(place == count - 1, 0, place + 1)


def let(m: Module, name: str, value) -> Signal:
    """Name an expression: a signal of its shape, driven by it."""
    value = Value.cast(value)
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal


def any_of(values) -> Value:
    """Bitwise OR of all, as a balanced tree."""
    terms = list(values)
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [a | b for a, b in pairs] + terms[len(terms) // 2 * 2 :]
    return terms[0]


def one_hot(m: Module, name: str, index: Value) -> list[Value]:
    """Bit n is ``index == n``; the decoders of both halves of the index are shared."""
    bits = [(~index[n], index[n]) for n in range(len(index))]
    halves = []
    for label, half in (("low", bits[:2]), ("high", bits[2:])):
        codes = [Const(1, 1)] if not half else list(half[0])
        for zero, one in half[1:]:
            codes = [code & bit for bit in (zero, one) for code in codes]
        halves.append(
            [let(m, f"{name}_{label}_{n}", code) for n, code in enumerate(codes)] if half else codes
        )
    return [low & high if len(bits) > 2 else low for high in halves[1] for low in halves[0]]


def carry_save(m: Module, name: str, terms, width: int) -> list[Value]:
    """Unsigned ``terms`` added modulo 2**width by rows of full adders, down to two or fewer terms.

    Each level takes three terms to two: a sum without carries, and the carries one place on.
    """
    terms, level = list(terms), 0
    while len(terms) > 2:
        following = terms[len(terms) // 3 * 3 :]
        for n in range(len(terms) // 3):
            a, b, c = terms[3 * n : 3 * n + 3]
            half = let(m, f"{name}_half_{level}_{n}", a ^ b)
            total = let(m, f"{name}_sum_{level}_{n}", (half ^ c)[:width])
            carries = let(m, f"{name}_carry_{level}_{n}", Cat(Const(0, 1), (a & b) | (half & c)))
            following = [*following, total, carries[:width]]
        terms, level = following, level + 1
    return terms


def flag_word(present: Mapping[enum.IntFlag, Value]) -> Value:
    """The word of an IntFlag: each flag's bit is the value that ``present`` has for it, else 0."""
    flags = type(next(iter(present)))
    bits: list[Value] = [Const(0, 1)] * len(flags)
    for flag, is_there in present.items():
        bits[flag.value.bit_length() - 1] = is_there
    return Cat(*bits)


def outside(value: Value, allowed: range) -> Value:
    """Whether ``value`` is none of ``allowed``; bounds that its bits cannot pass are left out."""
    shape = value.shape()
    low = -(1 << shape.width - 1) if shape.signed else 0
    below = value < allowed.start if low < allowed.start else Const(0, 1)
    return below | (value >= allowed.stop) if allowed.stop < low + (1 << shape.width) else below
