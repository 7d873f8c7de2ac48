"""Sizes of product-quantized attention that golden, RTL and testbenches share. Pure Python."""

import dataclasses

from golden.config import Config, Shape
from golden.paging.config import CacheConfig, RecordKind, VectorRecords


@dataclasses.dataclass(frozen=True, kw_only=True)
class PqShape(Shape):
    """Product quantization of the vector of one head."""

    head_dim: int = 128  # d: elements of a head, a multiple of subspaces, 16..256
    subspaces: int = 64  # M: parts of a vector, each with a codebook, 4..128
    bits: int = 8  # nbits: bits of a code, 4..12

    def __post_init__(self) -> None:
        self._check_range("head_dim", 16, 256)
        self._check_range("subspaces", 4, 128)
        self._check_range("bits", 4, 12)
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

    sinks: int = 4  # first tokens of a sequence that stay exact, 0..64
    keep: int = 0  # recent tokens that stay exact, 0..256
    block: int = 32  # tokens that are encoded together, 0..256

    def __post_init__(self) -> None:
        self._check_range("sinks", 0, 64)
        self._check_range("keep", 0, 256)
        self._check_range("block", 0, 256)
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

    heads: int = 8  # KV heads, 1..128
    group: int = 4  # query heads of each KV head, 1..16

    def __post_init__(self) -> None:
        self._check_range("heads", 1, 128)
        self._check_range("group", 1, 16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateShape(Shape):
    """What the engines do per cycle."""

    macs: int = 64  # B: products per cycle with the codebook, a power of two in 4..256
    keys: int = 1  # P: keys per cycle: 1, 2 or 4
    queries: int = 4  # L: queries of a KV head side by side, 1..8
    window_macs: int = 32  # products per cycle with exact rows, a power of two in 4..256
    lanes: int = 16  # words per beat of q, K, V and outputs, a power of two in 4..64

    def __post_init__(self) -> None:
        self._check_power_of_two("macs", 4, 256)
        self._check_choice("keys", (1, 2, 4))
        self._check_range("queries", 1, 8)
        self._check_power_of_two("window_macs", 4, 256)
        self._check_power_of_two("lanes", 4, 64)

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
    """What is kept and attended; the arithmetic follows from it."""

    pq: PqShape = PqShape()
    head: HeadShape = HeadShape()
    window: WindowShape = WindowShape()
    sequences: int = 1  # sequences open at a time, 1..256
    layers: int = 32  # layers of the model, 1..256
    max_tokens: int = 32768  # longest sequence, 1..32768
    pages: int = 4096  # pages of memory, head.heads..2**20
    page_bytes: int = 4096  # bytes of a page, a power of two in 256..65536
    scope_heads: bool = False  # a codebook for each KV head instead of one for all
    scope_layers: bool = True  # a LOAD serves one layer; false: all layers

    def __post_init__(self) -> None:
        for field, kind in (("pq", PqShape), ("head", HeadShape), ("window", WindowShape)):
            self._check_shape(field, kind)
        self._check_range("max_tokens", 1, 32768)
        self._check_bool("scope_heads")
        self._check_bool("scope_layers")
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
