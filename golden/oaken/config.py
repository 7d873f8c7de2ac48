"""Sizes of a KV cache that golden, RTL and testbenches share. Pure Python."""

import dataclasses

from golden.config import Config
from golden.oaken.format import BLOCK_MAX, SCALE_BYTES

__all__ = ["CacheConfig", "KvShape"]

STREAMS_MAX = 1 << 20  # words of one RAM


@dataclasses.dataclass(frozen=True, kw_only=True)
class KvShape(Config):
    """The K or the V vector of one token: ``heads`` heads of ``head_dim`` elements.

    Scales belong to the whole vector. For scales per head take ``heads=1`` and number the heads
    as layers.
    """

    heads: int = 8  # KV heads of a layer, 1..128
    head_dim: int = 128  # elements of a head, a multiple of block, 16..1024
    block: int = 64  # elements that share a count byte: 16, 32 or 64

    def __post_init__(self) -> None:
        self._check_range("heads", 1, 128)
        self._check_choice("block", (16, 32, 64))
        self._check_range("head_dim", 16, 1024)
        if self.head_dim % self.block:
            self._refuse("head_dim", f"a multiple of block = {self.block}")

    @property
    def elements(self) -> int:
        """D: elements of the vector."""
        return self.heads * self.head_dim

    @property
    def head_blocks(self) -> int:
        return self.head_dim // self.block

    @property
    def dense_bytes(self) -> int:
        """Bytes of one token's dense record of one head."""
        return self.head_dim // 2

    @property
    def sparse_bytes_max(self) -> int:
        """Bytes of one token's longest sparse record of one head: every element an outlier."""
        return self.head_dim + self.head_blocks

    @property
    def record_bytes_max(self) -> int:
        return max(self.sparse_bytes_max, SCALE_BYTES)

    @property
    def slots(self) -> int:
        """Streams of one (sequence, layer, K or V): dense and sparse per head, and the scales."""
        return 2 * self.heads + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig(Config):
    """Capacity of the paged cache."""

    kv: KvShape = KvShape()
    sequences: int = 4  # sequences open at a time, 1..256
    layers: int = 32  # layers of the model, 1..256
    pages: int = 4096  # pages of memory, one for each stream of a vector or more, 3..2**20
    page_bytes: int = 4096  # bytes of a page, a power of two in 256..65536
    max_tokens: int = 4096  # longest sequence, 1..2**20

    def __post_init__(self) -> None:
        self._check_range("sequences", 1, 256)
        self._check_range("layers", 1, 256)
        self._check_range("pages", self.kv.slots, 1 << 20)  # else no token finds room
        self._check_power_of_two("page_bytes", 256, 65536)
        self._check_range("max_tokens", 1, 1 << 20)
        if 2 * self.kv.record_bytes_max > self.page_bytes:
            # So that a record takes at most one new page, and that a page starts a record.
            self._refuse("page_bytes", f"at least two records, {2 * self.kv.record_bytes_max}")
        if self.streams > STREAMS_MAX:
            per_sequence = self.streams // self.sequences
            self._refuse("sequences", f"at most {STREAMS_MAX // per_sequence} of as many streams")

    @property
    def streams(self) -> int:
        """Streams that have pages: (sequence, layer, K or V, slot)."""
        return self.vectors * self.kv.slots

    @property
    def vectors(self) -> int:
        """(sequence, layer, K or V)."""
        return self.sequences * self.layers * 2

    def vector_index(self, sequence: int, layer: int, kv: int) -> int:
        return (sequence * self.layers + layer) * 2 + kv

    def stream_index(self, sequence: int, layer: int, kv: int, slot: int) -> int:
        return self.vector_index(sequence, layer, kv) * self.kv.slots + slot


assert BLOCK_MAX == 64  # six bits of index
