"""Transfers from a cache in order token to decoded groups of heads."""

import dataclasses

from amaranth import Const, Module, Signal
from amaranth.lib import stream

from golden.config import nested
from golden.oaken.config import KvShape
from golden.oaken.format import DENSE_BITS
from hdl.bits import after, let
from hdl.block import Block
from hdl.children import add
from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig
from hdl.oaken.kv_reader import HEADS, OakenKvReaderConfig, give_decoded, serve
from hdl.oaken.token_split import OakenTokenSplit, OakenTokenSplitConfig
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue

_BEATS_AHEAD = 4  # beats that blocks wait for their scales, beyond the scales' preparation


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenTokenReaderConfig(OakenKvReaderConfig):
    """Shape of a vector in order token and width of a memory word; no scales are held."""

    kv: KvShape = nested(
        lambda: KvShape(heads=3, head_dim=64, order="token"), "shape of a vector", KvShape
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kv.is_by_token:
            self._refuse("kv", "of order token")

    @property
    def decoder(self) -> OakenDequantEngineConfig:
        return OakenDequantEngineConfig(
            lanes=self.lanes,
            block=self.kv.block,
            data_bits=8 * self.kv.block,
            blocks_max=self.kv.part_blocks,
        )

    @property
    def split(self) -> OakenTokenSplitConfig:
        beats = self.decoder.scale_stages + _BEATS_AHEAD
        return OakenTokenSplitConfig(
            lanes=self.lanes,
            block=self.kv.block,
            blocks=self.kv.part_blocks,
            data_bits=self.data_bits,
            ahead=-(-beats * self.lanes // self.kv.block) + 1,
        )


class OakenTokenReader(Block):
    """Gives for each ``head`` the decoded elements of a group; ``done`` once per read.

    A ``head`` is one transfer of ``token``: records in order token of one group. Its elements come
    token by token. Each read is its ``first`` to its ``last`` group. ``done`` follows the last beat
    of a read's last group. ``malformed``: some transfer of the read was no records. 1 beat per
    cycle, while memory brings the words, within the bounds of ``OakenTokenSplit``.
    """

    def __init__(self, config: OakenTokenReaderConfig):
        super().__init__(
            config,
            {
                "head": In(stream.Signature(config.head_layout), "The next group to decode."),
                "token": In(stream.Signature(config.word_layout), "Transfers, one per group."),
                "o": Out(stream.Signature(config.o_layout), "Decoded elements, group by group."),
                "done": Out(
                    stream.Signature(config.done_layout), "Once per read, after its last beat."
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
        split = add(m, "split", OakenTokenSplit(config.split))
        # Tag of the group now on o, and the ends of reads among the groups not yet done.
        tags = queue(m, "tags", 8, HEADS)
        ends = queue(m, "ends", 1, HEADS)

        head = self.head.p
        sinks = (engine.request, tags.i, ends.i, split.request)
        serve(m, self.head, sinks, [Const(1)] * len(sinks))
        m.d.comb += [
            engine.request.p.tokens.eq(head.tokens),
            engine.request.p.skip.eq(0),  # what is skipped, ``split`` skips
            engine.request.p.blocks.eq(config.kv.part_blocks),
            engine.request.p.thresholds.eq(head.thresholds),
            split.request.p.tokens.eq(head.tokens),
            split.request.p.skip.eq(head.skip),
            tags.i.p.eq(head.tag),
            ends.i.p.eq(head.last),
        ]
        link(m, self.token, split.i)
        link(m, split.scale, engine.scale)
        link(m, split.sparse, engine.sparse)
        self._codes(m, split.dense, engine.dense)
        give_decoded(m, engine, tags.o, ends.o, self.o, self.done)
        return m

    def _codes(self, m: Module, blocks, dense) -> None:
        """The codes of each block, beat by beat."""
        beats = self.config.kv.block // self.config.lanes
        beat = Signal(range(max(beats, 2)))
        is_last = let(m, "is_last", beat == beats - 1)
        codes = blocks.p.data.word_select(beat, self.config.lanes * DENSE_BITS)
        m.d.comb += [
            dense.valid.eq(blocks.valid),
            blocks.ready.eq(dense.ready & is_last),
            dense.p.code.eq(codes),
            dense.p.error.eq(0),  # the block's word on sparse has it
        ]
        with m.If(dense.valid & dense.ready):
            m.d.sync += beat.eq(after(beat, beats))
