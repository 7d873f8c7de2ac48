"""The nearest entries by Python's integers: independent of golden, for small sizes."""

from fractions import Fraction


def value(word: int) -> Fraction:
    """The number of a finite FP16 word."""
    exponent, fraction = word >> 10 & 31, word & 0x3FF
    magnitude = (1024 + fraction << exponent - 1) if exponent else fraction
    return Fraction(-magnitude if word >> 15 else magnitude, 1 << 24)


def nearest_codes(x, codebook, exponent: int) -> list[int]:
    """(M,) codes of one vector: x (d,) words, codebook (M, entries, sub) words."""
    scale = Fraction(2) ** exponent
    codes, sub = [], len(codebook[0][0])
    for m, entries in enumerate(codebook):
        part = [value(int(word)) for word in x[m * sub : (m + 1) * sub]]
        distances = [
            sum((a - scale * value(int(c))) ** 2 for a, c in zip(part, entry, strict=True))
            for entry in entries
        ]
        codes.append(distances.index(min(distances)))
    return codes
