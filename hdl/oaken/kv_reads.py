"""READs of the KV engine: whole or head by head to the MMU, and their ends."""

import dataclasses
from typing import NamedTuple

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, nested
from golden.paging.format import Op, Status
from hdl.block import Block
from hdl.kinds import NUMBER
from hdl.oaken.kv_reader import OakenKvReaderConfig
from hdl.oaken.layouts import THRESHOLD_LAYOUT, THRESHOLDS
from hdl.paging.layouts import REQUEST_LAYOUT, STATUS_LAYOUT, TOKEN_BITS, info_layout
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenKvReadsConfig(Config):
    """The reader of the decoded heads, and how many READs are in flight."""

    reader: OakenKvReaderConfig = nested(OakenKvReaderConfig)
    reads: int = bounded(4, 1, 16, "READs, or heads of a READ that is split, in flight")

    @property
    def place_bits(self) -> int:
        return max(1, (self.reads - 1).bit_length())

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            request=(REQUEST_LAYOUT, "a READ"),
            present=(1, "thresholds are given for its layer"),
            thresholds=THRESHOLDS,
        )


class OakenKvReads(Block):
    """READs to the MMU, whole or head by head; the thresholds of its heads; one status per READ.

    Each READ has a place until the MMU has ended it. The MMU sees the number of the place as the
    tag. A READ of several heads and of more than ``scale_tokens`` tokens is split into heads. In
    order token none is split, and ``heads`` of a READ are groups. How a READ is requested is
    settled once. A split READ and a TRIM or FREE exclude each other. No piece follows the first
    before the MMU accepts that one. So all heads have the same tokens, or the READ is refused and
    gives no words.

    A READ ends when the MMU has ended it and, if it was accepted, its last beat was taken. Its
    status is the MMU's, with these changes:

        condition                                      status
        refused after THRESHOLDS, none present         THRESHOLDS
        OK, and a sparse record was malformed          MALFORMED
        several heads: an error of the bus             before MALFORMED; DECERR before SLVERR

    1 request per cycle while there are places. ``i.ready`` depends combinationally on
    ``request.ready``, ``ends`` and ``done``. Golden: golden.oaken.kv_engine.KvEngine.
    """

    def __init__(self, config: OakenKvReadsConfig):
        info = stream.Signature(info_layout(config.reader.kv))
        super().__init__(
            config,
            {
                "i": In(stream.Signature(config.i_layout), "READs with their thresholds."),
                "start": In(TOKEN_BITS, "First token that no TRIM has discarded.", NUMBER),
                "is_changing": In(1, "A TRIM or FREE is offered to the MMU."),
                "is_split": Out(1, "Pieces of a READ are offered to the MMU."),
                "request": Out(stream.Signature(REQUEST_LAYOUT), "READs for the MMU."),
                "info": In(info, "Heads of accepted READs."),
                "head": Out(stream.Signature(config.reader.head_layout), "Heads to decode."),
                "done": In(
                    stream.Signature(config.reader.done_layout),
                    "Accepted READs whose last beat was taken.",
                ),
                "ends": In(stream.Signature(STATUS_LAYOUT), "Statuses from the MMU."),
                "status": Out(stream.Signature(STATUS_LAYOUT), "Statuses, one per READ."),
            },
        )

    @property
    def throughput(self) -> str:
        return "1 READ per cycle"

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        places = _Places.of(config)
        refused = Signal()
        piece = self._request(m, places, refused)
        place = self._decode(m, places)
        with m.If(piece.probing & self.info.valid & (place == piece.probed)):
            m.d.sync += piece.probing.eq(0)
        with m.If(refused):
            m.d.sync += [piece.probing.eq(0), piece.done_heads.eq(0)]
        freed, ahead = self._end(m, places)
        m.d.comb += refused.eq(freed & piece.probing & (places.oldest == piece.probed) & ~ahead)
        m.d.sync += places.used.eq(places.used + piece.go - freed)
        return m

    def _request(self, m: Module, places: "_Places", refused) -> "_Piece":
        """The READ on ``i`` to ``request``, in one piece or head by head, each with a place."""
        config, heads = self.config, self.config.reader.kv.heads
        request = self.i.p.request
        settled = Signal()
        split = Signal()
        split_now = Signal()
        probing = Signal()
        probed = Signal(config.place_bits)
        done_heads = Signal(8)
        is_final = Signal()
        go = Signal()
        piece = Signal(REQUEST_LAYOUT)
        # In order token each record has its scales, so no READ is split.
        is_long = request.token > self.start + config.reader.scale_tokens
        is_split_up = (request.heads > 1) & is_long & (request.head + request.heads <= heads)
        m.d.comb += [
            split_now.eq(0 if config.reader.kv.is_by_token else is_split_up),
            self.is_split.eq(settled & split),
            is_final.eq(~split | (done_heads == request.heads - 1)),
            piece.eq(request),
            piece.tag.eq(places.newest),
            self.request.valid.eq(settled & (places.used != config.reads) & ~probing),
            self.request.p.eq(piece),
            go.eq(self.request.valid & self.request.ready),
            self.i.ready.eq((go & is_final) | refused),
        ]
        with m.If(self.i.ready):
            m.d.sync += settled.eq(0)
        with m.Elif(
            self.i.valid
            & ~settled
            & (places.used != config.reads)
            & ~(split_now & self.is_changing)
        ):
            m.d.sync += [settled.eq(1), split.eq(split_now)]
        with m.If(split):
            m.d.comb += [piece.head.eq(request.head + done_heads), piece.heads.eq(1)]
        with m.If(go):
            m.d.sync += [
                places.newest.eq(Mux(places.newest == config.reads - 1, 0, places.newest + 1)),
                done_heads.eq(Mux(is_final, 0, done_heads + 1)),
                probing.eq(split & (done_heads == 0)),
                probed.eq(places.newest),
            ]
            for k, (entry, thresholds) in enumerate(
                zip(places.entries, places.thresholds, strict=True)
            ):
                with m.If(places.newest == k):
                    m.d.sync += [
                        entry.tag.eq(request.tag),
                        entry.sequence.eq(request.sequence),
                        entry.heads.eq(piece.heads),
                        entry.missing.eq(~self.i.p.present),
                        entry.more.eq(~is_final),
                        thresholds.eq(self.i.p.thresholds),
                    ]
        return _Piece(go, probing, probed, done_heads)

    def _decode(self, m: Module, places: "_Places") -> Signal:
        """Heads of the MMU to the reader, with the thresholds of their place, which it returns."""
        place = Signal(self.config.place_bits)
        info, head = self.info, self.head
        m.d.comb += [
            place.eq(info.p.tag),
            head.valid.eq(info.valid),
            info.ready.eq(head.ready),
            head.p.tag.eq(Array(each.tag for each in places.entries)[place]),
            head.p.tokens.eq(info.p.tokens),
            head.p.skip.eq(info.p.skip),
            head.p.first.eq(info.p.first),
            head.p.last.eq(info.p.last),
            head.p.heads.eq(Array(each.heads for each in places.entries)[place]),
            Value.cast(head.p.thresholds).eq(
                Array(Value.cast(each) for each in places.thresholds)[place]
            ),
        ]
        return place

    def _end(self, m: Module, places: "_Places") -> tuple[Signal, Signal]:
        """Statuses of READs: (the oldest place becomes free, its READ was accepted)."""
        reads = self.config.reads
        done = queue(m, "read_done", self.done.payload.shape(), max(reads, 2))
        link(m, self.done, done.i)
        joined = queue(m, "joined", STATUS_LAYOUT, 2)
        entry = Signal(_ENTRY_LAYOUT)
        ends, ended, whole = self.ends, self.ends.p, joined.i.p
        found = Signal(4)
        before = Signal(4)
        merged = Signal(4)
        ahead = Signal()
        more = Signal()
        freed = Signal()
        m.d.comb += [
            entry.eq(Array(Value.cast(each) for each in places.entries)[places.oldest]),
            ahead.eq((ended.status == Status.OK) | (ended.status >= Status.SLAVE_ERROR)),
            found.eq(ended.status),
            merged.eq(Mux(before == Status.OK, found, before)),
            whole.tag.eq(entry.tag),
            whole.op.eq(Op.READ),
            whole.status.eq(merged),
            whole.sequence.eq(entry.sequence),
            more.eq(entry.more & ahead),
            joined.i.valid.eq(ends.valid & (~ahead | done.o.valid) & ~more),
            freed.eq(ends.valid & (~ahead | done.o.valid) & (more | joined.i.ready)),
            ends.ready.eq(freed),
            done.o.ready.eq(freed & ahead),
        ]
        with m.If(~ahead):
            # Nothing was ever written without thresholds, so such a READ is never accepted.
            with m.If(entry.missing & (ended.status > Status.THRESHOLDS)):
                m.d.comb += found.eq(Status.THRESHOLDS)
        with m.Elif((ended.status == Status.OK) & done.o.p.malformed):
            m.d.comb += found.eq(Status.MALFORMED)
        # Of the heads of a split READ: an error of the bus before MALFORMED, DECERR before SLVERR.
        with m.If((before == Status.MALFORMED) & (found != Status.OK)):
            m.d.comb += merged.eq(found)
        with m.If((before == Status.SLAVE_ERROR) & (found == Status.DECODE_ERROR)):
            m.d.comb += merged.eq(found)
        with m.If(freed):
            m.d.sync += [
                places.oldest.eq(Mux(places.oldest == reads - 1, 0, places.oldest + 1)),
                before.eq(Mux(more, merged, Status.OK)),
            ]
        link(m, joined.o, self.status)
        return freed, ahead


_ENTRY_LAYOUT = Payload(tag=8, sequence=8, heads=8, missing=1, more=1)


@dataclasses.dataclass(frozen=True)
class _Places:
    """A place for each READ, or piece of one, that the MMU has not ended."""

    newest: Signal
    oldest: Signal
    used: Signal
    entries: list
    thresholds: list

    @classmethod
    def of(cls, config: OakenKvReadsConfig) -> "_Places":
        return cls(
            newest=Signal(config.place_bits, name="newest"),
            oldest=Signal(config.place_bits, name="oldest"),
            used=Signal(range(config.reads + 1), name="used"),
            entries=[
                Signal(_ENTRY_LAYOUT, name=f"entry_{k}", reset_less=True)
                for k in range(config.reads)
            ],
            thresholds=[
                Signal(THRESHOLD_LAYOUT, name=f"thresholds_{k}", reset_less=True)
                for k in range(config.reads)
            ],
        )


class _Piece(NamedTuple):
    """Progress of the READ that is being requested."""

    go: Signal  # a READ or a piece goes to the MMU
    probing: Signal  # the first piece is not yet answered
    probed: Signal  # its place
    done_heads: Signal
