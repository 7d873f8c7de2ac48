"""Sizes of product-quantized attention that golden, RTL and testbenches share. Pure Python."""

import dataclasses

from golden.config import Config, Shape, bounded, choice, flag, nested, power_of_two
from golden.paging.config import CacheConfig, RecordKind, VectorRecords


@dataclasses.dataclass(frozen=True, kw_only=True)
class PqShape(Shape):
    """Product quantization of the vector of one head."""

    head_dim: int = bounded(128, 16, 256, "d: elements of a head, a multiple of subspaces")
    subspaces: int = bounded(64, 4, 128, "M: parts of a vector, each with a codebook")
    bits: int = bounded(8, 4, 12, "nbits: bits of a code")

    def __post_init__(self) -> None:
        if self.head_dim % self.subspaces:
            self._refuse("head_dim", f"a multiple of subspaces = {self.subspaces}")

    @property
    def entries(self) -> int:
        """Most entries of a codebook."""
        return 1 << self.bits

    @property
    def sub(self) -> int:
        """Elements of one part of a vector."""
        return self.head_dim // self.subspaces

    @property
    def record_bits(self) -> int:
        return self.subspaces * self.bits

    @property
    def record_bytes(self) -> int:
        """Bytes of the codes of one vector of one head."""
        return -(-self.record_bits // 8)


# By head size: MILLION's 4 bits and 3 bits (footnote 2 of the paper swaps them).
NAMED: dict[str, PqShape] = {
    "4b": PqShape(),
    "3b": PqShape(subspaces=32, bits=12),
    "4b_64": PqShape(head_dim=64, subspaces=32, bits=8),
    "3b_64": PqShape(head_dim=64, subspaces=16, bits=12),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowShape(Shape):
    """Tokens that stay exact: the first ``sinks``, and the recent ones.

    When an APPEND finds ``keep + block`` recent tokens, the oldest ``block`` of them become codes.
    Policy ``flush`` of w tokens: keep = 0, block = w. Policy ``sliding``: keep = w, any block.
    Without keep and block no token is recent: an APPEND encodes its token at once.
    """

    sinks: int = bounded(4, 0, 64, "first tokens of a sequence that stay exact")
    keep: int = bounded(0, 0, 256, "recent tokens that stay exact")
    block: int = bounded(32, 0, 256, "tokens that are encoded together")

    def __post_init__(self) -> None:
        if self.keep and not self.block:
            self._refuse("block", "1..256 where keep is not 0")

    @property
    def recent(self) -> int:
        """Most recent tokens."""
        return self.keep + self.block

    @property
    def places(self) -> int:
        """Places of the ring of recent tokens: also one for a token that is encoded at once."""
        return max(self.recent, 2)

    @property
    def rows(self) -> int:
        """Tokens of a head that the window holds."""
        return self.sinks + self.recent


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadShape(Shape):
    """Heads of a layer."""

    heads: int = bounded(8, 1, 128, "KV heads")
    group: int = bounded(4, 1, 16, "query heads of each KV head")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateShape(Shape):
    """The work that the engines do per cycle."""

    macs: int = power_of_two(64, 4, 256, "B: products per cycle with the codebook")
    keys: int = choice(1, (1, 2, 4), "P: keys per cycle")
    queries: int = bounded(4, 1, 8, "L: queries of a KV head side by side")
    window_macs: int = power_of_two(32, 4, 256, "products per cycle with exact rows")
    lanes: int = power_of_two(16, 4, 64, "words per beat of q, K, V and outputs")

    def parts(self, pq: PqShape) -> int:
        """Words of ``macs`` elements in a vector."""
        return pq.head_dim // self.macs

    def group(self, pq: PqShape) -> int:
        """Subspaces of such a word."""
        return self.macs // pq.sub

    def check_head(self, pq: PqShape) -> None:
        """ConfigError unless a vector of one head takes whole steps."""
        for field in ("macs", "window_macs", "lanes"):
            if pq.head_dim % self._value(field):
                self._refuse(field, f"a divisor of head_dim = {pq.head_dim}")
        if self.macs % pq.sub:
            self._refuse("macs", f"a multiple of head_dim / subspaces = {pq.sub}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionConfig(Config):
    """The sizes of what is kept and attended; the arithmetic follows from them."""

    pq: PqShape = nested(PqShape)
    head: HeadShape = nested(HeadShape)
    window: WindowShape = nested(WindowShape)
    sequences: int = 1  # sequences open at a time, 1..256
    layers: int = 32  # layers of the model, 1..256
    max_tokens: int = bounded(32768, 1, 32768, "longest sequence")
    pages: int = 4096  # pages of memory, head.heads..2**20
    page_bytes: int = 4096  # bytes of a page, a power of two in 256..65536
    scope_heads: bool = flag(False, "a codebook for each KV head instead of one for all")
    scope_layers: bool = flag(True, "a LOAD serves one layer; false: all layers")

    def __post_init__(self) -> None:
        _ = self.cache  # refuses the other fields

    @property
    def books(self) -> int:
        """Codebooks of K, or of V, of a layer."""
        return self.head.heads if self.scope_heads else 1

    @property
    def slots(self) -> int:
        """Windows of exact rows: one for each (sequence, layer, KV head)."""
        return self.sequences * self.layers * self.head.heads

    @property
    def cache(self) -> CacheConfig:
        """The paged cache of the codes: one fixed record per head and token."""
        size = self.pq.record_bytes
        return CacheConfig(
            kv=VectorRecords(
                heads=self.head.heads,
                per_head=(RecordKind(name="codes", least=size, most=size),),
                per_vector=(),
            ),
            sequences=self.sequences,
            layers=self.layers,
            pages=self.pages,
            page_bytes=self.page_bytes,
            max_tokens=self.max_tokens,
        )


# Models whose K, V and queries golden.llm.million.example takes.
SYSTEMS: dict[str, MillionConfig] = {
    "smollm2": MillionConfig(pq=NAMED["4b_64"], head=HeadShape(heads=3, group=3), layers=30),
    "llama": MillionConfig(head=HeadShape(heads=2, group=4)),
}
