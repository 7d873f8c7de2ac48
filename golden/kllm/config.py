"""Sizes of a KLLM accelerator that software must know: what programs and images depend on."""

import dataclasses
import zlib
from typing import Any

from golden.config import Shape, bounded, choice, flag, nested
from golden.index.format import INT_BITS, K_MAX
from golden.kllm.format import (
    PRODUCTS,
    WeightLayout,
    groups,
    integer_packet_length,
    kmeans_packet_length,
)
from golden.kllm.isa import ROW_ELEMENTS, Binary, Function, Unit
from golden.oaken.config import CacheConfig, KvShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorShape(Shape):
    """The vector memory: rows of 16 FP16 words."""

    rows: int = bounded(4096, 1, 1 << 16, "rows of the vector memory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotShape(Shape):
    """The slots: quantized tokens of indices or of unsigned integers, with outliers."""

    slots: int = bounded(16, 2, 256, "tokens held")
    elements: int = bounded(4096, ROW_ELEMENTS, K_MAX, "longest token")
    outliers_max: int = bounded(64, 1, K_MAX, "most outliers of a token")
    bits_a: int = bounded(4, 2, 4, "bits of an activation index")
    integer_bits: int = choice(8, (0, *INT_BITS), "bits of an unsigned integer; 0: no integers")

    @property
    def rows(self) -> int:
        """Rows of entries of one slot."""
        return -(-self.elements // ROW_ELEMENTS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaneShape(Shape):
    """The PE lanes: how many, and what one weight beat of a lane is."""

    lanes: int = bounded(16, 1, 64, "PE lanes")
    columns: int = bounded(32, 1, 64, "output columns of a lane")
    elements: int = bounded(16, 1, 16, "elements of the reduction axis per beat")
    bits_b: int = bounded(4, 2, 4, "bits of a weight index")

    @property
    def group_outputs(self) -> int:
        """Output channels that all lanes compute at a time."""
        return self.lanes * self.columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class PortShape(Shape):
    """The memories of weight images, each with a read port."""

    ports: int = bounded(24, 1, 64, "weight read ports")
    bits: int = bounded(1024, 8, 4096, "bits of a port word, a multiple of 8")

    def __post_init__(self) -> None:
        if self.bits % 8:
            self._refuse("bits", "a multiple of 8")

    def layout(self, lane: LaneShape) -> WeightLayout:
        """Returns the layout of weight images for these lanes."""
        return WeightLayout(
            lane.lanes, lane.columns, lane.elements, lane.bits_b, self.ports, self.bits
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionShape(Shape):
    """The functions and operations of BINARY that not every machine has."""

    tanh: bool = flag(False, "TANH")
    gelu_erf: bool = flag(False, "GELU_ERF")
    quick_gelu: bool = flag(False, "QUICK_GELU")
    bounds: bool = flag(False, "MINIMUM and MAXIMUM")

    @property
    def tabled(self) -> tuple[Function, ...]:
        """The functions with tables (golden.kllm.format.factor_table)."""
        flags = {
            Function.TANH: self.tanh,
            Function.GELU_ERF: self.gelu_erf,
            Function.QUICK_GELU: self.quick_gelu,
        }
        return tuple(function for function, is_there in flags.items() if is_there)

    @property
    def functions(self) -> tuple[Function, ...]:
        """All functions of the machine."""
        return (*(each for each in Function if each < Function.TANH), *self.tabled)

    @property
    def operations(self) -> tuple[Binary, ...]:
        """All operations of BINARY."""
        return tuple(Binary) if self.bounds else (Binary.ADD, Binary.MULTIPLY)

    @classmethod
    def of(cls, *functions: Function, bounds: bool = False) -> "FunctionShape":
        """The shape that has these functions."""
        names = (each.name.lower() for each in functions if each >= Function.TANH)
        return cls(**dict.fromkeys(names, True), bounds=bounds)

    def lacks(self, needed: "FunctionShape") -> tuple[str, ...]:
        """The fields that ``needed`` has and this shape has not."""
        mine = self.describe()
        return tuple(name for name, is_there in needed.describe().items() if is_there > mine[name])


def _slot() -> SlotShape:
    return SlotShape(outliers_max=128)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineConfig(Shape):
    """An accelerator as a program sees it; the generator's configuration holds the same one.

    It serves fewer shapes than the shapes allow:

        ==============  ====================================
        size            machines have
        ==============  ====================================
        lane.columns    16, 32, 48 or 64
        lane.elements   1, 2, 4, 8 or 16
        slot            ``integer_bits`` 4 or 8
        ports.bits      a power of two in 32..1024
        ==============  ====================================

    ``slot.outliers_max`` is also the longest token of DIRECT.
    """

    lane: LaneShape = nested(LaneShape, "the PE lanes")
    slot: SlotShape = nested(_slot, "the activation slots", SlotShape)
    vectors: VectorShape = nested(VectorShape, "the vector memory")
    ports: PortShape = nested(PortShape, "the weight memories")
    product: str = choice("rounded", PRODUCTS, "words of the lanes' table")
    antisymmetric: bool = flag(
        False, "C_B[j] = -C_B[last - j], as C_V: packets have the lower half"
    )
    softmax_elements: int = bounded(4096, ROW_ELEMENTS, K_MAX, "longest row of SOFTMAX")
    replay_beats: int = bounded(256, 1, K_MAX, "longest tokens that may share weights, in beats")
    batch: int = bounded(0, 0, 64, "most tokens of a command of the cache unit; 0: no such unit")
    cache: CacheConfig = nested(CacheConfig, "K and V of the cache unit")
    top: int = bounded(1, 1, 64, "most logits of which TOP_K draws one; 1: it takes the largest")
    queries: int = bounded(0, 0, 8, "query heads of each KV head in ATTEND; 0: any number")
    engines: int = bounded(1, 1, 16, "parts of the cache, each of equally many KV heads")
    extra: FunctionShape = nested(FunctionShape, "functions that not every machine has")
    experts: int = bounded(0, 0, 16, "most experts that a token passes; 0: no choices")

    def __post_init__(self) -> None:
        if self.lane.columns % ROW_ELEMENTS:
            self._refuse("lane.columns", f"a multiple of {ROW_ELEMENTS}")
        if ROW_ELEMENTS % self.lane.elements:
            self._refuse("lane.elements", f"a divisor of {ROW_ELEMENTS}")
        self._check_choice("slot.integer_bits", INT_BITS)
        self._check_power_of_two("ports.bits", 32, 1024)
        if self.cache.kv.head_dim % ROW_ELEMENTS:
            self._refuse("cache.kv.head_dim", f"a multiple of {ROW_ELEMENTS}")
        kv = self.cache.kv
        if kv.heads % self.engines:
            self._refuse("engines", f"a divisor of cache.kv.heads = {kv.heads}")
        if self.experts and not self.batch:
            self._refuse("experts", "0 without a batch")
        if kv.groups > 1 and kv.groups % self.engines:
            self._refuse("engines", f"a divisor of cache.kv.groups = {kv.groups}")

    @property
    def cache_part(self) -> CacheConfig:
        """The cache of one engine."""
        return self.cache.part(self.engines)

    @property
    def jobs(self) -> int:
        """Groups of KV heads that ATTEND has for a token, those of all engines."""
        return self.engines * self.cache_part.kv.groups

    def sink_rows(self, heads: int) -> int:
        """Rows of the sinks of ``heads`` query heads: those of each job begin with a row."""
        return self.jobs * -(-heads // (self.jobs * ROW_ELEMENTS))

    @property
    def units(self) -> int:
        """Units of the machine, the first of ``Unit``."""
        return len(Unit) if self.batch else int(Unit.CACHE)

    @property
    def word(self) -> int:
        """CRC-32 of all fields: what a program for another machine has is another word.

        One engine is not said, and neither is a machine without experts, so a machine's word is the
        one that it had without the field.
        """
        said = repr(self)
        if self.engines == 1:
            said = said.replace(", engines=1", "")
        if not self.experts:
            said = said.replace(", experts=0", "")
        return zlib.crc32(said.encode())

    @property
    def lanes(self) -> int:
        """PE lanes."""
        return self.lane.lanes

    @property
    def columns(self) -> int:
        """Output columns of a lane."""
        return self.lane.columns

    @property
    def elements(self) -> int:
        """Elements of the reduction axis per beat."""
        return self.lane.elements

    @property
    def bits_b(self) -> int:
        """Bits of a weight index."""
        return self.lane.bits_b

    @property
    def bits_a(self) -> int:
        """Bits of an activation index."""
        return self.slot.bits_a

    @property
    def integer_bits(self) -> int:
        """Bits of an unsigned integer."""
        return self.slot.integer_bits

    @property
    def slots(self) -> int:
        """Activation slots."""
        return self.slot.slots

    @property
    def slot_elements(self) -> int:
        """Longest token of a slot."""
        return self.slot.elements

    @property
    def outliers_max(self) -> int:
        """Most outliers of a token, and longest token of DIRECT."""
        return self.slot.outliers_max

    @property
    def vector_rows(self) -> int:
        """Rows of the vector memory."""
        return self.vectors.rows

    @property
    def port_bits(self) -> int:
        """Bits of a port word."""
        return self.ports.bits

    @property
    def group_outputs(self) -> int:
        """Output channels that all lanes compute at a time."""
        return self.lane.group_outputs

    @property
    def layout(self) -> WeightLayout:
        """Returns the layout of weight images."""
        return self.ports.layout(self.lane)

    @property
    def beat_words(self) -> int:
        """Port words of one array beat."""
        return self.lanes * self.layout.lane_words

    @property
    def packet_bits_b(self) -> int:
        """Bits of the weight indices for which a packet of LANE_CODEBOOK has words."""
        return self.bits_b - int(self.antisymmetric)

    @property
    def kmeans_words(self) -> int:
        """Words of a K-Means packet of LANE_CODEBOOK."""
        return kmeans_packet_length(self.bits_a, self.packet_bits_b)

    @property
    def integer_words(self) -> int:
        """Words of an Integer packet of LANE_CODEBOOK."""
        return integer_packet_length(self.packet_bits_b)

    def array_beats(self, length: int, outputs: int) -> int:
        """Array beats of a matmul's weight image, the beats of scales included."""
        group = -(-length // self.elements) + self.layout.scale_beats
        return groups(outputs, self.group_outputs) * group

    def image_words(self, length: int, outputs: int) -> int:
        """Port words that a weight image takes of the memory of port 0, which holds the most."""
        return -(-self.array_beats(length, outputs) * self.beat_words // self.ports.ports)


def outlier_count(length: int, share: float = 0.005) -> int:
    """``k = max(1, round(share * length))``, ties to even: outliers on each side of a token.

    ValueError: share outside 0..0.5.
    """
    if not 0 <= share < 0.5:
        raise ValueError(f"share must be in 0..0.5, not {share}")
    return max(1, round(share * length))


def _cached(
    machine: MachineConfig, batch: int, top: int, queries: int, **cache: Any
) -> MachineConfig:
    """The machine with a unit CACHE, for models of ``queries`` query heads to a KV head."""
    shape = CacheConfig(**cache)
    return dataclasses.replace(machine, batch=batch, top=top, queries=queries, cache=shape)


MACHINES = {
    "table1": MachineConfig(),
    "smollm2": MachineConfig(
        lane=LaneShape(lanes=4),
        slot=SlotShape(elements=1536, outliers_max=64),
        vectors=VectorShape(rows=2048),
        ports=PortShape(ports=4, bits=512),
        softmax_elements=1024,
        replay_beats=128,
    ),
    "small": MachineConfig(
        lane=LaneShape(lanes=2, columns=16),
        slot=SlotShape(slots=4, elements=256, outliers_max=64),
        vectors=VectorShape(rows=256),
        ports=PortShape(ports=3, bits=64),
        softmax_elements=256,
        replay_beats=16,
    ),
}
MACHINES |= {
    "smollm2_cache": _cached(
        MACHINES["smollm2"], 8, 64, 3, kv=KvShape(heads=3, head_dim=64, order="token"), sequences=8,
        layers=30, pages=16384, max_tokens=512,
    ),
    "small_cache": _cached(
        MACHINES["small"], 3, 6, 2, kv=KvShape(heads=2, head_dim=32, block=32, order="token"),
        sequences=3, layers=3, pages=40, page_bytes=256, max_tokens=16,
    ),
}  # fmt: skip
# Sequences share pages.
MACHINES["small_forks"] = dataclasses.replace(
    MACHINES["small_cache"],
    cache=dataclasses.replace(MACHINES["small_cache"].cache, pages=64, forks=True),
)
# Each engine has as many pages as the one engine has.
MACHINES |= {
    name: dataclasses.replace(MACHINES[of], engines=engines)
    for name, of, engines in (
        ("smollm2_cache3", "smollm2_cache", 3),
        ("small_cache2", "small_cache", 2),
    )
}
# For batches: four times the lanes that the ports feed with one token (decision 0342).
MACHINES |= {
    "smollm2_wide": dataclasses.replace(
        MACHINES["smollm2_cache3"], lane=LaneShape(lanes=16), vectors=VectorShape(rows=4096),
        ports=PortShape(ports=8, bits=1024),
    ),
    "table1_wide": dataclasses.replace(
        _cached(
            MACHINES["table1"], 8, 64, 1,
            kv=KvShape(heads=32, head_dim=128, order="token", groups=16), sequences=8,
            layers=32, pages=131072, max_tokens=4096,
        ),
        lane=LaneShape(lanes=64),
        slot=SlotShape(slots=64, elements=11008, outliers_max=128),
        vectors=VectorShape(rows=32768),
        softmax_elements=4096,
        replay_beats=704,
        engines=16,
    ),
}  # fmt: skip
# Of few gates: each unit takes an element per cycle, as a memory of 16 bits gives (decision 0386).
MACHINES["narrow"] = MachineConfig(
    lane=LaneShape(lanes=1, columns=16, elements=1),
    slot=SlotShape(slots=4, elements=352, outliers_max=32, integer_bits=4),
    vectors=VectorShape(rows=128), ports=PortShape(ports=1, bits=64),
    product="fixed12", antisymmetric=True, softmax_elements=256, replay_beats=352,
)  # fmt: skip
