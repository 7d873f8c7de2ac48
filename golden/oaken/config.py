"""Sizes of a KV cache that golden, RTL and testbenches share. Pure Python."""

import dataclasses
import functools

import golden.paging.config
from golden.config import bounded, choice, flag, nested
from golden.oaken.format import BLOCK_MAX, SCALE_BYTES, Order, record_bytes
from golden.paging.config import BYTES_MAX, RecordKind, RecordShape

BLOCKS_MAX = 64  # of a record that the decoder takes

_PER_VECTOR = (RecordKind(name="scale", least=SCALE_BYTES, most=SCALE_BYTES),)


@functools.cache
def _per_head(dense_bytes: int, sparse_least: int, sparse_most: int) -> tuple[RecordKind, ...]:
    """The records of a head: benches read them every cycle, and each is checked when made."""
    return (
        RecordKind(name="dense", least=dense_bytes, most=dense_bytes),
        RecordKind(name="sparse", least=sparse_least, most=sparse_most),
    )


@functools.cache
def _per_group(least: int, most: int) -> tuple[RecordKind, ...]:
    return (RecordKind(name="token", least=least, most=most),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KvShape(RecordShape):
    """The K or the V vector of one token: ``heads`` heads of ``head_dim`` elements.

    Scales belong to the whole vector. For scales per head take ``heads=1`` and number the heads
    as layers.

    order : head: dense and sparse records of each head, a scale record of the vector. token: one
        record per group of heads, with all that its elements need.
    """

    heads: int = bounded(8, 1, 128, "KV heads of a layer")
    head_dim: int = bounded(128, 16, 1024, "elements of a head, a multiple of block")
    block: int = choice(64, (16, 32, 64), "elements that share a count byte")
    order: str = choice("head", ("head", "token"), "whose bytes lie together: a head's, a token's")
    groups: int = bounded(1, 1, 128, "order token: records of a vector, each of equally many heads")

    def __post_init__(self) -> None:
        if self.head_dim % self.block:
            self._refuse("head_dim", f"a multiple of block = {self.block}")
        if not self.is_by_token:
            if self.groups != 1:
                self._refuse("groups", "1 in order head")
        elif self.heads % self.groups:
            self._refuse("groups", f"a divisor of heads = {self.heads}")
        elif self._record_bytes_max > BYTES_MAX:
            self._refuse("groups", f"so many that a record has at most {BYTES_MAX} bytes")
        elif self.part_blocks > BLOCKS_MAX:
            self._refuse("groups", f"so many that a record has at most {BLOCKS_MAX} blocks")

    @property
    def is_by_token(self) -> bool:
        return self.order == Order.TOKEN

    @property
    def parts(self) -> int:
        return self.groups if self.is_by_token else self.heads

    @property
    def part_heads(self) -> int:
        """Heads of a part: those of a group, or one."""
        return self.heads // self.parts

    @property
    def part_blocks(self) -> int:
        return self.part_heads * self.head_blocks

    @property
    def _record_bytes_max(self) -> int:
        """Bytes of a group's longest record: every element an outlier."""
        return record_bytes(self.part_blocks, self.block, self.part_blocks * self.block)

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
        if self.is_by_token:
            least = record_bytes(self.part_blocks, self.block, 0)
            return _per_group(least, self._record_bytes_max)
        return _per_head(self.dense_bytes, self.head_blocks, self.sparse_bytes_max)

    @property
    def per_vector(self) -> tuple[RecordKind, ...]:  # type: ignore[override]
        return () if self.is_by_token else _PER_VECTOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig(golden.paging.config.CacheConfig):
    """Capacity of the paged cache of Oaken's vectors."""

    kv: KvShape = nested(KvShape)
    windows: bool = flag(False, "an attend may see the latest tokens alone")
    caps: bool = flag(False, "an attend may have a soft cap of its scores")
    sinks: bool = flag(False, "an attend has a sink of each query: a score without a value")

    def part(self, engines: int) -> "CacheConfig":
        """The cache of one of ``engines``: its heads of a vector, and as many pages.

        A vector of one group has one in each engine.
        """
        kv = self.kv
        groups = max(1, kv.groups // engines)
        kv = dataclasses.replace(kv, heads=kv.heads // engines, groups=groups)
        return dataclasses.replace(self, kv=kv)


assert BLOCK_MAX == 64  # six bits of index
