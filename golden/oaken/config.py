"""Sizes of a KV cache that golden, RTL and testbenches share. Pure Python."""

import dataclasses
import functools

import golden.paging.config
from golden.oaken.format import BLOCK_MAX, SCALE_BYTES
from golden.paging.config import RecordKind, RecordShape

_PER_VECTOR = (RecordKind(name="scale", least=SCALE_BYTES, most=SCALE_BYTES),)


@functools.cache
def _per_head(dense_bytes: int, sparse_least: int, sparse_most: int) -> tuple[RecordKind, ...]:
    """The records of a head: benches read them every cycle, and each is checked when made."""
    return (
        RecordKind(name="dense", least=dense_bytes, most=dense_bytes),
        RecordKind(name="sparse", least=sparse_least, most=sparse_most),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KvShape(RecordShape):
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
    def per_head(self) -> tuple[RecordKind, ...]:  # type: ignore[override]
        return _per_head(self.dense_bytes, self.head_blocks, self.sparse_bytes_max)

    @property
    def per_vector(self) -> tuple[RecordKind, ...]:  # type: ignore[override]
        return _PER_VECTOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig(golden.paging.config.CacheConfig):
    """Capacity of the paged cache of Oaken's vectors."""

    kv: KvShape = KvShape()

    def __post_init__(self) -> None:
        self._check_shape("kv", KvShape)
        super().__post_init__()


assert BLOCK_MAX == 64  # six bits of index
