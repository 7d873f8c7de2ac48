"""Engines of attention, and the cycles of their KV heads. Imports no torch."""

import dataclasses

from golden.million.config import PqShape
from hdl.million.attention import MillionAttentionConfig
from hdl.million.decode_engine import MillionDecodeEngineConfig
from hdl.vqllm.attend.attention import VqAttentionConfig

TRAIN = 5  # requests of a train; the first and the last are not counted
COUNTED = TRAIN - 2
Config = VqAttentionConfig | MillionAttentionConfig | MillionDecodeEngineConfig


def shape_of(config: Config) -> tuple[PqShape, int]:
    """Codes of a vector, and queries side by side."""
    if isinstance(config, VqAttentionConfig):
        return config.shape.pq, config.shape.queries
    if isinstance(config, MillionAttentionConfig):
        return config.cache.pq, config.rate.queries
    return config.pq, config.rate.queries


@dataclasses.dataclass(frozen=True)
class Spent:
    """Cycles of KV heads, with their bounds.

    others : of COUNTED heads among others of a layer, and the bound of one. alone : of one head.
    loaded : of COUNTED heads that each take new codebooks by a LOAD, and the bound of one
    """

    tokens: int
    others: tuple[int, int]
    alone: int | None = None
    loaded: tuple[int, int] | None = None

    @property
    def each(self) -> str:
        """Cycles of a head among others."""
        return f"{self.others[0] / COUNTED:,.0f}"

    @property
    def cells(self) -> list[str]:
        cycles, least = self.others
        found = [f"{least:,}", self.each, f"{cycles / COUNTED / least:.3f}"]
        found.append("" if self.alone is None else f"{self.alone:,}")
        if self.loaded is None:
            return [*found, "", ""]
        cycles, least = self.loaded
        return [*found, f"{least:,}", f"{cycles / COUNTED:,.0f}"]
