"""Exact products of FP16 words and their sums: arithmetic of million_window."""

from amaranth import Cat, Module, Signal, signed
from amaranth.hdl import Value

from golden.fp16.format import FP16
from hdl.bits import let

__all__ = ["delayed", "product_registers", "signed_sum"]


def delayed(m: Module, valid: Value, flags: Signal, cycles: int) -> tuple[Signal, Signal]:
    """``valid`` and ``flags`` of ``cycles`` cycles before."""
    for n in range(1, cycles + 1):
        next_valid = Signal(name=f"valid_{n}")
        next_flags = Signal(flags.shape(), name=f"flags_{n}", reset_less=True)
        m.d.sync += [next_valid.eq(valid), next_flags.eq(flags)]
        valid, flags = next_valid, next_flags
    return valid, flags


def product_registers(m: Module, name: str, a, b) -> tuple[Signal, Signal, Signal]:
    """(sign, significand, shift) of the product of two words of ``unpack``, a cycle later.

    Its value is ``(-1)**sign * significand * 2**shift * 2**-48``, shift 0..58 for finite words.
    """
    values = {
        "sign": a.sign ^ b.sign,
        "significand": a.significand * b.significand,
        "shift": (a.exponent + b.exponent - 2)[: FP16.exp_bits + 1],
    }
    found = []
    for part, value in values.items():
        register = Signal(value.shape(), name=f"{part}_{name}", reset_less=True)
        m.d.sync += register.eq(value)
        found.append(register)
    return found[0], found[1], found[2]


def signed_sum(m: Module, name: str, terms: list[tuple]) -> Signal:
    """The exact sum of (sign, magnitude) terms.

    A negative term is its complement and a one, and the ones are added together.
    """
    bits = max(len(magnitude) for _, magnitude in terms)
    values = [
        let(m, f"{name}_term_{n}", Cat(magnitude ^ sign.replicate(len(magnitude)), sign))
        for n, (sign, magnitude) in enumerate(terms)
    ]
    levels, level = [value.as_signed() for value in values], 0
    while len(levels) > 1:
        pairs = zip(levels[::2], levels[1::2], strict=False)
        following = [let(m, f"{name}_{level}_{n}", a + b) for n, (a, b) in enumerate(pairs)]
        levels, level = following + levels[len(levels) // 2 * 2 :], level + 1
    ones = sum(sign for sign, _ in terms)
    total = Signal(signed(bits + 1 + len(terms).bit_length()), name=f"{name}_sum")
    m.d.comb += total.eq(levels[0] + ones)
    return total
