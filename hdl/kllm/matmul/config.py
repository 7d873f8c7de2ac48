"""Sizes of the matmul engine, and of those phases that have none."""

import dataclasses

from golden.config import Config
from golden.index.format import K_MAX
from golden.kllm.isa import ROW_ELEMENTS
from hdl.kllm.lane.config import KllmPeLaneConfig

__all__ = ["KllmMatmulConfig", "KllmMatmulPhaseConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmMatmulPhaseConfig(Config):
    """A phase without sizes: the payloads of the engines give every width."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmMatmulConfig(Config):
    """Sizes of what the engine drives."""

    lanes: int = 16  # 1..64
    lane: KllmPeLaneConfig = dataclasses.field(default_factory=KllmPeLaneConfig)
    vector_rows: int = 4096  # rows of the vector memory, 1..65536
    slots: int = 16  # activation slots, 1..256
    slot_elements: int = 4096  # longest token of a slot, 1..16383
    replay_beats: int = 256  # longest tokens that several may share weights, in beats, 1..16383

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, 64)
        if not isinstance(self.lane, KllmPeLaneConfig):
            self._refuse("lane", "a KllmPeLaneConfig")
        if self.lane.columns % ROW_ELEMENTS:
            self._refuse("lane", f"one whose columns are a multiple of {ROW_ELEMENTS}")
        if ROW_ELEMENTS % self.lane.elements:
            self._refuse("lane", f"one whose elements divide {ROW_ELEMENTS}")
        self._check_range("vector_rows", 1, 1 << 16)
        self._check_range("slots", 1, 256)
        self._check_range("slot_elements", 1, min(K_MAX, self.lane.k_max))
        self._check_range("replay_beats", 1, K_MAX)

    @property
    def group_outputs(self) -> int:
        """Outputs that one group of all lanes gives."""
        return self.lanes * self.lane.columns

    @property
    def lane_rows(self) -> int:
        """Rows that one job of one lane gives."""
        return self.lane.columns // ROW_ELEMENTS

    @property
    def group_rows(self) -> int:
        """Rows that one group of all lanes gives."""
        return self.lanes * self.lane_rows
