"""Sizes of a paged cache of token vectors that golden, RTL and testbenches share. Pure Python."""

import dataclasses

from golden.config import Config, Range, bounded, declared, flag, nested, power_of_two

BYTES_MAX = 4095  # bytes of a record: 12 bits
STREAMS_MAX = 1 << 20  # words of one RAM
SLOTS_MAX = 511  # records of a vector: slots and their number have 9 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordKind(Config):
    """The size of one record of a vector: fixed where ``least`` equals ``most``."""

    name: str  # of the channel that carries it
    least: int  # bytes of the shortest, 1..most
    most: int = dataclasses.field(metadata=declared(Range(1, BYTES_MAX), "bytes of the longest"))

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            self._refuse("name", "an identifier")
        self._check_range("least", 1, self.most)

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most


class RecordShape(Config):
    """The records of one token's K or V vector, in the order in which they are appended.

    For each of ``heads`` heads the records ``per_head``, then the records ``per_vector``. Each is
    one slot. A subclass gives the three as fields or properties and calls ``_check_records``. One
    whose ``per_head`` are records of several heads gives ``parts`` too: how often they come. A
    READ of the MMU then counts in parts.
    """

    heads: int
    per_head: tuple[RecordKind, ...]
    per_vector: tuple[RecordKind, ...]

    def _check_records(self) -> None:
        self._check_range("heads", 1, 128)
        for field in ("per_head", "per_vector"):
            kinds = getattr(self, field)
            if not isinstance(kinds, tuple) or not all(isinstance(k, RecordKind) for k in kinds):
                self._refuse(field, "RecordKinds")
        if len(self.per_head) not in (1, 2, 4):  # a slot's low bits are its kind
            self._refuse("per_head", "1, 2 or 4 RecordKinds")
        names = [kind.name for kind in self.kinds]
        if len(set(names)) != len(names):
            self._refuse("per_vector", "RecordKinds of other names")
        if self.slots > SLOTS_MAX:
            self._refuse("heads", f"so few that a vector has at most {SLOTS_MAX} records")

    @property
    def parts(self) -> int:
        """Parts of the vector that have the records ``per_head``: its heads."""
        return self.heads

    @property
    def kinds(self) -> tuple[RecordKind, ...]:
        return (*self.per_head, *self.per_vector)

    @property
    def slots(self) -> int:
        """Streams of one (sequence, layer, K or V)."""
        return self.parts * len(self.per_head) + len(self.per_vector)

    def kind(self, slot: int) -> RecordKind:
        """Returns the kind of the records of ``slot``."""
        first = self.parts * len(self.per_head)
        if slot < first:
            return self.per_head[slot % len(self.per_head)]
        return self.per_vector[slot - first]

    def slot(self, name: str, head: int = 0) -> int:
        """The slot of kind ``name``, of ``head`` where each head has one."""
        place = [kind.name for kind in self.kinds].index(name)
        inner = len(self.per_head)
        if place < inner:
            return head * inner + place
        return self.parts * inner + place - inner

    @property
    def skips(self) -> dict[str, str]:
        """Maps kinds of variable size to fields of a READ's ``info``: records to skip."""
        names = [kind.name for kind in self.kinds if not kind.is_fixed]
        return {name: "skip" if len(names) == 1 else f"skip_{name}" for name in names}

    def named(self, name: str) -> RecordKind:
        return next(kind for kind in self.kinds if kind.name == name)

    @property
    def record_bytes_max(self) -> int:
        return max(kind.most for kind in self.kinds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorRecords(RecordShape):
    """A ``RecordShape`` by its kinds."""

    heads: int = 8  # KV heads of a layer, 1..128
    # records of each head: 1, 2 or 4 of them
    per_head: tuple[RecordKind, ...] = (
        RecordKind(name="dense", least=64, most=64),
        RecordKind(name="sparse", least=2, most=130),
    )
    # records of the whole vector
    per_vector: tuple[RecordKind, ...] = (RecordKind(name="scale", least=12, most=12),)

    def __post_init__(self) -> None:
        self._check_records()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheConfig(Config):
    """Capacity of the paged cache."""

    kv: RecordShape = nested(VectorRecords, kind=RecordShape)
    sequences: int = bounded(4, 1, 256, "sequences open at a time")
    layers: int = bounded(32, 1, 256, "layers of the model")
    pages: int = 4096  # pages of memory, as many as records of a vector or more, 1..2**20
    page_bytes: int = power_of_two(4096, 256, 65536, "bytes of a page")
    max_tokens: int = bounded(4096, 1, 1 << 20, "longest sequence")
    forks: bool = flag(False, "FORK: sequences may share pages")

    def __post_init__(self) -> None:
        self._check_range("pages", self.kv.slots, 1 << 20)  # else no token finds room
        if 2 * self.kv.record_bytes_max > self.page_bytes:
            # So that a record takes at most one new page, and that a page starts a record.
            self._refuse("page_bytes", f"at least two records, {2 * self.kv.record_bytes_max}")
        if self.streams > STREAMS_MAX:
            per_sequence = self.streams // self.sequences
            self._refuse("sequences", f"at most {STREAMS_MAX // per_sequence} of as many streams")

    @property
    def streams(self) -> int:
        """Streams that have pages: (sequence, layer, K or V, slot)."""
        return self.vectors * self.kv.slots

    @property
    def vectors(self) -> int:
        """(sequence, layer, K or V)."""
        return self.sequences * self.layers * 2

    def vector_index(self, sequence: int, layer: int, kv: int) -> int:
        return (sequence * self.layers + layer) * 2 + kv

    def stream_index(self, sequence: int, layer: int, kv: int, slot: int) -> int:
        return self.vector_index(sequence, layer, kv) * self.kv.slots + slot
