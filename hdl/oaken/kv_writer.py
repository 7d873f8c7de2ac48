"""Quantized vectors to the records of the cache (docs/blocks/oaken_kv_engine.md)."""

import dataclasses

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, nested, power_of_two
from golden.oaken.config import KvShape
from golden.oaken.format import DENSE_BITS, SCALE_BYTES
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BYTES, NUMBER
from hdl.oaken.layouts import SCALE, SCALE_LAYOUT
from hdl.paging.mmu import BYTES_BITS
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.payload import payload_layout
from hdl.stream.queue import queue
from hdl.stream.repack import StreamRepack, StreamRepackConfig

_SIZES = 4  # heads whose sparse record is complete and not yet announced
_AHEAD = 8  # words of dense data that may run ahead of the sparse data of the same head


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenKvWriterConfig(Config):
    """Shape of a vector and width of a memory word."""

    kv: KvShape = nested(KvShape, "shape of a vector")
    lanes: int = power_of_two(32, 8, 64, "elements per beat of dense, at most block")
    data_bits: int = power_of_two(256, 64, 1024, "bits of a memory word")

    def __post_init__(self) -> None:
        if self.lanes > self.kv.block:
            self._refuse("lanes", f"at most block = {self.kv.block}")

    @property
    def word_bytes(self) -> int:
        return self.data_bits // 8

    def words(self, bytes_: int) -> int:
        """Memory words that so many packed bytes take."""
        return -(-bytes_ // self.word_bytes)

    @property
    def dense_words(self) -> int:
        """Words of dense data that fit: two heads, and what may run ahead of sparse data."""
        return max(2 * self.words(self.kv.dense_bytes), _AHEAD)

    @property
    def sparse_words(self) -> int:
        """Words of sparse data that fit: two heads in which every element is an outlier."""
        return 2 * self.words(self.kv.sparse_bytes_max)

    @property
    def start_layout(self) -> data.StructLayout:
        return Payload(
            void=(1, "the vector has no data"),
            scale=SCALE,
        )

    @property
    def dense_layout(self) -> data.StructLayout:
        return Payload(
            code=(data.ArrayLayout(DENSE_BITS, self.lanes), "four bits per element", NUMBER),
            last=(1, "final beat of the vector, not examined"),
        )

    @property
    def sparse_layout(self) -> data.StructLayout:
        size = self.kv.block + 1
        return Payload(
            data=(8 * size, "sparse bytes of one block", BYTES),
            bytes=(range(size + 1), "bytes in use"),
            last=(1, "final block of the vector, not examined"),
        )

    @property
    def record_layout(self) -> data.StructLayout:
        return Payload(bytes=(BYTES_BITS, "bytes of the record", NUMBER))

    @property
    def w_layout(self) -> data.StructLayout:
        return Payload(
            data=(self.data_bits, "word of one record, its first byte in the low bits", BYTES),
            last=(1, "final word of the record"),
        )


class OakenKvWriter(Block):
    """Gives for each ``start`` the ``2 * heads + 1`` records of one vector: sizes and packed words.

    Records come in the order of slots: dense and sparse of each head, then the scale words.
    ``dense`` brings ``head_dim / lanes`` beats per head, ``sparse`` one word per block. Both may
    come before ``start``. ``void``: the vector has no data; all its records are of 0 bytes and have
    no words. The size of a sparse record is known when its last block has come, so the block stores
    the words of a head. Two heads of the longest records fit, and the dense data of two heads, so
    that neither waits for the other. 1 word per cycle; two cycles between vectors.
    """

    def __init__(self, config: OakenKvWriterConfig):
        super().__init__(
            config,
            {
                "start": In(
                    stream.Signature(config.start_layout),
                    "Scale words of the next vector; void: a vector without data.",
                ),
                "dense": In(
                    stream.Signature(config.dense_layout),
                    "Dense codes of vectors that are not void.",
                ),
                "sparse": In(
                    stream.Signature(config.sparse_layout),
                    "Sparse bytes of vectors that are not void, a block each.",
                ),
                "record": Out(
                    stream.Signature(config.record_layout),
                    "Bytes of each record, in the order of slots.",
                ),
                "w": Out(
                    stream.Signature(config.w_layout),
                    "Packed words of the records; last: the final word of a record.",
                ),
            },
        )

    @property
    def throughput(self) -> str:
        return "1 word per cycle"

    def elaborate(self, platform) -> Module:
        config = self.config
        kv = config.kv
        m = Module()
        dense = self._dense(m)
        sparse, sizes = self._sparse(m)

        # The vector whose records are in flight. Sizes and words walk through its slots each
        # on its own; both are done before the next vector starts.
        void = Signal()
        scale = Signal(SCALE_LAYOUT, reset_less=True)
        slots = range(2 * kv.heads + 1)
        sizing = Signal()
        size_slot = Signal(slots)
        writing = Signal()
        word_slot = Signal(slots)
        scale_slot = 2 * kv.heads

        m.d.comb += self.start.ready.eq(~sizing & ~writing)
        with m.If(self.start.valid & self.start.ready):
            m.d.sync += [
                void.eq(self.start.p.void),
                scale.eq(self.start.p.scale),
                sizing.eq(1),
                size_slot.eq(0),
                writing.eq(~self.start.p.void),
                word_slot.eq(0),
            ]

        size_taken = Signal()
        m.d.comb += size_taken.eq(self.record.valid & self.record.ready)
        with m.If(sizing):
            m.d.comb += self.record.valid.eq(1)
            with m.If(void):
                m.d.comb += self.record.p.bytes.eq(0)
            with m.Elif(size_slot == scale_slot):
                m.d.comb += self.record.p.bytes.eq(SCALE_BYTES)
            with m.Elif(~size_slot[0]):
                m.d.comb += self.record.p.bytes.eq(kv.dense_bytes)
            with m.Else():
                m.d.comb += [
                    self.record.valid.eq(sizes.valid),
                    self.record.p.bytes.eq(sizes.p),
                    sizes.ready.eq(self.record.ready),
                ]
        with m.If(size_taken):
            m.d.sync += [size_slot.eq(size_slot + 1), sizing.eq(size_slot != scale_slot)]

        # The scale record is the only one that is not in a queue.
        scale_words = config.words(SCALE_BYTES)
        scale_place = Signal(range(max(scale_words, 2)))
        word_taken = Signal()
        m.d.comb += word_taken.eq(self.w.valid & self.w.ready)
        with m.If(writing):
            with m.If(word_slot == scale_slot):
                m.d.comb += [
                    self.w.valid.eq(1),
                    self.w.p.data.eq(scale.as_value().word_select(scale_place, config.data_bits)
                                     if scale_words > 1 else scale.as_value()),
                    self.w.p.last.eq(scale_place == scale_words - 1),
                ]  # fmt: skip
                with m.If(word_taken):
                    m.d.sync += scale_place.eq(Mux(self.w.p.last, 0, scale_place + 1))
            with m.Elif(~word_slot[0]):
                link(m, dense, self.w)
            with m.Else():
                link(m, sparse, self.w)
        with m.If(word_taken & self.w.p.last):
            m.d.sync += [word_slot.eq(word_slot + 1), writing.eq(word_slot != scale_slot)]
        return m

    def _dense(self, m: Module):
        """Words of the dense records, head by head."""
        config = self.config
        beats = config.kv.head_dim // config.lanes
        bytes_ = config.lanes * DENSE_BITS // 8
        beat = Signal(range(max(beats, 2)))
        last = Signal()
        pack = add(
            m,
            "dense_pack",
            StreamRepack(StreamRepackConfig(in_bytes=bytes_, out_bytes=config.word_bytes)),
        )
        m.d.comb += [
            last.eq(beat == beats - 1),
            pack.i.valid.eq(self.dense.valid),
            self.dense.ready.eq(pack.i.ready),
            pack.i.p.data.eq(self.dense.p.code.as_value()),
            pack.i.p.end.eq(bytes_),
            pack.i.p.last.eq(last),
        ]
        with m.If(self.dense.valid & self.dense.ready):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
        return word_queue(m, "dense_words", pack.o, config.data_bits, config.dense_words)

    def _sparse(self, m: Module):
        """(words of the sparse records, their sizes), head by head."""
        config = self.config
        blocks = config.kv.head_blocks
        block = Signal(range(max(blocks, 2)))
        last = Signal()
        pack = add(
            m,
            "sparse_pack",
            StreamRepack(
                StreamRepackConfig(in_bytes=config.kv.block + 1, out_bytes=config.word_bytes)
            ),
        )
        total_bits = config.kv.sparse_bytes_max.bit_length()
        total = Signal(total_bits)
        size = Signal(total_bits)
        sizes = queue(m, "sizes", total_bits, _SIZES)
        # The bytes of a head's last block go into the queue of words as its size goes into that
        # of sizes.
        room = Signal()
        m.d.comb += [
            last.eq(block == blocks - 1),
            size.eq(total + self.sparse.p.bytes),
            room.eq(~last | sizes.i.ready),
            pack.i.valid.eq(self.sparse.valid & room),
            self.sparse.ready.eq(pack.i.ready & room),
            pack.i.p.data.eq(self.sparse.p.data),
            pack.i.p.end.eq(self.sparse.p.bytes),
            pack.i.p.last.eq(last),
            sizes.i.valid.eq(self.sparse.valid & self.sparse.ready & last),
            sizes.i.p.eq(size),
        ]
        with m.If(self.sparse.valid & self.sparse.ready):
            m.d.sync += [block.eq(Mux(last, 0, block + 1)), total.eq(Mux(last, 0, size))]
        words = word_queue(m, "sparse_words", pack.o, config.data_bits, config.sparse_words)
        return words, sizes.o


def word_queue(m: Module, name: str, source, width: int, depth: int):
    """A queue of the words that the repacker ``source`` gives; in a RAM where it is long."""
    storage = "memory" if depth >= 8 else "flipflop"
    words = queue(m, name, payload_layout(width), max(depth, 3), storage=storage)
    link(m, source, words.i, discard=("bytes", "error"))
    return words.o
