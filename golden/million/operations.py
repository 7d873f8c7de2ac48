"""Operations and bits of on-chip memory per key: tables and bins against decoded vectors.

Pure Python. ``queries`` queries of one KV head share the reads of codes. Additions of fixed cost
per query, such as that of slope * distance, are left out.
"""

import dataclasses
from fractions import Fraction

from golden.million.config import PqShape

BIN_BITS = 40  # of a sum of 32,768 weights
_WORD_BITS = 16  # of an entry of a table or of a codebook


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one key.

    reads: places of memory read; sram_bits: read and written; additions, products: of all queries
    """

    reads: int
    sram_bits: int
    additions: int
    products: int


def _tables(pq: PqShape, queries: int) -> Work:
    each = pq.subspaces * queries
    return Work(pq.subspaces, _WORD_BITS * each, each, 0)


def _bins(pq: PqShape, queries: int) -> Work:
    each = pq.subspaces * queries
    return Work(pq.subspaces, 2 * BIN_BITS * each, each, 0)


def _decoded(pq: PqShape, queries: int) -> Work:
    each = pq.head_dim * queries
    return Work(pq.subspaces, _WORD_BITS * pq.head_dim, each, each)


# (K or V, scheme) -> the work of a key
SCHEMES = {
    ("K", "tables"): _tables,
    ("K", "decoded"): _decoded,
    ("V", "bins"): _bins,
    ("V", "decoded"): _decoded,
}


def once(pq: PqShape) -> int:
    """Products that make the tables of a query, or a sum of its bins."""
    return pq.entries * pq.head_dim


def crossing(pq: PqShape) -> Fraction | None:
    """Keys from which tables, or bins, take fewer operations than decoded vectors; None: never.

    A key costs an addition per subspace, or a product per element. An addition counts as a product.
    """
    saved = pq.head_dim - pq.subspaces
    return Fraction(once(pq), saved) if saved else None
