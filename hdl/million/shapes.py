"""The sizes that the configurations of the room's blocks share: of a vector, and of a layer."""

import dataclasses

from golden.config import Config, nested
from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape, WindowShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorConfig(Config):
    """Codes of a vector, and what moves per cycle: of a block that knows one head."""

    pq: PqShape = nested(PqShape)
    rate: RateShape = nested(RateShape)

    def __post_init__(self) -> None:
        self.rate.check_head(self.pq)

    @property
    def parts(self) -> int:
        """Codebook words of a row, and parts of a vector: ``macs`` elements each."""
        return self.rate.parts(self.pq)

    @property
    def group(self) -> int:
        """Subspaces of a part."""
        return self.rate.group(self.pq)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig(Config):
    """The cache that is kept and attended, and the rates: of a block that knows all heads."""

    cache: MillionConfig = nested(MillionConfig)
    rate: RateShape = nested(RateShape)

    def __post_init__(self) -> None:
        self.rate.check_head(self.cache.pq)


# What several blocks have at the configurations "small" and "smollm2".
SMALL = PqShape(head_dim=16, subspaces=4, bits=4)
SMALL_RATE = RateShape(macs=8, keys=2, queries=2, window_macs=8, lanes=8)
SMOLLM2_RATE = RateShape(queries=3)
SMALL_CACHE = MillionConfig(
    pq=SMALL,
    head=HeadShape(heads=2, group=2),
    window=WindowShape(sinks=2, keep=3, block=4),
    layers=2,
)
SMOLLM2_CACHE = MillionConfig(pq=NAMED["4b_64"], head=HeadShape(heads=3, group=3), layers=30)
