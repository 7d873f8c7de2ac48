"""Transfers from the cache to decoded heads (docs/blocks/oaken_kv_engine.md)."""

import dataclasses

from amaranth import Const, Module, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, nested, power_of_two
from golden.fp16.format import FP16
from golden.oaken.config import KvShape
from golden.oaken.format import DENSE_BITS, SCALE_BYTES
from golden.paging.format import Status
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BITS, NUMBER
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from hdl.oaken.layouts import FP16_BITS, THRESHOLDS
from hdl.oaken.scale_buffer import OakenScaleBuffer, OakenScaleBufferConfig
from hdl.paging.layouts import TOKEN_BITS, word_layout
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue
from hdl.stream.repack import StreamRepack, StreamRepackConfig

HEADS = 4  # heads accepted and not yet decoded


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenKvReaderConfig(Config):
    """Shape of a vector, width of a memory word, and scales held."""

    kv: KvShape = nested(KvShape, "shape of a vector")
    lanes: int = power_of_two(32, 8, 64, "elements per beat of o, at most block")
    data_bits: int = power_of_two(256, 64, 1024, "bits of a memory word")
    scale_tokens: int = bounded(1024, 4, 65536, "scale records held for the later heads of a read")

    def __post_init__(self) -> None:
        if self.lanes > self.kv.block:
            self._refuse("lanes", f"at most block = {self.kv.block}")

    @property
    def head_layout(self) -> data.StructLayout:
        return Payload(
            tag=(8, "tag of the read", BITS),
            tokens=(TOKEN_BITS, "records of the dense transfer", NUMBER),
            skip=(
                TOKEN_BITS,
                "records of the sparse transfer that precede the first token",
                NUMBER,
            ),
            first=(1, "first head of its read"),
            last=(1, "last head of its read"),
            heads=(8, "heads of the read", NUMBER),
            thresholds=THRESHOLDS,
        )

    @property
    def word_layout(self) -> data.StructLayout:
        return word_layout(self.data_bits)

    @property
    def decoder(self) -> OakenDequantEngineConfig:
        return OakenDequantEngineConfig(
            lanes=self.lanes,
            block=self.kv.block,
            data_bits=self.data_bits,
            blocks_max=self.kv.head_blocks,
        )

    @property
    def done_layout(self) -> data.StructLayout:
        return Payload(malformed=(1, "a sparse transfer of the read was no sparse record"))

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            x=(data.ArrayLayout(FP16_BITS, self.lanes), "decoded elements, FP16", FP16),
            error=(1, "a word of this head so far was decoded from bad data"),
            tag=(8, "tag of the read", BITS),
            last=(1, "final beat of the head"),
        )


class OakenKvReader(Block):
    """Gives for each ``head`` its ``tokens * head_dim`` decoded elements; ``done`` once per read.

    Each head has one ``dense`` and one ``sparse`` transfer. Each read (``first`` to ``last`` head)
    has one ``scale`` transfer. A read of several heads has at most ``scale_tokens`` tokens.
    ``done`` follows the last beat of a read's last head. ``malformed``: some sparse transfer of
    the read was no sparse record. 1 beat per cycle, also from one head to the next.
    """

    def __init__(self, config: OakenKvReaderConfig):
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "head": In(
                    stream.Signature(config.head_layout),
                    "The next head to decode.",
                ),
                "dense": In(word, "Dense transfers, one per head."),
                "sparse": In(word, "Sparse transfers, one per head."),
                "scale": In(word, "Scale transfers, one per read."),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Decoded elements, head by head.",
                ),
                "done": Out(
                    stream.Signature(config.done_layout),
                    "Once per read, after its last beat.",
                ),
            },
        )

    @property
    def throughput(self) -> str:
        return "1 beat per cycle"

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        engine = add(m, "engine", OakenDequantEngine(config.decoder))
        scales = add(
            m, "scales", OakenScaleBuffer(OakenScaleBufferConfig(depth=config.scale_tokens))
        )
        # Tag of the head now on o, and the ends of reads among the heads not yet done.
        tags = queue(m, "tags", 8, HEADS)
        ends = queue(m, "ends", 1, HEADS)

        # A head goes to the engine, to both queues and, if it is its read's first, to the scales;
        # to each when it is ready.
        head = self.head.p
        wanted = (Const(1), Const(1), Const(1), head.first)
        serve(m, self.head, (engine.request, tags.i, ends.i, scales.request), wanted)
        m.d.comb += [
            engine.request.p.tokens.eq(head.tokens),
            engine.request.p.skip.eq(head.skip),
            engine.request.p.blocks.eq(config.kv.head_blocks),
            engine.request.p.thresholds.eq(head.thresholds),
            scales.request.p.tokens.eq(head.tokens),
            scales.request.p.heads.eq(head.heads),
            tags.i.p.eq(head.tag),
            ends.i.p.eq(head.last),
        ]

        dense = self._pack(m, "dense_pack", self.dense, config.lanes * DENSE_BITS // 8)
        scale = self._pack(m, "scale_pack", self.scale, SCALE_BYTES)
        m.d.comb += [
            engine.dense.valid.eq(dense.valid),
            dense.ready.eq(engine.dense.ready),
            engine.dense.p.code.eq(dense.p.data),
            engine.dense.p.error.eq(dense.p.error),
            scales.i.valid.eq(scale.valid),
            scale.ready.eq(scales.i.ready),
            scales.i.p.scale.eq(scale.p.data),
            scales.i.p.error.eq(scale.p.error),
            engine.scale.valid.eq(scales.o.valid),
            scales.o.ready.eq(engine.scale.ready),
            engine.scale.p.eq(scales.o.p),
            engine.sparse.valid.eq(self.sparse.valid),
            self.sparse.ready.eq(engine.sparse.ready),
            engine.sparse.p.eq(self.sparse.p),
        ]
        give_decoded(m, engine, tags.o, ends.o, self.o, self.done)
        return m

    def _pack(self, m: Module, name: str, source, out_bytes: int):
        """The transfers of ``source`` in pieces of ``out_bytes``."""
        config = self.config
        pack = add(
            m,
            name,
            StreamRepack(StreamRepackConfig(in_bytes=config.data_bits // 8, out_bytes=out_bytes)),
        )
        m.d.comb += [
            pack.i.valid.eq(source.valid),
            source.ready.eq(pack.i.ready),
            pack.i.p.data.eq(source.p.data),
            pack.i.p.first.eq(source.p.first),
            pack.i.p.end.eq(source.p.end),
            pack.i.p.error.eq(source.p.error != 0),
            pack.i.p.last.eq(source.p.last),
        ]
        return pack.o


def serve(m: Module, source, sinks, wanted) -> None:
    """A word of ``source`` goes to each of ``sinks`` that wants it, when that one is ready."""
    done = Signal(len(sinks))
    served = Signal(len(sinks))
    m.d.comb += source.ready.eq(served.all())
    for k, (sink, want) in enumerate(zip(sinks, wanted, strict=True)):
        m.d.comb += [
            sink.valid.eq(source.valid & want & ~done[k]),
            served[k].eq(done[k] | sink.ready | ~want),
        ]
        with m.If(source.valid):
            m.d.sync += done[k].eq(served[k] & ~source.ready)


def give_decoded(m: Module, engine: OakenDequantEngine, tags, ends, o, done) -> None:
    """Beats of ``engine`` with their tags to ``o``; a read's statuses, in one, to ``done``.

    tags: one word per head. ends: one per head, whether it is the last of its read.
    """
    beat = engine.o
    m.d.comb += [
        o.valid.eq(beat.valid & tags.valid),
        beat.ready.eq(o.ready & tags.valid),
        o.p.x.eq(beat.p.x),
        o.p.error.eq(beat.p.error),
        o.p.tag.eq(tags.p),
        o.p.last.eq(beat.p.last),
        tags.ready.eq(beat.valid & o.ready & beat.p.last),
    ]

    malformed = Signal()
    bad = Signal()
    status = engine.status
    m.d.comb += [
        bad.eq(malformed | (status.p.status != Status.OK)),
        done.valid.eq(status.valid & ends.valid & ends.p),
        done.p.malformed.eq(bad),
        status.ready.eq(ends.valid & (done.ready | ~ends.p)),
        ends.ready.eq(status.valid & status.ready),
    ]
    with m.If(status.valid & status.ready):
        m.d.sync += malformed.eq(bad & ~ends.p)
