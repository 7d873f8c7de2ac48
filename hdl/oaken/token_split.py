"""Records in order token to scale words, dense codes and sparse bytes."""

import dataclasses
from typing import ClassVar, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, power_of_two
from golden.oaken import timing
from golden.oaken.format import DENSE_BITS, SCALE_BYTES
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.fp16.shift import shift_left
from hdl.kinds import BYTES, NUMBER
from hdl.oaken.byte_window import Window, follow_errors
from hdl.oaken.layouts import SCALE
from hdl.oaken.sparse_chunks import OakenSparseChunks, OakenSparseChunksConfig
from hdl.paging.layouts import TOKEN_BITS, word_layout
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import Queue, queue

_RAM_FROM = 4  # blocks of a queue from which on it is a RAM
_SCALES = 3  # words of scale between this block and its user


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenTokenSplitConfig(Config):
    """Sizes of records and words, and queues."""

    lanes: int = power_of_two(16, 8, 64, "elements per cycle that the bytes are for")
    block: int = choice(64, (16, 32, 64), "elements that share a count byte")
    blocks: int = bounded(3, 1, 64, "blocks of a record")
    data_bits: int = power_of_two(512, 64, 1024, "bits of a memory word")
    ahead: int = bounded(8, 2, 64, "blocks that scale words may be ahead of their user")

    def __post_init__(self) -> None:
        if self.lanes > self.block:
            self._refuse("lanes", f"at most block = {self.block}")

    @property
    def chunk_bytes(self) -> int:
        """Bytes that enter the window in one cycle."""
        return min(self.data_bits // 8, 2 * self.lanes)

    @property
    def chunks(self) -> OakenSparseChunksConfig:
        return OakenSparseChunksConfig(data_bits=self.data_bits, chunk_bytes=self.chunk_bytes)

    @property
    def dense_bytes(self) -> int:
        """Bytes of a block's codes."""
        return self.block * DENSE_BITS // 8

    @property
    def step_bytes(self) -> int:
        """Bytes of the longest step: scales and a block of which every element is an outlier."""
        return SCALE_BYTES + self.dense_bytes + 1 + self.block

    @property
    def window_bytes(self) -> int:
        """So that a chunk is only refused when the next step's bytes, at most, stay there."""
        return self.chunk_bytes + self.step_bytes

    @property
    def request_layout(self) -> data.StructLayout:
        return Payload(
            tokens=(TOKEN_BITS, "records to give", NUMBER),
            skip=(TOKEN_BITS, "records to skip before them", NUMBER),
        )

    @property
    def i_layout(self) -> data.StructLayout:
        return word_layout(self.data_bits)

    @property
    def scale_layout(self) -> data.StructLayout:
        return Payload(scale=SCALE, error=(1, "a byte so far was read with an error"))

    @property
    def dense_layout(self) -> data.StructLayout:
        return Payload(data=(8 * self.dense_bytes, "codes of a block, two a byte", BYTES))

    @property
    def sparse_layout(self) -> data.StructLayout:
        return word_layout(8 * self.block)


class OakenTokenSplit(Block):
    """Scale words, dense codes and sparse bytes of ``tokens`` records, each on its own stream.

    Each request has one transfer on ``i``. The bytes ``first .. end - 1`` of its words, up to
    ``last``, are records of ``blocks`` blocks in order token (golden.oaken.format). The first
    ``skip`` records are dropped, ``tokens`` (1..) records are given, and the remainder of the
    transfer is discarded. A record gives one word of ``scale``, and one of ``dense`` per block. A
    block gives a word of ``sparse``, its count byte and entries; if every element is an outlier, it
    gives two. ``sparse`` is one transfer per request.

    A count above ``block``, or bytes missing, make the request bad. Its sparse transfer then ends
    in a word of no bytes, and the remaining scales and codes are unspecified. ``error``: a byte
    read so far for the request, up to those of the block, had its error set. Codes have the error
    of their block on ``sparse``. Bytes of ``sparse`` from ``end`` on are unspecified.

    A step of a cycle takes a block, and the scales before it; one more cycle where all elements of
    the block are outliers. So 1 block per cycle, while the words bring the bytes. A word enters in
    pieces of ``chunk_bytes``, one per cycle. The outputs have queues of ``ahead`` blocks, so that
    scale words may be taken earlier than the blocks. No ready depends on another stream's valid;
    ``i.ready`` depends on its own payload.
    Source: Oaken, section 5, in the order of decision 0084. Golden:
    golden.oaken.dequantize.split_records.
    """

    tier = Tier.PART
    golden = "golden.oaken.dequantize:split_records"
    default = OakenTokenSplitConfig()
    configs: ClassVar = {
        "widest": OakenTokenSplitConfig(lanes=64, data_bits=1024, blocks=16),
        "small": OakenTokenSplitConfig(lanes=8, block=16, blocks=2, data_bits=64, ahead=2),
    }

    def __init__(self, config: OakenTokenSplitConfig):
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout), "Records to skip, records to give."
                ),
                "i": In(stream.Signature(config.i_layout), "Words of one transfer per request."),
                "scale": Out(stream.Signature(config.scale_layout), "Scale words, one per record."),
                "dense": Out(
                    stream.Signature(config.dense_layout), "Codes of a block each, in order."
                ),
                "sparse": Out(
                    stream.Signature(config.sparse_layout),
                    "Count bytes and entries: words of one transfer per request.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.token_split(self.config.ahead)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        chunks = add(m, "chunks", OakenSparseChunks(config.chunks))
        link(m, self.i, chunks.i)
        outlets = self._outlets(m)
        window, place = Window.of(config.window_bytes), _Place.of(config)
        found = _find(m, config, window, place)
        move = _decide(m, window, place, found, outlets)
        m.d.comb += chunks.drop.eq(place.draining & ~window.ended)
        ends_dropped = window.ended | (chunks.o.valid & chunks.o.ready & chunks.o.p.last)
        done = let(m, "done", (move.finish & move.exact) | (place.draining & ends_dropped))
        _walk(m, config, place, found, move)
        _begin(m, place, self.request, done)
        enters = _fill(m, window, chunks, place.draining, move)
        error = follow_errors(m, window, enters & chunks.o.p.error, move, done)
        _give(m, config, outlets, window, found, move, error)
        return m

    def _outlets(self, m: Module) -> "_Outlets":
        config = self.config
        storage = "memory" if config.ahead >= _RAM_FROM else "flipflop"
        found = _Outlets(
            scale=queue(m, "scales", config.scale_layout, _SCALES),
            dense=queue(m, "denses", config.dense_layout, config.ahead, storage=storage),
            sparse=queue(m, "sparses", config.sparse_layout, config.ahead, storage=storage),
        )
        for name in ("scale", "dense", "sparse"):
            link(m, getattr(found, name).o, getattr(self, name))
        return found


class _Outlets(NamedTuple):
    """The queue of each output."""

    scale: Queue
    dense: Queue
    sparse: Queue


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place of the next byte: request, record, block. At most one of three states."""

    running: Signal  # records are given
    skipping: Signal  # records are dropped
    draining: Signal  # the remainder of the transfer is dropped
    tokens_left: Signal
    skip_left: Signal
    block: Signal  # of the record
    rest: Signal  # the last byte of this block is still to be given
    bad: Signal
    closed: Signal  # the sparse transfer has ended

    @classmethod
    def of(cls, config: OakenTokenSplitConfig) -> "_Place":
        return cls(
            running=Signal(name="running"),
            skipping=Signal(name="skipping"),
            draining=Signal(name="draining"),
            tokens_left=Signal(TOKEN_BITS, name="tokens_left", reset_less=True),
            skip_left=Signal(TOKEN_BITS, name="skip_left", reset_less=True),
            block=Signal(range(max(config.blocks, 2)), name="block"),
            rest=Signal(name="rest"),
            bad=Signal(name="bad"),
            closed=Signal(name="closed"),
        )


class _Found(NamedTuple):
    """The content of the window, a block from its start on, scales before it."""

    codes: Signal  # bytes of dense
    outliers: Signal  # count byte and entries, up to the end of the longest block
    is_first: Signal  # of its record
    is_last: Signal  # of its record
    is_whole: Signal  # all bytes of a sound block are here
    is_full: Signal  # every element is an outlier
    size: Signal  # bytes, the scales before it included
    fault: Signal


class _Move(NamedTuple):
    """The moves of this cycle."""

    step: Signal  # a block is given
    good: Signal  # with its bytes
    closes: Signal  # as the first without them: the sparse transfer ends
    gives_rest: Signal  # the last byte of a full block is given
    skips: Signal  # a block is dropped, or found faulty
    read: Signal  # bytes that leave the window
    kept: Signal  # bytes that stay
    is_end: Signal  # no block of the request follows
    finish: Signal  # the last step of the request
    exact: Signal  # no byte of the transfer is left over


def _find(m: Module, config: OakenTokenSplitConfig, window: Window, place: _Place) -> _Found:
    """The block at the start of the window."""
    half = config.dense_bytes
    is_first = let(m, "is_first", place.block == 0)
    seen = Signal(8 * (half + 1 + config.block))
    m.d.comb += seen.eq(Mux(is_first, window.bytes[8 * SCALE_BYTES :], window.bytes))
    codes, outliers = seen[: 8 * half], seen[8 * half :]
    count = outliers[:8]
    head = let(m, "head", Mux(is_first, SCALE_BYTES, 0) + half + 1)
    size = let(m, "size", head + count)
    has_count = let(m, "has_count", window.level >= head)
    is_over = let(m, "is_over", count > config.block)
    is_whole = let(m, "is_whole", has_count & ~is_over & (window.level >= size))
    return _Found(
        codes,
        outliers,
        is_first,
        let(m, "is_last", place.block == config.blocks - 1),
        is_whole,
        let(m, "is_full", count == config.block),
        size,
        let(m, "fault", (has_count & is_over) | (window.ended & ~is_whole)),
    )


def _decide(m: Module, window: Window, place: _Place, found: _Found, outlets: _Outlets) -> _Move:
    """Give a block or its last byte, skip one, or wait."""
    scale, dense, sparse = (each.i.ready for each in outlets)
    has_room = let(m, "has_room", dense & sparse & (scale | ~found.is_first))
    ahead = place.running & ~place.rest & has_room
    step = let(m, "step", ahead & (place.bad | found.is_whole | found.fault))
    good = let(m, "good", step & ~place.bad & ~found.fault)
    closes = let(m, "closes", step & ~good & ~place.closed)
    gives_rest = let(m, "gives_rest", place.running & place.rest & sparse)
    skips = let(m, "skips", place.skipping & (found.is_whole | found.fault))
    is_end = let(m, "is_end", found.is_last & (place.tokens_left == 1))
    read = Signal.like(found.size, name="read")
    with m.If(good):
        m.d.comb += read.eq(found.size - found.is_full)
    with m.Elif(gives_rest):
        m.d.comb += read.eq(1)
    with m.Elif(skips & ~found.fault):
        m.d.comb += read.eq(found.size)
    finish = let(m, "finish", is_end & ((step & ~(good & found.is_full)) | gives_rest))
    exact = let(m, "exact", window.ended & (good | gives_rest) & (window.level == read))
    kept = let(m, "kept", window.level - read)
    return _Move(step, good, closes, gives_rest, skips, read, kept, is_end, finish, exact)


def _walk(m: Module, config, place: _Place, found: _Found, move: _Move) -> None:
    """Moves the place from block to block and record to record."""
    is_past = Signal()  # all of a block is given
    m.d.comb += is_past.eq((move.step & ~(move.good & found.is_full)) | move.gives_rest)
    with m.If(move.step):
        m.d.sync += [
            place.bad.eq(~move.good),
            place.closed.eq(~move.good),
            place.rest.eq(~is_past),
        ]
    with m.If(move.gives_rest):
        m.d.sync += place.rest.eq(0)
    with m.If(is_past | move.skips):
        m.d.sync += place.block.eq(Mux(found.is_last, 0, place.block + 1))
    with m.If(is_past & found.is_last):
        m.d.sync += place.tokens_left.eq(place.tokens_left - 1)
    with m.If(move.finish):
        m.d.sync += [place.running.eq(0), place.draining.eq(1)]
    with m.If(move.skips):
        with m.If(found.fault):
            m.d.sync += [
                place.bad.eq(1),
                place.skipping.eq(0),
                place.running.eq(1),
                place.block.eq(0),
            ]
        with m.Elif(found.is_last):
            m.d.sync += place.skip_left.eq(place.skip_left - 1)
            with m.If(place.skip_left == 1):
                m.d.sync += [place.skipping.eq(0), place.running.eq(1)]


def _begin(m: Module, place: _Place, request, done) -> None:
    """Take the next request when none is carried out or the present one is ``done``."""
    ready = let(m, "ready", ~(place.running | place.skipping | place.draining) | done)
    m.d.comb += request.ready.eq(ready)
    with m.If(done):
        m.d.sync += [place.running.eq(0), place.draining.eq(0)]
    with m.If(ready & request.valid):
        m.d.sync += [
            place.tokens_left.eq(request.p.tokens),
            place.skip_left.eq(request.p.skip),
            place.block.eq(0),
            place.bad.eq(0),
            place.closed.eq(0),
            place.draining.eq(0),
            place.skipping.eq(request.p.skip.any()),
            place.running.eq(~request.p.skip.any()),
        ]


def _fill(m: Module, window: Window, chunks: OakenSparseChunks, draining, move: _Move) -> Signal:
    """Bytes read leave the window, a chunk enters it after those kept. Returns whether one enters.

    Bytes of the next transfer enter after the last read of this one.
    """
    bits, chunk = len(window.bytes), len(chunks.o.p.data)
    fits = let(m, "fits", move.kept <= (bits - chunk) // 8)
    ends = move.finish & move.exact
    m.d.comb += chunks.o.ready.eq(chunks.drop | (~draining & fits & (~window.ended | ends)))
    enters = let(m, "enters", chunks.o.valid & chunks.o.ready & ~chunks.drop)
    appended = shift_left(
        m, Cat(chunks.o.p.data, Const(0, bits - chunk)), Cat(Const(0, 3), move.kept), "append"
    )
    entered = let(m, "entered", Mux(enters, chunks.o.p.bytes, 0))
    m.d.sync += [
        window.bytes.eq((window.bytes >> Cat(Const(0, 3), move.read)) | Mux(enters, appended, 0)),
        window.level.eq(move.kept + entered),
    ]
    with m.If(enters):
        m.d.sync += window.ended.eq(chunks.o.p.last)
    with m.Elif(ends):
        m.d.sync += window.ended.eq(0)
    with m.If(draining):
        m.d.sync += [window.bytes.eq(0), window.level.eq(0), window.ended.eq(0)]
    return enters


def _give(m: Module, config, outlets: _Outlets, window, found: _Found, move: _Move, error) -> None:
    """A block to the queues: all of it, or the last byte of a full one."""
    scale, dense, sparse = (each.i for each in outlets)
    in_full = let(m, "in_full", Mux(found.is_full, config.block, found.outliers[:8] + 1))
    m.d.comb += [
        scale.valid.eq(move.step & found.is_first),
        scale.p.scale.as_value().eq(window.bytes[: 8 * SCALE_BYTES]),
        scale.p.error.eq(error),
        dense.valid.eq(move.step),
        dense.p.data.eq(found.codes),
        sparse.valid.eq(move.good | move.closes | move.gives_rest),
        sparse.p.data[:8].eq(Mux(move.gives_rest, window.bytes[:8], found.outliers[:8])),
        sparse.p.data[8:].eq(found.outliers[8 : 8 * config.block]),
        sparse.p.first.eq(0),
        sparse.p.end.eq(Mux(move.gives_rest, 1, Mux(move.closes, 0, in_full))),
        sparse.p.error.eq(Cat(Const(0, 1), error)),
        sparse.p.last.eq(move.closes | move.finish),
    ]
