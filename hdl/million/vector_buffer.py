"""Beats of vectors as wide words, double-buffered: the operands of the codebook's readers."""

import dataclasses
from itertools import product

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import stream

from golden.config import bounded
from golden.fp16.format import FP16
from hdl.bits import after
from hdl.block import Block
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.kinds import BITS, index_of, mask_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.layouts import beat_layout
from hdl.million.shapes import VectorConfig
from hdl.ports import In, Out


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionVectorBufferConfig(VectorConfig):
    """Vectors that are used together."""

    vectors: int = bounded(4, 1, 16, "of head_dim words each")

    @property
    def parts_bits(self) -> int:
        """Low bits of an address of a buffer."""
        return (self.parts - 1).bit_length()

    @property
    def words(self) -> int:
        """Addresses of a buffer; those of parts beyond the last are not used."""
        return self.vectors << self.parts_bits

    @property
    def memory(self) -> MemoryConfig:
        """Both buffers."""
        lanes = min(self.rate.lanes, self.rate.macs)
        return MemoryConfig(
            depth=2 * (1 << (self.words - 1).bit_length()),
            width=FP16.bits * self.rate.macs,
            granularity=FP16.bits * lanes,
        )

    @property
    def address_bits(self) -> int:
        return self.memory.address_bits


class MillionVectorBuffer(Block):
    """``vectors`` vectors arrive in beats of ``lanes`` words and are read ``macs`` words at a time.

    Address of a wide word, from the top: ``buffer``, vector, part; ``parts_bits`` bits of part.
    A beat takes max(1, lanes / macs) cycles. ``full``: the buffer ``buffer`` is complete, and
    ``bad`` has its flags. ``take`` goes on to the next buffer: its reads may follow at once. A
    ``give_back`` returns the oldest buffer taken to ``x``, in the cycle of its last read or later.
    """

    def __init__(self, config: MillionVectorBufferConfig):
        memory = config.memory
        super().__init__(
            config,
            {
                "x": In(stream.Signature(beat_layout(config.rate.lanes)), "vectors, in order"),
                "full": Out(1, "the buffer in use is complete"),
                "buffer": Out(1, "top bit of the addresses of the buffer in use"),
                "bad": Out(config.vectors, "NaN or infinity in a vector", mask_of("vectors")),
                "take": In(1, "use the next buffer"),
                "give_back": In(1, "the oldest buffer taken has been read"),
                "read_en": In(1, "read a wide word"),
                "read_addr": In(memory.address_bits, "its address", index_of("words")),
                "read_data": Out(memory.width, "the word, one cycle later, until the next", BITS),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        memory = config.memory
        beats = max(1, config.rate.macs // config.rate.lanes)  # of a wide word
        steps = max(1, config.rate.lanes // config.rate.macs)  # wide words of a beat
        ram = add(m, "ram", Memory1R1W(memory))

        filling = Signal()
        using = Signal()
        oldest = Signal()
        full = Signal(2)
        occupied = Signal(2)
        step = Signal(range(max(2, steps)))
        beat = Signal(range(max(2, beats)))
        part = Signal(range(max(2, config.parts)))
        vector = Signal(range(max(2, config.vectors)))
        write = Signal()
        ends_word = Signal()
        ends_vector = Signal()
        ends = Signal()
        m.d.comb += [
            write.eq(self.x.valid & ~occupied.bit_select(filling, 1)),
            self.x.ready.eq(~occupied.bit_select(filling, 1) & (step == steps - 1)),
            ends_word.eq(write & (beat == beats - 1)),
            ends_vector.eq(ends_word & (part == config.parts - 1)),
            ends.eq(ends_vector & (vector == config.vectors - 1)),
        ]
        with m.If(write):
            m.d.sync += [step.eq(after(step, steps)), beat.eq(after(beat, beats))]
        with m.If(ends_word):
            m.d.sync += part.eq(after(part, config.parts))
        with m.If(ends_vector):
            m.d.sync += vector.eq(after(vector, config.vectors))
        filled = Signal(2)
        taken = Signal(2)
        freed = Signal(2)
        m.d.comb += [
            filled.eq(ends << filling), taken.eq(self.take << using),
            freed.eq(self.give_back << oldest),
            self.full.eq(full.bit_select(using, 1)), self.buffer.eq(using),
        ]  # fmt: skip
        m.d.sync += [
            full.eq((full | filled) & ~taken), occupied.eq((occupied | filled) & ~freed),
            filling.eq(filling ^ ends), using.eq(using ^ self.take),
            oldest.eq(oldest ^ self.give_back),
        ]  # fmt: skip

        lanes = memory.lane_bits // FP16.bits
        words = Value.cast(self.x.p.word).word_select(step, FP16.bits * lanes)
        top = memory.address_bits - 1
        m.d.comb += [
            ram.write_en.eq(Cat(write & (beat == lane) for lane in range(beats))),
            ram.write_addr.eq(Cat(Cat(part[: config.parts_bits], vector)[:top], filling)),
            ram.write_data.eq(words.replicate(beats)),
            ram.read_en.eq(self.read_en),
            ram.read_addr.eq(self.read_addr),
            self.read_data.eq(ram.read_data),
        ]
        first = Signal()
        special = Signal()
        m.d.comb += [
            first.eq((part == 0) & (beat == 0) & (step == 0)),
            special.eq(Cat(is_special(each) for each in self.x.p.word).any()),
        ]
        flags = []
        for n, number in product(range(2), range(config.vectors)):
            flag = Signal(name=f"bad_{n}_{number}", reset_less=True)
            with m.If(write & (filling == n) & (vector == number)):
                m.d.sync += flag.eq(special | (flag & ~first))
            flags.append(flag)
        low, high = Cat(flags[: config.vectors]), Cat(flags[config.vectors :])
        m.d.comb += self.bad.eq(Mux(using, high, low))
        return m
