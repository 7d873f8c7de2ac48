"""Sizes of the matmul engine, and of those phases that have none."""

import dataclasses

from golden.config import Config, bounded, choice, flag, nested
from golden.index.format import K_MAX
from golden.kllm.config import SlotShape, VectorShape
from golden.kllm.isa import ROW_ELEMENTS
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.lane.select_config import PACKET_WORDS
from hdl.kllm.matmul.payloads import ticket_layout
from hdl.ports import Payload

FIRST_REQUEST = ("from start to the first request", 1)  # a delay of each walk


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmMatmulPhaseConfig(Config):
    """A phase without sizes: the payloads of the engines give every width."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmRowWalkConfig(Config):
    """The outputs of the walk of rows."""

    packet_words: int = choice(1, PACKET_WORDS, "words of a codebook packet per cycle")


def _lane() -> KllmPeLaneConfig:
    return KllmPeLaneConfig(outliers_max=SlotShape.outliers_max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmMatmulConfig(Config):
    """Sizes of what the engine drives."""

    lanes: int = bounded(16, 1, 64, "PE lanes")
    lane: KllmPeLaneConfig = nested(_lane, "one that serves ``slot``", KllmPeLaneConfig)
    vectors: VectorShape = nested(VectorShape, "the vector memory")
    slot: SlotShape = nested(SlotShape, "the slots")
    replay_beats: int = bounded(
        256, 1, K_MAX, "longest tokens that several may share weights, in beats"
    )
    front: bool = flag(False, "the engine tells which rows of a certain command are still to come")
    based: bool = flag(False, "WEIGHT_BASE, whose base is added to weights' addresses")

    def __post_init__(self) -> None:
        if self.lane.columns % ROW_ELEMENTS:
            self._refuse("lane.columns", f"a multiple of {ROW_ELEMENTS}")
        if ROW_ELEMENTS % self.lane.elements:
            self._refuse("lane.elements", f"a divisor of {ROW_ELEMENTS}")
        for name in ("bits_a", "integer_bits", "outliers_max"):
            common = getattr(self.slot, name)
            if getattr(self.lane, name) != common:
                self._refuse(f"lane.{name}", f"{common} as in slot.{name}")
        if self.slot.elements > self.lane.k_max:
            self._refuse("lane.k_max", f"at least {self.slot.elements}, slot.elements")

    @property
    def ticket_layout(self) -> Payload:
        """A command whose outputs are to be collected."""
        ordered = {"ordered": (1, "one token, of a slot")} if self.front else {}
        return Payload(**ticket_layout.parts, **ordered)

    @property
    def row_walk_config(self) -> KllmRowWalkConfig:
        return KllmRowWalkConfig(packet_words=self.lane.packet_words)

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
