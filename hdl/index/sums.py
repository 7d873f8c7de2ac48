"""FP16 words on their grid, and trees of adders with one carry chain per cycle."""

import itertools

from amaranth import Cat, Module, Mux, Signal, signed
from amaranth.hdl import Value

from golden.fp16.format import FP16
from golden.index.timing import TERMS
from hdl.bits import carry_save, let

WORD_TERM_BITS = 41  # of a finite FP16 word on the grid 2**-24


def grid_parts(word: Value) -> tuple[Value, Value, Value]:
    """(sign, significand, shift) of an FP16 word.

    Its value is ``(-1)**sign * significand * 2**shift * 2**-24``: 11 bits, shift 0..30.
    """
    exponent = word[FP16.frac_bits : FP16.bits - 1]
    normal = exponent.any()
    shift = Mux(normal, exponent - 1, 0)[: FP16.exp_bits]
    return word[-1], Cat(word[: FP16.frac_bits], normal), shift


def word_terms(m: Module, words) -> tuple[list[Signal], list[Value]]:
    """(terms, signs) for ``add_tree`` of FP16 words on the grid 2**-24; terms a cycle later.

    A NaN or an infinity gives an unspecified term.
    """
    terms, signs, bits = [], [], WORD_TERM_BITS - 1
    for k, word in enumerate(words):
        sign, significand, shift = grid_parts(word)
        term = Signal(signed(WORD_TERM_BITS), name=f"term_{k}", reset_less=True)
        magnitude = let(m, f"magnitude_{k}", (significand << shift)[:bits])
        # A negative one is complemented; its one is added with the sum.
        m.d.sync += term.eq(Cat(magnitude ^ sign.replicate(bits), sign).as_signed())
        terms.append(term)
        signs.append(sign)
    return terms, signs


def add_signed(m: Module, name: str, terms, bits: int) -> Signal:
    """The sum of signed or unsigned ``terms``, one cycle later: rows of full adders, one carry."""
    wide = []
    for k, term in enumerate(terms):
        extended = Signal(signed(bits), name=f"{name}_term_{k}")
        m.d.comb += extended.eq(term)
        wide.append(extended.as_unsigned())
    left = carry_save(m, name, wide, bits)
    total = Signal(signed(bits), name=name, reset_less=True)
    m.d.sync += total.eq(sum(left[1:], left[0])[:bits].as_signed())
    return total


def _groups(terms: list) -> list[list]:
    """Splits into as few groups of at most TERMS as it can; their sizes differ by one at most."""
    count = -(-len(terms) // TERMS)
    ends = [n * len(terms) // count for n in range(count + 1)]
    return [terms[a:b] for a, b in itertools.pairwise(ends)]


def add_tree(m: Module, name: str, terms, signs, levels: int) -> list[Signal]:
    """The sums of ``terms`` after ``levels`` levels of TERMS each, a cycle per level.

    A negative term is complemented: ``signs``, a cycle ahead of the terms, count the ones that it
    lacks. The groups of a level are as equal as can be. One term and its count would be a long
    increment, and the mapping makes a slow chain of it.
    """
    counts = []
    for k, some in enumerate(_groups(signs)):
        count = Signal(range(TERMS + 1), name=f"{name}_count_{k}", reset_less=True)
        m.d.sync += count.eq(sum(some[1:], some[0]))
        counts.append(count)
    for level in range(levels):
        groups = _groups(terms)
        bits = len(terms[0]) + (min(TERMS, len(terms)) - 1).bit_length()
        extra = [[count] for count in counts] if level == 0 else [[]] * len(groups)
        terms = [
            add_signed(m, f"{name}_{level}_{k}", [*group, *extra[k]], bits)
            for k, group in enumerate(groups)
        ]
    return terms
