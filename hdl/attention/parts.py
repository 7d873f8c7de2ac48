"""Combinational parts that the blocks of softmax share: places, largest score, fixed point."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value

from golden.fp16.format import FP16
from hdl.fp16.compare import total_order_key

LOWEST_KEY = 0x03FF  # total-order key of -infinity
WEIGHT_BITS = 25  # of a weight, which is at most 1.0, on the grid 2**-24


def inside(count: Signal, length: Value, width: int) -> list[Value]:
    """Tells of each element of beat ``count`` of a row whether it lies within the row's length."""
    shift = (width - 1).bit_length()
    whole, part = count < length[shift:], count == length[shift:]
    # The highest position is never below a part of a beat.
    return [
        whole | (part & (lane < length[:shift])) if lane < width - 1 else whole
        for lane in range(width)
    ]


def largest(m: Module, words, places: list[Value], name: str = "key") -> tuple[Value, Value]:
    """(key of the largest, whether one is NaN or +infinity) of a power of two of words.

    Only words at ``places`` that are 1 count. Without one the key is 0.
    """
    keys, wrongs = [], []
    for word, counts in zip(words, places, strict=True):
        keys.append(Mux(counts, total_order_key(word), 0))
        special = word[:15] >= FP16.infinity
        negative_infinity = word == (FP16.sign_bit | FP16.infinity)
        wrongs.append(counts & special & ~negative_infinity)
    level = 0
    while len(keys) > 1:
        level += 1
        named = [Signal(FP16.bits, name=f"{name}_{level}_{k}") for k in range(len(keys))]
        m.d.comb += [signal.eq(key) for signal, key in zip(named, keys, strict=True)]
        keys = [
            Mux(low < high, high, low)
            for low, high in zip(named[::2], named[1::2], strict=True)
        ]  # fmt: skip
    return keys[0], Cat(wrongs).any()


def fixed_point(m: Module, name: str, word: Value) -> Signal:
    """A finite FP16 word of 0..1 in units of 2**-24."""
    exponent = word[10:15]
    significand = Cat(word[:10], exponent.any())
    value = Signal(WEIGHT_BITS, name=name)
    m.d.comb += value.eq(significand << Mux(exponent.any(), exponent - 1, 0)[:4])
    return value
