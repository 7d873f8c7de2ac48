"""Sizes and layout of a decoder layer. Pure Python."""

import dataclasses

from golden.config import Config
from golden.kllm.flow import GLU, SCORES


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerShape(Config):
    """Sizes of a LLaMA decoder layer."""

    hidden: int  # elements of a token, 16..16383
    heads: int  # query heads, 1..128
    kv_heads: int  # key and value heads, a divisor of heads
    head_size: int  # elements of a head, a multiple of 32
    intermediate: int  # elements between gate and down, 16..16383
    epsilon: float = 1e-5  # addend of the norms' mean square

    def __post_init__(self) -> None:
        self._check_range("hidden", 16, 16383)
        self._check_range("heads", 1, 128)
        self._check_range("kv_heads", 1, self.heads)
        if self.heads % self.kv_heads:
            self._refuse("kv_heads", f"a divisor of {self.heads}")
        self._check_range("head_size", 32, 16383)
        if self.head_size % 32:
            self._refuse("head_size", "a multiple of 32")
        self._check_range("intermediate", 16, 16383)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions(Config):
    """How a layer is laid out on the accelerator."""

    fuse: bool = True  # one matmul and codebook for q, k, v, and one for gate and up
    scores: str = "direct"  # q in FP16 by the outlier path (direct), or quantized (index)
    glu: str = "index"  # gate and up quantized and multiplied by index, or in FP16 (exact)
    share: float = 0.005  # outliers on each side of a token
    center: bool = False  # K gets a constant vector after RoPE (golden.kllm.conditioning)

    def __post_init__(self) -> None:
        self._check_bool("fuse")
        self._check_bool("center")
        self._check_choice("scores", SCORES)
        self._check_choice("glu", GLU)
