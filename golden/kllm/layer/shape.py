"""Sizes and layout of a decoder layer. Pure Python."""

import dataclasses

from golden.config import Config, Range, choice, declared, flag
from golden.kllm.flow import GLU


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerShape(Config):
    """Sizes of a LLaMA decoder layer."""

    hidden: int = dataclasses.field(metadata=declared(Range(16, 16383), "elements of a token"))
    heads: int = dataclasses.field(metadata=declared(Range(1, 128), "query heads"))
    kv_heads: int  # key and value heads, a divisor of heads
    head_size: int = dataclasses.field(
        metadata=declared(Range(32, 16383), "elements of a head, a multiple of 32")
    )
    intermediate: int = dataclasses.field(
        metadata=declared(Range(16, 16383), "elements between gate and down")
    )
    epsilon: float = 1e-5  # addend of the norms' mean square

    def __post_init__(self) -> None:
        self._check_range("kv_heads", 1, self.heads)
        if self.heads % self.kv_heads:
            self._refuse("kv_heads", f"a divisor of {self.heads}")
        if self.head_size % 32:
            self._refuse("head_size", "a multiple of 32")

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions(Config):
    """The choices by which a layer is laid out on the accelerator."""

    fuse: bool = flag(True, "one matmul and codebook for q, k, v, and one for gate and up")
    glu: str = choice(
        "index", GLU, "gate and up quantized and multiplied by index, or in FP16 (exact)"
    )
    share: float = 0.005  # outliers on each side of a token
    center: bool = flag(False, "K gets a constant vector after RoPE (golden.kllm.conditioning)")
