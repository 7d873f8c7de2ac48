"""Zero-insert shifter: sparse records to positions."""

import dataclasses
from typing import ClassVar, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, power_of_two
from golden.oaken import timing
from golden.oaken.format import INDEX_BITS
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, Tier
from hdl.children import add
from hdl.fp16.shift import shift_left
from hdl.kinds import NUMBER
from hdl.oaken.byte_window import Window, follow_errors
from hdl.oaken.layouts import OUTLIER_LAYOUT
from hdl.oaken.sparse_chunks import OakenSparseChunks, OakenSparseChunksConfig
from hdl.paging.layouts import TOKEN_BITS, word_layout
from hdl.ports import In, Out, Payload
from hdl.stream.link import link


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenZeroInsertConfig(Config):
    """Sizes of records and words."""

    lanes: int = 16  # positions of a beat, a power of two in 8..64, at most block
    block: int = choice(64, (16, 32, 64), "elements that share a count byte")
    data_bits: int = power_of_two(512, 64, 1024, "bits of a memory word")
    blocks_max: int = bounded(16, 1, 64, "blocks of the longest record")

    def __post_init__(self) -> None:
        self._check_power_of_two("lanes", 8, self.block)

    @property
    def chunk_bytes(self) -> int:
        """Bytes that enter the window in one cycle."""
        return min(self.data_bits // 8, 2 * self.lanes)

    @property
    def window_bytes(self) -> int:
        """So that a chunk is only refused while two beats' bytes, the longest, are there."""
        return self.chunk_bytes + 2 * (self.lanes + 1)

    @property
    def chunks(self) -> OakenSparseChunksConfig:
        return OakenSparseChunksConfig(data_bits=self.data_bits, chunk_bytes=self.chunk_bytes)

    @property
    def block_beats(self) -> int:
        return self.block // self.lanes

    @property
    def request_layout(self) -> data.StructLayout:
        return Payload(
            tokens=(TOKEN_BITS, "records to give", NUMBER),
            skip=(TOKEN_BITS, "records to skip before them", NUMBER),
            blocks=(range(self.blocks_max + 1), "blocks of a record"),
        )

    @property
    def sparse_layout(self) -> data.StructLayout:
        return word_layout(self.data_bits)

    @property
    def o_layout(self) -> data.StructLayout:
        return Payload(
            outlier=(data.ArrayLayout(OUTLIER_LAYOUT, self.lanes), "what each element is"),
            bad=(1, "a fault in the record, in this beat or an earlier one"),
            error=(1, "bad, or a word read so far for this request had its error set"),
            last=(1, "final beat of the record"),
        )


class OakenZeroInsert(Block):
    """Per element whether it is an outlier, its group and fifth bit, ``lanes`` elements a beat.

    Each request has one transfer on ``sparse``. The bytes ``first .. end - 1`` of its words, up to
    ``last``, are sparse records of ``blocks`` blocks (golden.oaken.format). The first ``skip``
    records are dropped. ``tokens`` records follow as ``tokens * blocks * block / lanes`` beats,
    ``last`` on the final one of each. The block discards the remainder of the transfer. With no
    tokens or no blocks it discards the whole transfer.

    ``bad`` is sticky within the request. Its causes are a count above ``block``, an index that
    does not ascend or is not below ``block``, or bytes missing. The golden function says which
    beat shows it first. From there on there are no outliers, but all beats come. Of skipped records
    only the counts are examined. ``error``: ``bad``, or a word read so far had its ``error`` set.

    1 beat per cycle, also across records and requests, while the words bring the bytes: at most
    ``lanes + 1`` a beat. A word enters in pieces of ``2 * lanes`` bytes, one per cycle. A block
    skipped takes ceil(count / lanes) cycles, at least 1; one more per request whose transfer has
    bytes left over. Latency 3 cycles from a word to its first beat. ``sparse.ready`` and
    ``request.ready`` depend combinationally on ``o.ready`` and on no valid, ``sparse.ready`` also
    on the payload of ``sparse``.
    Source: Oaken, section 5. Golden: golden.oaken.dequantize.insert_zeros.

    The block neither sorts entries nor stores whole records. The entries of a beat are the first of
    those not yet used. For each beat the window compares the next ``lanes`` entries with its
    number, takes the matching run, and moves by as many bytes. It holds min(data_bits / 8, 2 *
    lanes) + 2 * (lanes + 1) bytes. About half of the single-bit flips in sparse records are seen
    (docs/oaken.md). The block reads a damaged transfer to its ``last``, and the next request is not
    affected (decision 0068).

        ====================================================  =====================================
        fault                                                 ``bad`` from
        ====================================================  =====================================
        count above ``block``; no count byte left             the first beat of the block
        two entries of a beat not ascending; an entry of an   the beat being given
        earlier beat
        index not below ``block``, or any entry left over     the last beat of the block
        an entry missing                                      the beat that it may belong to
        any of these in the counts of skipped records         the first beat
        ====================================================  =====================================
    """

    tier = Tier.PART
    golden = "golden.oaken.dequantize:insert_zeros"
    default = OakenZeroInsertConfig()
    configs: ClassVar = {
        "widest": OakenZeroInsertConfig(lanes=64, data_bits=1024),
        "small": OakenZeroInsertConfig(lanes=8, block=16, data_bits=64, blocks_max=4),
    }

    def __init__(self, config: OakenZeroInsertConfig):
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout),
                    "Records to skip, records to give, blocks of a record.",
                ),
                "sparse": In(
                    stream.Signature(config.sparse_layout), "Words of one transfer per request."
                ),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Outliers of consecutive positions; last: of a record.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.zero_insert()

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        chunks = add(m, "chunks", OakenSparseChunks(config.chunks))
        link(m, self.sparse, chunks.i)
        window, place = Window.of(config.window_bytes), _Place.of(config)
        o_free = let(m, "o_free", ~self.o.valid | self.o.ready)
        found = _find(m, config, window, place)
        move = _decide(m, config, window, place, found, o_free)
        m.d.comb += chunks.drop.eq(place.draining & ~window.ended)
        ends_dropped = window.ended | (chunks.o.valid & chunks.o.ready & chunks.o.p.last)
        done = let(m, "done", (move.finish & move.exact) | (place.draining & ends_dropped))
        _walk(m, place, found, move)
        _begin(m, place, self.request, done)
        enters = _fill(m, window, chunks, place.draining, move)
        error = follow_errors(m, window, enters & chunks.o.p.error, move, done)
        _give(m, self.o, _spread(m, config.lanes, found), move, error, o_free)
        return m


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place of the next byte: request, record, block, beat. At most one of three states."""

    running: Signal  # records give beats
    skipping: Signal  # records are dropped
    draining: Signal  # the remainder of the transfer is dropped
    blocks: Signal
    block_left: Signal
    tokens_left: Signal
    skip_left: Signal
    beat: Signal  # of the block
    fresh: Signal  # a count byte is next
    entries_left: Signal  # entries of the block not yet read
    bad: Signal

    @classmethod
    def of(cls, config: OakenZeroInsertConfig) -> "_Place":
        blocks = Signal(range(config.blocks_max + 1), name="blocks", reset_less=True)
        return cls(
            running=Signal(name="running"),
            skipping=Signal(name="skipping"),
            draining=Signal(name="draining"),
            blocks=blocks,
            block_left=Signal.like(blocks, name="block_left"),
            tokens_left=Signal(TOKEN_BITS, name="tokens_left", reset_less=True),
            skip_left=Signal(TOKEN_BITS, name="skip_left", reset_less=True),
            beat=Signal(range(max(config.block_beats, 2)), name="beat"),
            fresh=Signal(name="fresh"),
            entries_left=Signal(INDEX_BITS + 1, name="entries_left"),
            bad=Signal(name="bad"),
        )


class _Found(NamedTuple):
    """The content of the window for this beat: ``count`` entries, the ones of ``run``."""

    entry: list
    low: list  # position of each entry in its beat
    run: Signal
    count: Signal
    left: Signal  # entries of the block from here on
    has_count: Signal
    wait: Signal  # bytes of the beat have not come
    fault: Signal
    is_last_beat: Signal  # of the block


class _Move(NamedTuple):
    """The moves of this cycle."""

    go: Signal  # a beat of output
    bad: Signal  # that beat is bad
    advance: Signal  # a part of a block is skipped
    read: Signal  # bytes that leave the window
    kept: Signal  # bytes that stay
    is_last_block: Signal
    is_last: Signal  # beat of the record
    finish: Signal  # the last beat of the request
    exact: Signal  # no byte of the transfer is left over


def _find(m: Module, config: OakenZeroInsertConfig, window: Window, place: _Place) -> _Found:
    """The entries of this beat, and whether they are sound.

    They are those before the first that is not wanted, not there or of another beat. A skipped
    block requests no beat.
    """
    lanes = config.lanes
    # Up to `lanes` entries, after the count byte on a block's first beat.
    entries = Signal(8 * lanes)
    count_byte = window.bytes[:8]
    left = Signal(INDEX_BITS + 1)
    has_count = Signal()
    count_bad = Signal()
    there = Cat(window.level > k for k in range(lanes + 1))
    visible, wanted, inside, earlier, ordered = (
        Signal(lanes, name=name) for name in ("visible", "wanted", "inside", "earlier", "ordered")
    )
    m.d.comb += [
        entries.eq(Mux(place.fresh, window.bytes[8 : 8 + 8 * lanes], window.bytes[: 8 * lanes])),
        visible.eq(Mux(place.fresh, there[1:], there[:lanes])),
        has_count.eq(~place.fresh | there[0]),
        count_bad.eq(place.fresh & (count_byte > config.block)),
        left.eq(Mux(place.fresh, count_byte[: INDEX_BITS + 1], place.entries_left)),
        wanted.eq(Cat(left > k for k in range(lanes))),
    ]
    low_bits = lanes.bit_length() - 1
    entry = [entries.word_select(k, 8) for k in range(lanes)]
    low = [each[:low_bits] for each in entry]
    if low_bits < INDEX_BITS:
        high = [each[low_bits:INDEX_BITS] for each in entry]
        m.d.comb += [
            inside.eq(Cat(each == place.beat for each in high)),
            earlier.eq(Cat(each < place.beat for each in high)),
        ]
    else:
        m.d.comb += inside.eq((1 << lanes) - 1)
    m.d.comb += ordered.eq(Cat(Const(1, 1), *(low[k] > low[k - 1] for k in range(1, lanes))))

    run = _prefix(m, wanted & visible & (inside | place.skipping.replicate(lanes)))
    count = Signal(range(lanes + 1))  # ones of run
    edge = run & ~Cat(run[1:], Const(0, 1))  # the last of them
    m.d.comb += count.eq(
        Cat(
            Cat(edge[k] for k in range(lanes) if (k + 1) >> bit & 1).any()
            for bit in range(lanes.bit_length())
        )
    )
    stop = let(m, "stop", wanted & ~run & Cat(Const(1, 1), run[:-1]))  # the entry after them
    missing = let(m, "missing", ~has_count | (stop & ~visible).any())
    wait = let(m, "wait", missing & ~window.ended)
    is_last_beat = let(m, "is_last_beat", place.beat == config.block_beats - 1)
    disorder = (run & ~ordered).any() | (stop & visible & earlier).any()
    leftover = is_last_beat & (left != count)
    fault = Signal()
    m.d.comb += fault.eq(
        (missing & window.ended) | (has_count & count_bad) | (place.running & (disorder | leftover))
    )
    return _Found(entry, low, run, count, left, has_count, wait, fault, is_last_beat)


def _prefix(m: Module, bits) -> Signal:
    """The ones of ``bits`` before its first zero."""
    lanes = len(bits)
    run = let(m, "run", bits)
    step = 1
    while step < lanes:
        run = let(m, f"run_{step}", run & Cat(Const((1 << step) - 1, step), run[:-step]))
        step *= 2
    return run


def _decide(m: Module, config, window: Window, place: _Place, found: _Found, o_free) -> _Move:
    """Give a beat, skip, or wait."""
    read = Signal(range(config.lanes + 2))
    go = Signal()
    now_bad = Signal()
    advance = Signal()
    m.d.comb += [
        go.eq(place.running & o_free & (place.bad | ~found.wait)),
        now_bad.eq(place.bad | found.fault),
        advance.eq(place.skipping & ~found.wait),
    ]
    moves = (go & ~now_bad) | (place.skipping & found.has_count & ~found.fault)
    m.d.comb += read.eq(Mux(moves, found.count + place.fresh, 0))
    is_last_block = let(m, "is_last_block", place.block_left == 1)
    is_last = let(m, "is_last", found.is_last_beat & is_last_block)
    finish = let(m, "finish", go & is_last & (place.tokens_left == 1))
    exact = let(m, "exact", window.ended & ~now_bad & (window.level == read))
    kept = let(m, "kept", window.level - read)
    return _Move(go, now_bad, advance, read, kept, is_last_block, is_last, finish, exact)


def _walk(m: Module, place: _Place, found: _Found, move: _Move) -> None:
    """Moves the place from beat to beat, block to block and record to record."""
    next_block = Mux(move.is_last_block, place.blocks, place.block_left - 1)
    with m.If(move.go):
        m.d.sync += [
            place.entries_left.eq(found.left - found.count),
            place.fresh.eq(found.is_last_beat),
            place.beat.eq(Mux(found.is_last_beat, 0, place.beat + 1)),
            place.bad.eq(move.bad),
        ]
        with m.If(found.is_last_beat):
            m.d.sync += place.block_left.eq(next_block)
        with m.If(move.is_last):
            m.d.sync += place.tokens_left.eq(place.tokens_left - 1)
        with m.If(move.finish):
            m.d.sync += [place.running.eq(0), place.draining.eq(1)]
    with m.If(place.skipping & found.has_count & ~found.fault):
        # A long block takes several cycles.
        m.d.sync += [place.entries_left.eq(found.left - found.count), place.fresh.eq(0)]
    with m.If(move.advance):
        with m.If(found.fault):
            m.d.sync += [
                place.bad.eq(1),
                place.skipping.eq(0),
                place.running.eq(1),
                place.block_left.eq(place.blocks),
                place.fresh.eq(1),
            ]
        with m.Elif(found.left == found.count):
            m.d.sync += [place.fresh.eq(1), place.block_left.eq(next_block)]
            with m.If(move.is_last_block):
                m.d.sync += place.skip_left.eq(place.skip_left - 1)
                with m.If(place.skip_left == 1):
                    m.d.sync += [place.skipping.eq(0), place.running.eq(1)]


def _begin(m: Module, place: _Place, request, done) -> None:
    """Take the next request when none is carried out or the present one is ``done``."""
    ready = Signal()
    load = Signal()
    m.d.comb += [
        ready.eq(~(place.running | place.skipping | place.draining) | done),
        request.ready.eq(ready),
        load.eq(ready & request.valid),
    ]
    with m.If(done):
        m.d.sync += [place.running.eq(0), place.draining.eq(0)]
    with m.If(load):
        empty = ~(request.p.tokens.any() & request.p.blocks.any())
        m.d.sync += [
            place.blocks.eq(request.p.blocks),
            place.block_left.eq(request.p.blocks),
            place.tokens_left.eq(request.p.tokens),
            place.skip_left.eq(request.p.skip),
            place.beat.eq(0),
            place.fresh.eq(1),
            place.bad.eq(0),
            place.draining.eq(empty),
            place.skipping.eq(~empty & request.p.skip.any()),
            place.running.eq(~empty & ~request.p.skip.any()),
        ]


def _fill(m: Module, window: Window, chunks: OakenSparseChunks, draining, move: _Move) -> Signal:
    """Bytes read leave the window, a chunk enters it. Returns whether one enters.
    Bytes of the next transfer enter after the last read of this one.
    """
    bits, chunk = len(window.bytes), len(chunks.o.p.data)
    fits = window.level <= (bits - chunk) // 8
    ends = move.finish & move.exact
    m.d.comb += chunks.o.ready.eq(chunks.drop | (~draining & fits & (~window.ended | ends)))
    enters = let(m, "enters", chunks.o.valid & chunks.o.ready & ~chunks.drop)
    appended = shift_left(
        m,
        Cat(chunks.o.p.data, Const(0, bits - chunk)),
        Cat(Const(0, 3), window.level),
        "append",
    )
    joined = let(m, "joined", window.bytes | Mux(enters, appended, 0))
    entered = let(m, "entered", Mux(enters, chunks.o.p.bytes, 0))
    m.d.sync += [
        window.bytes.eq(joined >> Cat(Const(0, 3), move.read)),
        window.level.eq(move.kept + entered),
    ]
    with m.If(enters):
        m.d.sync += window.ended.eq(chunks.o.p.last)
    with m.Elif(ends):
        m.d.sync += window.ended.eq(0)
    with m.If(draining):
        m.d.sync += [window.bytes.eq(0), window.level.eq(0), window.ended.eq(0)]
    return enters


def _spread(m: Module, lanes: int, found: _Found) -> tuple[Value, Value, Value]:
    """Per position: an outlier is present; its group; its fifth bit."""
    present, outer, fifth = Const(0, lanes), Const(0, lanes), Const(0, lanes)
    for k in range(lanes):
        # Entries of one beat ascend, so entry k is at position k or above.
        place = (Const(1, lanes) << found.low[k])[k:lanes]
        at = let(m, f"at_{k}", Cat(Const(0, k), place) & found.run[k].replicate(lanes))
        present = present | at
        outer = outer | (at & found.entry[k][INDEX_BITS].replicate(lanes))
        fifth = fifth | (at & found.entry[k][INDEX_BITS + 1].replicate(lanes))
    return let(m, "present", present), let(m, "outer", outer), let(m, "fifth", fifth)


def _give(m: Module, o, outliers: tuple, move: _Move, error, o_free) -> None:
    """The beat to ``o``, through a register."""
    present, outer, fifth = outliers
    outlier = Signal(o.p.outlier.shape())
    m.d.comb += [
        Value.cast(outlier[k]).eq(Mux(move.bad, 0, Cat(present[k], outer[k], fifth[k])))
        for k in range(len(present))
    ]
    assert tuple(OUTLIER_LAYOUT.members) == ("present", "group", "fifth")
    valid = Signal()
    word = Signal(o.p.shape(), reset_less=True)
    m.d.comb += [o.valid.eq(valid), o.payload.eq(word)]
    with m.If(o_free):
        m.d.sync += valid.eq(move.go)
    with m.If(move.go):
        m.d.sync += [
            word.outlier.eq(outlier),
            word.bad.eq(move.bad),
            word.error.eq(error | move.bad),
            word.last.eq(move.is_last),
        ]
