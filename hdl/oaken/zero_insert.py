"""Zero-insert shifter: sparse records to positions (docs/blocks/oaken_zero_insert.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.config import Config
from golden.oaken import timing
from golden.oaken.format import INDEX_BITS
from golden.timing import Timing
from hdl.block import Block
from hdl.fp16.shift import let, shift_left
from hdl.oaken.layouts import OUTLIER_LAYOUT
from hdl.paging.layouts import TOKEN_BITS, word_layout

__all__ = ["OakenZeroInsert", "OakenZeroInsertConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenZeroInsertConfig(Config):
    """Sizes of records and words."""

    lanes: int = 16  # positions of a beat, a power of two in 8..64, at most block
    block: int = 64  # elements that share a count byte: 16, 32 or 64
    data_bits: int = 512  # bits of a memory word, a power of two in 64..1024
    blocks_max: int = 16  # blocks of the longest record, 1..64

    def __post_init__(self) -> None:
        self._check_choice("block", (16, 32, 64))
        self._check_power_of_two("lanes", 8, self.block)
        self._check_power_of_two("data_bits", 64, 1024)
        self._check_range("blocks_max", 1, 64)

    @property
    def chunk_bytes(self) -> int:
        """Bytes that enter the window in one cycle."""
        return min(self.data_bits // 8, 2 * self.lanes)

    @property
    def window_bytes(self) -> int:
        """So that a chunk is only refused while two beats' bytes, the longest, are there."""
        return self.chunk_bytes + 2 * (self.lanes + 1)

    @property
    def block_beats(self) -> int:
        return self.block // self.lanes

    @property
    def request_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {"tokens": TOKEN_BITS, "skip": TOKEN_BITS, "blocks": range(self.blocks_max + 1)}
        )

    @property
    def sparse_layout(self) -> data.StructLayout:
        return word_layout(self.data_bits)

    @property
    def o_layout(self) -> data.StructLayout:
        return data.StructLayout(
            {
                "outlier": data.ArrayLayout(OUTLIER_LAYOUT, self.lanes),
                "bad": 1,
                "error": 1,
                "last": 1,
            }
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

    Members
    -------
    request : In(stream)  tokens, skip, blocks
    sparse : In(stream)   word_layout(data_bits)
    o : Out(stream)       outlier: {present, group, fifth} per position; bad; error; last
    """

    meaning: ClassVar[dict[str, str]] = {
        "request": "Records to skip, records to give, blocks of a record.",
        "sparse": "Words of one transfer per request.",
        "o": "Outliers of consecutive positions; last: of a record.",
    }

    def __init__(self, config: OakenZeroInsertConfig):
        super().__init__(
            config,
            {
                "request": In(stream.Signature(config.request_layout)),
                "sparse": In(stream.Signature(config.sparse_layout)),
                "o": Out(stream.Signature(config.o_layout)),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.zero_insert()

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        lanes, chunk = config.lanes, config.chunk_bytes
        window_bytes = config.window_bytes

        drop = Signal()  # what is left of the transfer is of no use
        taken = Signal()  # the chunk enters the window or is dropped
        offered, chunk_data, chunk_bytes, chunk_last, chunk_error = self._chunks(m, taken, drop)

        # The window: `level` bytes of one transfer from byte 0 on, zeros above; `ended`: its last
        # byte is there. Bytes from `clean` on came with an error, if `dirty`.
        window = Signal(8 * window_bytes)
        level, clean = Signal(range(window_bytes + 1)), Signal(range(window_bytes + 1))
        ended, dirty = Signal(), Signal()

        # Where the next byte belongs.
        running, skipping, draining = Signal(), Signal(), Signal()  # at most one
        blocks = Signal(range(config.blocks_max + 1), reset_less=True)
        block_left = Signal.like(blocks)
        tokens_left = Signal(TOKEN_BITS, reset_less=True)
        skip_left = Signal(TOKEN_BITS, reset_less=True)
        beat = Signal(range(max(config.block_beats, 2)))
        fresh = Signal()  # a count byte is next
        rest = Signal(INDEX_BITS + 1)  # entries of the block not yet read
        bad, error = Signal(), Signal()

        # Up to `lanes` entries, after the count byte on a block's first beat.
        entries = Signal(8 * lanes)
        count_byte = window[:8]
        left = Signal(INDEX_BITS + 1)  # entries of the block from here on
        has_count, count_bad = Signal(), Signal()
        there = Cat(level > k for k in range(lanes + 1))
        visible, wanted, inside, earlier, ordered = (
            Signal(lanes, name=name)
            for name in ("visible", "wanted", "inside", "earlier", "ordered")
        )
        m.d.comb += [
            entries.eq(Mux(fresh, window[8 : 8 + 8 * lanes], window[: 8 * lanes])),
            visible.eq(Mux(fresh, there[1:], there[:lanes])),
            has_count.eq(~fresh | there[0]),
            count_bad.eq(fresh & (count_byte > config.block)),
            left.eq(Mux(fresh, count_byte[: INDEX_BITS + 1], rest)),
            wanted.eq(Cat(left > k for k in range(lanes))),
        ]
        low_bits = lanes.bit_length() - 1
        entry = [entries.word_select(k, 8) for k in range(lanes)]
        low = [each[:low_bits] for each in entry]
        if low_bits < INDEX_BITS:
            high = [each[low_bits:INDEX_BITS] for each in entry]
            m.d.comb += [
                inside.eq(Cat(each == beat for each in high)),
                earlier.eq(Cat(each < beat for each in high)),
            ]
        else:
            m.d.comb += inside.eq((1 << lanes) - 1)
        m.d.comb += ordered.eq(Cat(Const(1, 1), *(low[k] > low[k - 1] for k in range(1, lanes))))

        # The entries of this beat: those before the first that is not wanted, not there or of
        # another beat. A skipped block requests no beat.
        run = let(m, "run", wanted & visible & (inside | skipping.replicate(lanes)))
        step = 1
        while step < lanes:
            run = let(m, f"run_{step}", run & Cat(Const((1 << step) - 1, step), run[:-step]))
            step *= 2
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
        wait = let(m, "wait", missing & ~ended)
        is_last_beat = let(m, "is_last_beat", beat == config.block_beats - 1)
        disorder = (run & ~ordered).any() | (stop & visible & earlier).any()
        leftover = is_last_beat & (left != count)
        fault = Signal()
        m.d.comb += fault.eq(
            (missing & ended) | (has_count & count_bad) | (running & (disorder | leftover))
        )
        read = Signal(range(lanes + 2))  # bytes that leave the window
        go, now_bad = Signal(), Signal()  # a beat of output; it is bad
        o_free = let(m, "o_free", ~self.o.valid | self.o.ready)
        advance = Signal()  # of a block that is skipped
        m.d.comb += [
            go.eq(running & o_free & (bad | ~wait)),
            now_bad.eq(bad | fault),
            advance.eq(skipping & ~wait),
        ]
        moves = (go & ~now_bad) | (skipping & has_count & ~fault)
        m.d.comb += read.eq(Mux(moves, count + fresh, 0))

        # ---- blocks, records, requests
        is_last_block = let(m, "is_last_block", block_left == 1)
        is_last = let(m, "is_last", is_last_beat & is_last_block)
        finish = let(m, "finish", go & is_last & (tokens_left == 1))
        exact = let(m, "exact", ended & ~now_bad & (level == read))  # nothing is left over
        ready, load = Signal(), Signal()
        idle = ~(running | skipping | draining)
        done = let(
            m, "done",
            (finish & exact) | (draining & (ended | (offered & taken & chunk_last))),
        )  # fmt: skip
        m.d.comb += [
            ready.eq(idle | done),
            self.request.ready.eq(ready),
            load.eq(ready & self.request.valid),
            drop.eq(draining & ~ended),
        ]
        with m.If(go):
            m.d.sync += [
                rest.eq(left - count),
                fresh.eq(is_last_beat),
                beat.eq(Mux(is_last_beat, 0, beat + 1)),
                bad.eq(now_bad),
            ]
            with m.If(is_last_beat):
                m.d.sync += block_left.eq(Mux(is_last_block, blocks, block_left - 1))
            with m.If(is_last):
                m.d.sync += tokens_left.eq(tokens_left - 1)
            with m.If(finish):
                m.d.sync += [running.eq(0), draining.eq(1)]
        with m.If(skipping & has_count & ~fault):
            # A long block takes several cycles.
            m.d.sync += [rest.eq(left - count), fresh.eq(0)]
        with m.If(advance):
            with m.If(fault):
                m.d.sync += [bad.eq(1), skipping.eq(0), running.eq(1), block_left.eq(blocks)]
                m.d.sync += fresh.eq(1)
            with m.Elif(left == count):
                m.d.sync += [
                    fresh.eq(1),
                    block_left.eq(Mux(is_last_block, blocks, block_left - 1)),
                ]
                with m.If(is_last_block):
                    m.d.sync += skip_left.eq(skip_left - 1)
                    with m.If(skip_left == 1):
                        m.d.sync += [skipping.eq(0), running.eq(1)]
        with m.If(done):
            m.d.sync += [running.eq(0), draining.eq(0)]
        with m.If(load):
            request = self.request.p
            empty = ~(request.tokens.any() & request.blocks.any())
            m.d.sync += [
                blocks.eq(request.blocks),
                block_left.eq(request.blocks),
                tokens_left.eq(request.tokens),
                skip_left.eq(request.skip),
                beat.eq(0),
                fresh.eq(1),
                bad.eq(0),
                draining.eq(empty),
                skipping.eq(~empty & request.skip.any()),
                running.eq(~empty & ~request.skip.any()),
            ]

        # ---- window
        # Bytes of the next transfer enter after the last read of this one.
        fits = level <= window_bytes - chunk
        m.d.comb += taken.eq(drop | (~draining & fits & (~ended | (finish & exact))))
        enters = let(m, "enters", offered & taken & ~drop)
        appended = shift_left(
            m,
            Cat(chunk_data, Const(0, 8 * (window_bytes - chunk))),
            Cat(Const(0, 3), level),
            "append",
        )
        joined = let(m, "joined", window | Mux(enters, appended, 0))
        entered = let(m, "entered", Mux(enters, chunk_bytes, 0))
        kept = let(m, "kept", level - read)
        m.d.sync += [
            window.eq(joined >> Cat(Const(0, 3), read)),
            level.eq(kept + entered),
        ]
        with m.If(enters):
            m.d.sync += ended.eq(chunk_last)
        with m.Elif(finish & exact):
            m.d.sync += ended.eq(0)
        with m.If(draining):
            m.d.sync += [window.eq(0), level.eq(0), ended.eq(0)]

        # ---- errors
        touched = let(m, "touched", dirty & (read > clean))
        now_error = let(m, "now_error", error | touched)
        m.d.sync += [error.eq(now_error), clean.eq(Mux(read > clean, 0, clean - read))]
        with m.If(done):
            m.d.sync += [error.eq(0), dirty.eq(0)]
        with m.If(enters & chunk_error & (~dirty | done)):
            m.d.sync += [dirty.eq(1), clean.eq(kept)]

        # ---- output
        outlier = Signal(data.ArrayLayout(OUTLIER_LAYOUT, lanes))
        present, outer, fifth = Const(0, lanes), Const(0, lanes), Const(0, lanes)
        for k in range(lanes):
            # Entries of one beat ascend, so entry k is at position k or above.
            place = (Const(1, lanes) << low[k])[k:lanes]
            at = let(m, f"at_{k}", Cat(Const(0, k), place) & run[k].replicate(lanes))
            present = present | at
            outer = outer | (at & entry[k][INDEX_BITS].replicate(lanes))
            fifth = fifth | (at & entry[k][INDEX_BITS + 1].replicate(lanes))
        present, outer, fifth = (
            let(m, name, value)
            for name, value in (("present", present), ("outer", outer), ("fifth", fifth))
        )
        m.d.comb += [
            Value.cast(outlier[k]).eq(Mux(now_bad, 0, Cat(present[k], outer[k], fifth[k])))
            for k in range(lanes)
        ]
        assert tuple(OUTLIER_LAYOUT.members) == ("present", "group", "fifth")
        valid = Signal()
        word = Signal(config.o_layout, reset_less=True)
        m.d.comb += [self.o.valid.eq(valid), self.o.payload.eq(word)]
        with m.If(o_free):
            m.d.sync += valid.eq(go)
        with m.If(go):
            m.d.sync += [
                word.outlier.eq(outlier),
                word.bad.eq(now_bad),
                word.error.eq(now_error | now_bad),
                word.last.eq(is_last),
            ]
        return m

    def _chunks(self, m: Module, taken, drop):
        """Words cut into chunks whose valid bytes start at byte 0.

        Returns (valid, data, bytes, last, error), from registers. ``taken`` takes one chunk.
        ``drop`` discards the remainder of a word.
        """
        chunk = self.config.chunk_bytes
        pieces = self.config.data_bits // 8 // chunk
        word = self.sparse.p
        place_bits = chunk.bit_length() - 1
        valid = Signal()
        last, error = Signal(reset_less=True), Signal(reset_less=True)
        bits, count = Signal(8 * chunk, reset_less=True), Signal(range(chunk + 1), reset_less=True)
        free = let(m, "chunk_free", ~valid | taken)

        end_piece = let(m, "end_piece", (word.end - (word.end != 0))[place_bits:])
        piece = Signal(range(max(pieces, 2)))
        is_first, is_final = Signal(init=1), Signal()  # of its word
        if pieces > 1:
            following = Signal(range(pieces))
            m.d.comb += piece.eq(Mux(is_first, word.first[place_bits:], following))
            with m.If(free & self.sparse.valid):
                m.d.sync += following.eq(piece + 1)
        # The word after the transfer's last chunk is not to be dropped.
        m.d.comb += is_final.eq((piece >= end_piece) | (drop & ~(valid & last)))
        begin = let(m, "begin", Mux(is_first, word.first[:place_bits], 0))
        stop = let(m, "chunk_end", Mux(is_final, word.end - (end_piece << place_bits), chunk))
        is_empty = let(m, "is_empty", word.end <= word.first)
        length = Signal(range(chunk + 1))
        m.d.comb += length.eq(Mux(is_empty, 0, stop - begin))
        source = let(m, "source", word.data.word_select(piece, 8 * chunk))
        aligned = let(m, "aligned", source >> Cat(Const(0, 3), begin))
        mask = Cat((length > k).replicate(8) for k in range(chunk))
        m.d.comb += self.sparse.ready.eq(free & is_final)
        with m.If(free):
            m.d.sync += valid.eq(self.sparse.valid)
            with m.If(self.sparse.valid):
                m.d.sync += [
                    bits.eq(aligned & mask),
                    count.eq(length),
                    last.eq(word.last & is_final),
                    error.eq(word.error.any()),
                    is_first.eq(is_final),
                ]
        return valid, bits, count, last, error
