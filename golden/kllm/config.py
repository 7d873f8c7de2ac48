"""Sizes of a KLLM accelerator that software must know: what programs and images depend on."""

import dataclasses

from golden.config import Config, Shape
from golden.index.format import INT_BITS, K_MAX
from golden.kllm.format import (
    PRODUCTS,
    WeightLayout,
    groups,
    integer_packet_length,
    kmeans_packet_length,
)
from golden.kllm.isa import ROW_ELEMENTS

__all__ = ["MACHINES", "LaneShape", "MachineConfig", "PortShape", "SlotShape", "VectorShape"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorShape(Shape):
    """The vector memory: rows of 16 FP16 words."""

    rows: int = 4096  # rows of the vector memory, 1..65536

    def __post_init__(self) -> None:
        self._check_range("rows", 1, 1 << 16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotShape(Shape):
    """The slots: quantized tokens of indices or of unsigned integers, with outliers."""

    slots: int = 16  # tokens held, 2..256
    elements: int = 4096  # longest token, 16..16383
    outliers_max: int = 64  # most outliers of a token, 1..16383
    bits_a: int = 4  # bits of an activation index, 2..4
    integer_bits: int = 8  # bits of an unsigned integer, 4 or 8; 0: no integers

    def __post_init__(self) -> None:
        self._check_range("slots", 2, 256)
        self._check_range("elements", ROW_ELEMENTS, K_MAX)
        self._check_range("outliers_max", 1, K_MAX)
        self._check_range("bits_a", 2, 4)
        self._check_choice("integer_bits", (0, *INT_BITS))

    @property
    def rows(self) -> int:
        """Rows of entries of one slot."""
        return -(-self.elements // ROW_ELEMENTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneShape(Shape):
    """The PE lanes: how many, and what one weight beat of a lane is."""

    lanes: int = 16  # PE lanes, 1..64
    columns: int = 32  # output columns of a lane, 1..64
    elements: int = 16  # elements of the reduction axis per beat, 1..16
    bits_b: int = 4  # bits of a weight index, 2..4

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, 64)
        self._check_range("columns", 1, 64)
        self._check_range("elements", 1, 16)
        self._check_range("bits_b", 2, 4)

    @property
    def group_outputs(self) -> int:
        """Output channels that all lanes compute at a time."""
        return self.lanes * self.columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class PortShape(Shape):
    """The memories of weight images, each with a read port."""

    ports: int = 24  # weight read ports, 1..64
    bits: int = 1024  # bits of a port word, 8..4096, a multiple of 8

    def __post_init__(self) -> None:
        self._check_range("ports", 1, 64)
        self._check_range("bits", 8, 4096)
        if self.bits % 8:
            self._refuse("bits", "a multiple of 8")

    def layout(self, lane: LaneShape) -> WeightLayout:
        """Of weight images for these lanes."""
        return WeightLayout(
            lane.lanes, lane.columns, lane.elements, lane.bits_b, self.ports, self.bits
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineConfig(Config):
    """An accelerator as a program sees it; the generator's configuration gives the same one."""

    lanes: int = 16  # PE lanes, 1..64
    columns: int = 32  # output columns of a lane, a multiple of 16 up to 64
    elements: int = 16  # elements of the reduction axis per beat: 1, 2, 4, 8 or 16
    bits_a: int = 4  # bits of an activation index, 2..4
    bits_b: int = 4  # bits of a weight index, 2..4
    integer_bits: int = 8  # bits of an unsigned integer, 4 or 8
    product: str = "rounded"  # product codebook of the lanes: rounded or exact
    vector_rows: int = 4096  # rows of the vector memory, 1..65536
    slots: int = 16  # activation slots, 2..256
    slot_elements: int = 4096  # longest token of a slot, 16..16383
    softmax_elements: int = 4096  # longest row of SOFTMAX, 16..16383
    outliers_max: int = 128  # most outliers of a token, and longest token of DIRECT, 1..16383
    ports: int = 24  # weight read ports, 1..64
    port_bits: int = 1024  # width of a weight port, a power of two 32..1024
    replay_beats: int = 256  # longest tokens that may share weights, in beats, 1..16383

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, 64)
        self._check_choice("columns", (16, 32, 48, 64))
        self._check_choice("elements", (1, 2, 4, 8, 16))
        self._check_range("bits_a", 2, 4)
        self._check_range("bits_b", 2, 4)
        self._check_choice("integer_bits", INT_BITS)
        self._check_choice("product", PRODUCTS)
        self._check_range("vector_rows", 1, 1 << 16)
        self._check_range("slots", 2, 256)
        self._check_range("slot_elements", ROW_ELEMENTS, K_MAX)
        self._check_range("softmax_elements", ROW_ELEMENTS, K_MAX)
        self._check_range("outliers_max", 1, K_MAX)
        self._check_range("ports", 1, 64)
        self._check_power_of_two("port_bits", 32, 1024)
        self._check_range("replay_beats", 1, K_MAX)

    @property
    def group_outputs(self) -> int:
        """Output channels that all lanes compute at a time."""
        return self.lanes * self.columns

    @property
    def layout(self) -> WeightLayout:
        """Of weight images."""
        return WeightLayout(
            self.lanes, self.columns, self.elements, self.bits_b, self.ports, self.port_bits
        )

    @property
    def beat_words(self) -> int:
        """Port words of one array beat."""
        return self.lanes * self.layout.lane_words

    @property
    def kmeans_words(self) -> int:
        """Words of a K-Means packet of LANE_CODEBOOK."""
        return kmeans_packet_length(self.bits_a, self.bits_b, self.product)

    @property
    def integer_words(self) -> int:
        """Words of an Integer packet of LANE_CODEBOOK."""
        return integer_packet_length(self.bits_b)

    def array_beats(self, length: int, outputs: int) -> int:
        """Array beats of a matmul's weight image, the beats of scales included."""
        return groups(outputs, self.group_outputs) * (-(-length // self.elements) + 1)

    def image_words(self, length: int, outputs: int) -> int:
        """Port words that a weight image takes of the memory of port 0, which holds the most."""
        return -(-self.array_beats(length, outputs) * self.beat_words // self.ports)


MACHINES = {
    "table1": MachineConfig(),
    "smollm2": MachineConfig(
        lanes=4, ports=4, port_bits=512, vector_rows=2048, slot_elements=1536,
        softmax_elements=1024, outliers_max=64, replay_beats=128,
    ),
    "small": MachineConfig(
        lanes=2, columns=16, vector_rows=256, slots=4, slot_elements=256, softmax_elements=256,
        outliers_max=64, ports=3, port_bits=64, replay_beats=16,
    ),
}  # fmt: skip
