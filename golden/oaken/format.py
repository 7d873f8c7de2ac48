"""Oaken's bytes and words: records in memory. Pure Python.

The one place where these layouts are written; generators, golden models and testbenches import it.

A vector has D elements: all KV heads of one token's K or V. In ``Order.HEAD`` it is stored as one
scale record of 12 bytes and, per head, a dense and a sparse record:

scale   six FP16 words, little endian, in the order of ``ScaleWord``
dense   head_dim / 2 bytes; element 2i in the low four bits of byte i, element 2i + 1 in the high
sparse  per block of ``block`` elements: one count byte, then ``count`` entries, ascending by
        index; entry = index | group << 6 | fifth << 7

In ``Order.TOKEN`` the heads are divided into groups of equally many. The vector is stored as one
record per group: the scale words of the vector, then the group's blocks by ascending element:

record  scale, then per block: block / 2 bytes of its codes as in ``dense``, its count byte and
        entries as in ``sparse``

A stream (sequence, layer, K or V, slot) is the records of its tokens, one after the other.
"""

import enum
from fractions import Fraction

from golden.config import ConfigError

BLOCK_MAX = 64
INDEX_BITS = 6  # of an entry
DENSE_BITS = 4  # of an element's dense code
SCALE_BYTES = 12
MAX_FINITE = 0x7BFF  # 65504, to which decoded values saturate


class Order(enum.StrEnum):
    """The order of a cache's bytes: a head's tokens together, or a token's heads."""

    HEAD = "head"
    TOKEN = "token"


class Group(enum.IntEnum):
    """The group of an element by Eq. 1."""

    MIDDLE = 0
    INNER = 1
    OUTER = 2


class ScaleWord(enum.IntEnum):
    """Position of each FP16 word in the scale record."""

    MIDDLE_MIN = 0
    MIDDLE_STEP = 1
    OUTER_LOW_STEP = 2
    OUTER_HIGH_STEP = 3
    INNER_MIN = 4
    INNER_STEP = 5


class Threshold(enum.IntEnum):
    """Position of each FP16 threshold in a set of four; none is below the one before it."""

    OUTER_LOW = 0
    INNER_LOW = 1
    INNER_HIGH = 2
    OUTER_HIGH = 3


def entry(index: int, group: int, fifth: int) -> int:
    """Byte of one outlier: group 1 is outer, 0 inner; fifth: outer lower side, inner code bit 4."""
    return index | group << 6 | fifth << 7


def entry_fields(byte: int) -> tuple[int, int, int]:
    """(index, group, fifth) of a byte of ``entry``."""
    return byte & 63, byte >> 6 & 1, byte >> 7


def dense_slot(head: int) -> int:
    return 2 * head


def sparse_slot(head: int) -> int:
    return 2 * head + 1


def scale_slot(heads: int) -> int:
    return 2 * heads


def record_bytes(blocks: int, block: int, outliers: int) -> int:
    """Bytes of a record in ``Order.TOKEN``: of ``blocks`` blocks with ``outliers`` in all."""
    return SCALE_BYTES + blocks * (block * DENSE_BITS // 8 + 1) + outliers


def effective_bits(f: float | Fraction, elements: int, block: int = 64) -> float:
    """Bits stored per element: 4 dense, 8 per outlier, 8 per block of counts, 96 per vector."""
    return float(4 + 8 * f + Fraction(8, block) + Fraction(8 * SCALE_BYTES, elements))


def bits_read(
    f: float | Fraction, heads: int, head_dim: int, block: int = 64, heads_read: int | None = None
) -> float:
    """Bits read per element when each request covers ``heads_read`` heads (all if None).

    The scales of a vector belong to all its heads, so every request reads them all.
    """
    heads_read = heads if heads_read is None else heads_read
    if not 1 <= heads_read <= heads:
        raise ConfigError(f"heads_read must be 1..{heads}, not {heads_read}")
    return effective_bits(f, heads_read * head_dim, block)
