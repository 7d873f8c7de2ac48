"""What the configurations of the room's blocks share: sizes of a vector, sizes of a layer."""

import dataclasses

from golden.config import Config
from golden.million.config import MillionConfig, PqShape, RateShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorConfig(Config):
    """Codes of a vector, and what moves per cycle: of a block that knows one head."""

    pq: PqShape = dataclasses.field(default_factory=PqShape)
    rate: RateShape = dataclasses.field(default_factory=RateShape)

    def __post_init__(self) -> None:
        self._check_shape("pq", PqShape)
        self._check_shape("rate", RateShape)
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
    """What is kept and attended, and what moves per cycle: of a block that knows all heads."""

    cache: MillionConfig = dataclasses.field(default_factory=MillionConfig)
    rate: RateShape = dataclasses.field(default_factory=RateShape)

    def __post_init__(self) -> None:
        self._check_shape("cache", MillionConfig)
        self._check_shape("rate", RateShape)
        self.rate.check_head(self.cache.pq)
