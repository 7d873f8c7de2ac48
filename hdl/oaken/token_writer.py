"""Quantized vectors to the records of a cache in order token."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import nested
from golden.oaken import timing
from golden.oaken.config import KvShape
from golden.oaken.format import DENSE_BITS, SCALE_BYTES
from golden.timing import Timing
from hdl.bits import after, let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.oaken.kv_writer import OakenKvWriterConfig, word_queue
from hdl.oaken.layouts import SCALE_LAYOUT
from hdl.ports import In, Out
from hdl.stream.link import StreamView, link
from hdl.stream.queue import queue
from hdl.stream.repack import StreamRepack, StreamRepackConfig
from hdl.stream.widen import StreamWiden, StreamWidenConfig

_SIZES = 4  # records that are complete and not yet announced
_AHEAD = 8  # beats of dense codes that may run ahead of the sparse bytes of the same block
_RAM_FROM = 8  # blocks of a queue from which on it is a RAM


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenTokenWriterConfig(OakenKvWriterConfig):
    """Shape of a vector in order token and width of a memory word."""

    kv: KvShape = nested(
        lambda: KvShape(heads=3, head_dim=64, order="token"), "shape of a vector", KvShape
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kv.is_by_token:
            self._refuse("kv", "of order token")

    @property
    def block_codes_bytes(self) -> int:
        """Bytes of a block's codes."""
        return self.kv.block * DENSE_BITS // 8

    @property
    def block_bytes_max(self) -> int:
        """Bytes of a block of which every element is an outlier."""
        return self.block_codes_bytes + 1 + self.kv.block

    @property
    def block_beats(self) -> int:
        return self.kv.block // self.lanes

    @property
    def record_words(self) -> int:
        """Words that fit: two of the longest records."""
        return 2 * self.words(self.kv.record_bytes_max)


class OakenTokenWriter(Block):
    """Gives for each ``start`` the records of one vector, one per group: sizes and packed words.

    A record has the scale words of ``start``, then per block its codes, its count byte and its
    entries (golden.oaken.format, order token). ``dense`` brings ``block / lanes`` beats per block,
    ``sparse`` one word per block. Both may come before ``start``. ``void``: the vector has no data;
    its records are of 0 bytes and have no words.

    The size of a record is known when its last block has come, so the block stores its words. Two
    of the longest records fit, so that one is made while the one before is written. Packing takes
    one cycle per block and one per record, while the words have room. A record of many words takes
    up to two more, in which the last words of the one before leave. A ``start`` is taken when the
    last block of the vector before is packed. ``start.ready`` depends combinationally on
    ``sparse.valid``.
    Golden: golden.oaken.quantize.pack_groups.
    """

    tier = Tier.PART
    golden = "golden.oaken.quantize:pack_groups"
    default = OakenTokenWriterConfig()
    configs: ClassVar = {
        "llama2": OakenTokenWriterConfig(
            kv=KvShape(heads=32, head_dim=128, order="token", groups=4), lanes=64, data_bits=512
        ),
    }

    def __init__(self, config: OakenTokenWriterConfig):
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
                    stream.Signature(config.record_layout), "Bytes of each record, in order."
                ),
                "w": Out(
                    stream.Signature(config.w_layout),
                    "Packed words of the records; last: the final word of a record.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.token_writer(self.config.block_beats, self.config.kv.part_blocks)

    def elaborate(self, platform) -> Module:
        config, kv = self.config, self.config.kv
        m = Module()
        blocks = self._blocks(m)
        pack = self._pack(m)
        sizes = queue(m, "sizes", self.record.payload.shape(), _SIZES)
        link(m, sizes.o, self.record)

        packing = Signal()  # a vector's records are being made
        in_blocks = Signal()  # the scale words of this record are packed
        void = Signal(reset_less=True)
        scale = Signal(SCALE_LAYOUT, reset_less=True)
        group = Signal(range(max(kv.groups, 2)))
        block = Signal(range(max(kv.part_blocks, 2)))
        total = Signal(len(sizes.i.p.bytes))  # bytes packed of this record
        is_last_block = let(m, "is_last_block", block == kv.part_blocks - 1)
        is_last_group = let(m, "is_last_group", group == kv.groups - 1)

        # The last block of a record is packed as its size goes into the queue of sizes.
        may = let(m, "may", in_blocks & blocks.valid & (~is_last_block | sizes.i.ready))
        block_taken = let(m, "block_taken", may & pack.i.ready)
        scale_taken = let(m, "scale_taken", packing & ~void & ~in_blocks & pack.i.ready)
        ends_record = let(m, "ends_record", sizes.i.valid & sizes.i.ready)
        ends = let(m, "ends", ends_record & is_last_group)
        end = let(m, "end", config.block_codes_bytes + blocks.p.bytes)
        size = let(m, "size", total + end)
        m.d.comb += [
            self.start.ready.eq(~packing | ends),
            blocks.ready.eq(in_blocks & pack.i.ready & (~is_last_block | sizes.i.ready)),
            pack.i.valid.eq(may | (packing & ~void & ~in_blocks)),
            pack.i.p.data.eq(Mux(in_blocks, Cat(blocks.p.codes, blocks.p.data), scale.as_value())),
            pack.i.p.end.eq(Mux(in_blocks, end, SCALE_BYTES)),
            pack.i.p.last.eq(in_blocks & is_last_block),
            sizes.i.valid.eq((block_taken & is_last_block) | (packing & void)),
            sizes.i.p.bytes.eq(Mux(void, 0, size)),
        ]
        with m.If(scale_taken):
            m.d.sync += [in_blocks.eq(1), total.eq(SCALE_BYTES)]
        with m.If(block_taken):
            m.d.sync += [block.eq(after(block, kv.part_blocks)), total.eq(size)]
            with m.If(is_last_block):
                m.d.sync += in_blocks.eq(0)
        with m.If(ends_record):
            m.d.sync += group.eq(after(group, kv.groups))
        with m.If(self.start.ready):
            m.d.sync += [
                packing.eq(self.start.valid),
                void.eq(self.start.p.void),
                scale.eq(self.start.p.scale),
            ]
        return m

    def _blocks(self, m: Module) -> StreamView:
        """Blocks of which codes and sparse bytes have come."""
        config = self.config
        depth = max(_AHEAD // config.block_beats, 3)
        storage = "memory" if depth >= _RAM_FROM else "flipflop"
        codes = queue(m, "codes", 8 * config.block_codes_bytes, depth, storage=storage)
        if config.block_beats == 1:
            m.d.comb += [
                codes.i.valid.eq(self.dense.valid),
                self.dense.ready.eq(codes.i.ready),
                codes.i.p.eq(self.dense.p.code.as_value()),
            ]
        else:
            shape = StreamWidenConfig(width=config.lanes * DENSE_BITS, ratio=config.block_beats)
            widen = add(m, "widen", StreamWiden(shape))
            m.d.comb += [
                widen.i.valid.eq(self.dense.valid),
                self.dense.ready.eq(widen.i.ready),
                widen.i.p.data.eq(self.dense.p.code.as_value()),
                widen.i.p.last.eq(0),
                codes.i.valid.eq(widen.o.valid),
                widen.o.ready.eq(codes.i.ready),
                codes.i.p.eq(widen.o.p.data),
            ]
        layout = data.StructLayout({"codes": len(codes.o.p), **self.sparse.payload.shape().members})
        block = Signal(layout)
        blocks = StreamView(block, Signal(name="block_valid"), Signal(name="block_ready"))
        m.d.comb += [
            block.codes.eq(codes.o.p),
            *(block[name].eq(self.sparse.p[name]) for name in ("data", "bytes", "last")),
            blocks.valid.eq(codes.o.valid & self.sparse.valid),
            codes.o.ready.eq(blocks.ready & self.sparse.valid),
            self.sparse.ready.eq(blocks.ready & codes.o.valid),
        ]
        return blocks

    def _pack(self, m: Module):
        """Bytes of scales and blocks on its ``i`` become the words of ``w``."""
        config = self.config
        shape = StreamRepackConfig(in_bytes=config.block_bytes_max, out_bytes=config.word_bytes)
        pack = add(m, "pack", StreamRepack(shape))
        words = word_queue(m, "words", pack.o, config.data_bits, config.record_words)
        link(m, words, self.w)
        return pack
