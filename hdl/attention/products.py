"""Exact products of FP16 words, term by term: arithmetic of exact attention."""

from amaranth import Cat, Const, Module, Signal, signed
from amaranth.hdl import Value

from golden.fp16.format import FP16


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


def complements(m: Module, name: str, terms: list[tuple]) -> list[Signal]:
    """(sign, magnitude) terms, a cycle later, each negative one complemented: it lacks a one."""
    bits, found = max(len(magnitude) for _, magnitude in terms), []
    for n, (sign, magnitude) in enumerate(terms):
        term = Signal(signed(bits + 1), name=f"{name}_{n}", reset_less=True)
        wide = Cat(magnitude, Const(0, bits - len(magnitude)))
        m.d.sync += term.eq(Cat(wide ^ sign.replicate(bits), sign).as_signed())
        found.append(term)
    return found
