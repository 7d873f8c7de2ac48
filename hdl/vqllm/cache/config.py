"""Size of a codebook cache, and the payloads of its parts."""

import dataclasses

from amaranth.lib import data

from golden.axi.format import Resp
from golden.config import Config, bounded, nested, power_of_two
from golden.fp16.format import FP16
from golden.vqllm.config import NAMED, VqShape
from hdl.axi.signature import Axi4Read, axi4_read
from hdl.kinds import BITS, NUMBER, index_of, mask_of
from hdl.memory.config import MemoryConfig
from hdl.ports import Payload
from hdl.stream.payload import LAST

COUNTER_BITS = 40  # a look-up in each of 64 lanes and each cycle wraps a counter in 17 s at 1 GHz


@dataclasses.dataclass(frozen=True, kw_only=True)
class VqCodebookCacheConfig(Config):
    """Codebooks, look-ups per cycle, and the most that each tier holds."""

    vq: VqShape = nested(VqShape)
    lookups: int = bounded(8, 1, 64, "codes of a beat, a multiple of vq.stages")
    registers: int = 32  # most entries of a stage in registers, 0..256 and up to shared
    shared: int = 256  # most entries of a stage in SRAM, 1..vq.stored
    banks: int = power_of_two(8, 1, 64, "of the SRAM")
    beats: int = bounded(16, 8, 256, "in flight")
    data_bits: int = 512  # of the memory port, a power of two in 64..1024; holds an entry
    address_bits: int = bounded(40, 32, 64, "of a byte address")

    def __post_init__(self) -> None:
        if self.lookups % self.vq.stages:
            self._refuse("lookups", f"a multiple of vq.stages = {self.vq.stages}")
        self._check_range("shared", 1, self.vq.stored)
        self._check_range("registers", 0, min(256, self.shared))
        self._check_power_of_two("data_bits", max(64, 8 * self.entry_bytes), 1024)

    @property
    def entry_bits(self) -> int:
        return FP16.bits * self.vq.size

    @property
    def entry_bytes(self) -> int:
        return self.vq.entry_bytes

    @property
    def word_entries(self) -> int:
        """Entries of a word of memory."""
        return self.data_bits // 8 // self.entry_bytes

    @property
    def load_entries(self) -> int:
        """Entries of a stage that are loaded in a cycle: a word of memory, and one in a bank."""
        return self.vq.load_width(self.data_bits // 8, self.banks)

    def load_beats(self, shared: int) -> int:
        return self.vq.load_beats(shared, self.data_bits // 8, self.banks)

    @property
    def bank_rows(self) -> int:
        """Words of a bank that a stage takes."""
        return -(-(self.shared + self.vq.stages - 1) // self.banks)

    @property
    def side_rows(self) -> int:
        """Words of a bank that the codebooks of all stages take."""
        return self.bank_rows * self.vq.stages

    @property
    def memory(self) -> MemoryConfig:
        """A bank, both sides."""
        return MemoryConfig(depth=max(2, 2 * self.side_rows), width=self.entry_bits)

    @property
    def entry_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(FP16.bits, self.vq.size)

    @property
    def codes_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(self.vq.code_bits, self.lookups)

    @property
    def points_layout(self) -> data.ArrayLayout:
        """The lower bits of the codes, where the upper ones alone are the index of an entry."""
        return data.ArrayLayout(self.vq.point_bits, self.lookups)

    @property
    def axi_signature(self) -> Axi4Read:
        return axi4_read(self.address_bits, self.data_bits)

    @property
    def info_layout(self) -> data.StructLayout:
        return Payload(
            **{
                name: (shape, f"entries of each stage {where}", NUMBER)
                for (name, shape), where in zip(
                    self.bounds_layout.members.items(), ("in registers", "on chip"), strict=True
                )
            },
            base=(self.address_bits, "address of entry 0 of stage 0", index_of("bytes")),
        )

    @property
    def load_layout(self) -> data.StructLayout:
        entries = data.ArrayLayout(self.entry_layout, self.load_entries)
        return Payload(word=(entries, "neighbouring entries of a stage", FP16), last=LAST)

    @property
    def look_layout(self) -> data.StructLayout:
        text, kind = "lane l looks up stage l % stages", index_of("entries")
        if self.vq.lattice:
            text = f"{text}: index of the entry above signs and shift"
            kind = index_of("points")
        return Payload(
            code=(self.codes_layout, text, kind),
            use=(self.lookups, "lanes that look up", mask_of("lanes")),
            switch=(1, "from this beat on, use the codebooks that are loaded"),
            last=LAST,
        )

    @property
    def entries_layout(self) -> data.StructLayout:
        entries = data.ArrayLayout(self.entry_layout, self.lookups)
        return Payload(
            entry=(entries, "lane by lane; 0 of a lane that does not look up", FP16),
            **self.point_field("of the code of each lane"),
            resp=(2, "the worst response of memory", Resp),
            bad=(1, "an entry from memory is NaN, infinite or above 1"),
            last=LAST,
        )

    @property
    def counts_layout(self) -> data.StructLayout:
        return Payload(
            registers=(COUNTER_BITS, "look-ups in registers", NUMBER),
            shared=(COUNTER_BITS, "look-ups in SRAM", NUMBER),
            memory=(COUNTER_BITS, "look-ups in memory", NUMBER),
            conflicts=(COUNTER_BITS, "cycles that reads of one bank cost", NUMBER),
            stalls=(COUNTER_BITS, "cycles in which a beat waits for room or a load", NUMBER),
        )

    def point_field(self, whose: str) -> dict:
        """A field of a payload, of a lattice alone."""
        text = f"lower bits {whose}: signs of elements 0 to 6, shift"
        return {"point": (self.points_layout, text, BITS)} if self.vq.lattice else {}

    # Between the parts

    @property
    def place_bits(self) -> int:
        """An index with its stage above it: the entry's number in memory."""
        return self.vq.index_bits + (self.vq.stages - 1).bit_length()

    @property
    def bounds_layout(self) -> data.StructLayout:
        """Ends of the registers' and of the SRAM's entries."""
        return data.StructLayout(
            {"registers": range(max(2, self.registers + 1)), "shared": range(self.shared + 1)}
        )

    @property
    def hits_layout(self) -> data.StructLayout:
        """The amounts that the counters add in a cycle."""
        lanes = range(self.lookups + 1)
        return data.StructLayout(
            {"registers": lanes, "shared": lanes, "memory": lanes, "conflicts": 1, "stalls": 1}
        )

    @property
    def beat_layout(self) -> data.StructLayout:
        """A beat whose reads are under way."""
        index = data.ArrayLayout(self.vq.index_bits, self.lookups)
        point = {"point": self.points_layout} if self.vq.lattice else {}
        return data.StructLayout(
            {"index": index, "hot": self.lookups, "far": self.lookups, "last": 1, **point}
        )

    @property
    def row_layout(self) -> data.ArrayLayout:
        return data.ArrayLayout(range(max(2, self.side_rows)), self.banks)


CACHES = {
    "aqlm3": VqCodebookCacheConfig(vq=NAMED["aqlm3"], shared=4096, banks=16),
    "gptvq2": VqCodebookCacheConfig(vq=NAMED["gptvq2"], lookups=16, banks=16),
    "quip4": VqCodebookCacheConfig(vq=NAMED["quip4"]),
    "aqlm2x8": VqCodebookCacheConfig(vq=NAMED["aqlm2x8"], banks=16),
    "aqlm1x16": VqCodebookCacheConfig(vq=NAMED["aqlm1x16"], lookups=4, shared=4096),
    "small": VqCodebookCacheConfig(
        vq=VqShape(size=2, entries=16),
        lookups=4,
        registers=2,
        shared=8,
        banks=2,
        beats=8,
        data_bits=64,
    ),
}
