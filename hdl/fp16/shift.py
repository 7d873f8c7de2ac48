"""Shifters and the leading-zero count that the operators share. Combinational."""

from amaranth import Cat, Const, Module, Mux
from amaranth.hdl import Value

from hdl.bits import let


def leading_zeros(m: Module, value, name: str = "zeros") -> tuple[Value, Value]:
    """``(count, nonzero)`` of an unsigned value; count is unspecified for zero.

    A tree of 2:1 choices: depth log2(width), no priority chain.
    """
    width = len(value)
    size = 1 << max(width - 1, 1).bit_length()
    bits = Cat(Const(0, size - width), value) if size > width else value
    # Node k of a level: (nonzero, count bits from the least significant); node 0 at the top.
    nodes = [(bits[size - 1 - k], []) for k in range(size)]
    level = 0
    while len(nodes) > 1:
        merged = []
        for k in range(0, len(nodes), 2):
            (high_any, high_count), (low_any, low_count) = nodes[k], nodes[k + 1]
            count = [
                Mux(high_any, high, low) for high, low in zip(high_count, low_count, strict=True)
            ]
            node = let(m, f"{name}_{level}_{k // 2}", Cat(high_any | low_any, *count, ~high_any))
            merged.append((node[0], list(node[1:])))
        nodes = merged
        level += 1
    nonzero, count = nodes[0]
    return Cat(*count), nonzero


def shift_left(m: Module, value, amount, name: str = "left") -> Value:
    """``(value << amount)`` within the width of ``value``: what leaves at the top is lost."""
    width = len(value)
    for k in reversed(range(len(amount))):
        step = 1 << k
        shifted = Cat(Const(0, step), value[:-step]) if step < width else Const(0, width)
        value = let(m, f"{name}_{k}", Mux(amount[k], shifted, value))
    return value


def shift_right_sticky(m: Module, value, amount, name: str = "right") -> tuple[Value, Value]:
    """``(value >> amount, 1 where a one was shifted out)``."""
    width = len(value)
    sticky = Const(0, 1)
    for k in reversed(range(len(amount))):
        step = 1 << k
        shifted = Cat(value[step:], Const(0, step)) if step < width else Const(0, width)
        lost = value[:step].any() & amount[k]
        sticky = let(m, f"{name}_sticky_{k}", sticky | lost)
        value = let(m, f"{name}_{k}", Mux(amount[k], shifted, value))
    return value, sticky
