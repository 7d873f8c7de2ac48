"""Oaken's encoder of KV vectors (docs/blocks/oaken_quant_engine.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, choice, power_of_two
from golden.fp16.format import FP16
from golden.oaken import timing
from golden.oaken.format import DENSE_BITS, INDEX_BITS, ScaleWord
from golden.paging.format import Status
from golden.timing import Timing
from hdl.bits import after, let
from hdl.block import Block
from hdl.children import SIGNAL_BITS, add
from hdl.kinds import NUMBER
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.oaken.arithmetic import thresholds_valid
from hdl.oaken.decomposer import OakenDecomposer, OakenDecomposerConfig, shifted_layout
from hdl.oaken.inlier_quantizer import OakenInlierQuantizer, OakenInlierQuantizerConfig
from hdl.oaken.layouts import FP16_BITS, SCALE, THRESHOLDS
from hdl.oaken.outlier_quantizer import OakenOutlierQuantizer, OakenOutlierQuantizerConfig
from hdl.oaken.zero_remove import OakenZeroRemove, OakenZeroRemoveConfig, sparse_layout
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue

ELEMENTS_LIMIT = 128 * 1024  # of the longest vector: 128 heads of 1024
BLOCKS_BITS = 14  # of a request: fixed, so that a number out of range arrives
_INFO_DEPTH = 8  # requests in flight through the decomposer
_STATUS_DEPTH = 20  # vectors in flight from the last beat to their scales
_SCALE_CYCLES = 20  # at least the delay of a GroupQuantizer's scales and the buffer's own


@dataclasses.dataclass(frozen=True, kw_only=True)
class OakenQuantEngineConfig(Config):
    """Width of the engine and its longest vector."""

    lanes: int = power_of_two(16, 8, 64, "elements per cycle, at most block")
    block: int = choice(64, (16, 32, 64), "elements that share a count byte")
    elements_max: int = 4096  # elements of the longest vector, a multiple of block up to 131072

    def __post_init__(self) -> None:
        if self.lanes > self.block:
            self._refuse("lanes", f"at most block = {self.block}")
        self._check_range("elements_max", self.block, ELEMENTS_LIMIT)
        if self.elements_max % self.block:
            self._refuse("elements_max", f"a multiple of block = {self.block}")

    @property
    def beats_max(self) -> int:
        """Beats of the longest vector."""
        return self.elements_max // self.lanes

    @property
    def block_beats(self) -> int:
        return self.block // self.lanes

    @property
    def buffer_rows(self) -> int:
        """Beats between the two passes: the longest vector, and what comes until its scales."""
        return self.beats_max + _SCALE_CYCLES

    @property
    def vectors(self) -> int:
        """Scanned vectors whose codes are still to come, where all are of one block."""
        return self.elements_max // self.block + 8

    @property
    def request_layout(self) -> data.StructLayout:
        return Payload(
            blocks=(BLOCKS_BITS, "blocks of the vector", NUMBER),
            thresholds=THRESHOLDS,
        )

    @property
    def i_layout(self) -> data.StructLayout:
        return Payload(
            x=(data.ArrayLayout(FP16_BITS, self.lanes), "elements, FP16", FP16),
            last=(1, "final beat of the vector"),
        )

    @property
    def header_layout(self) -> data.StructLayout:
        return Payload(
            status=(4, "golden.paging.format.Status", Status),
            scale=SCALE,
        )

    @property
    def dense_layout(self) -> data.StructLayout:
        return Payload(
            code=(data.ArrayLayout(DENSE_BITS, self.lanes), "four bits per element", NUMBER),
            last=(1, "final beat of the vector"),
        )

    @property
    def sparse_layout(self) -> data.StructLayout:
        return sparse_layout(self.block)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorBufferConfig(Config):
    """Shape of VectorBuffer."""

    width: int = bounded(32, 1, SIGNAL_BITS - 3, "bits of a row")  # room for the flags of i
    rows: int = bounded(16, 2, 1 << 16, "rows held, more than the longest vector has")

    @property
    def memory(self) -> MemoryConfig:
        return MemoryConfig(depth=self.rows, width=self.width)


class VectorBuffer(Block):
    """A queue that outputs whole vectors only, and discards one with ``drop``.

    Rows with ``write`` are stored. ``last`` makes those since the last ``last`` readable, or
    discards them if ``drop`` is set. ``i.ready`` comes from a register; 1 row per cycle each
    way, 2 cycles from ``last`` to ``o.valid``. The row being written is never read.
    """

    def __init__(self, config: VectorBufferConfig):
        i_layout = Payload(
            data=(config.width, "row"),
            write=(1, "the row is stored"),
            last=(1, "final beat of the vector"),
            drop=(1, "with last: the vector is discarded"),
        )
        super().__init__(
            config,
            {
                "i": In(stream.Signature(i_layout), "Rows of vectors."),
                "o": Out(
                    stream.Signature(Payload(data=(config.width, "row"))),
                    "Rows of the vectors that were not discarded.",
                ),
            },
        )

    def elaborate(self, platform) -> Module:
        rows = self.config.rows
        m = Module()
        ram = add(m, "ram", Memory1R1W(self.config.memory))
        write_row, start_row, read_row = (
            Signal(range(rows), name=f"{name}_row") for name in ("write", "start", "read")
        )
        used = Signal(range(rows + 1))  # rows written and not read
        whole = Signal(range(rows + 1))  # those of them that are of whole vectors
        shown = Signal()  # the RAM's read register holds a row
        move, push, keep, forget, fetch = (
            Signal(name=name) for name in ("move", "push", "keep", "forget", "fetch")
        )

        next_row = let(m, "next_row", Mux(push, after(write_row, rows), write_row))
        m.d.comb += [
            self.i.ready.eq(used != rows),
            move.eq(self.i.valid & self.i.ready),
            push.eq(move & self.i.p.write),
            keep.eq(move & self.i.p.last & ~self.i.p.drop),
            forget.eq(move & self.i.p.last & self.i.p.drop),
            fetch.eq((whole != 0) & (~shown | self.o.ready)),
            ram.write_en.eq(push),
            ram.write_addr.eq(write_row),
            ram.write_data.eq(self.i.p.data),
            ram.read_en.eq(fetch),
            ram.read_addr.eq(read_row),
            self.o.valid.eq(shown),
            self.o.p.data.eq(ram.read_data),
        ]
        m.d.sync += [
            write_row.eq(Mux(forget, start_row, next_row)),
            used.eq(Mux(forget, whole, used + push) - fetch),
            whole.eq(Mux(keep, used + push, whole) - fetch),
        ]
        with m.If(keep):
            m.d.sync += start_row.eq(next_row)
        with m.If(fetch):
            m.d.sync += read_row.eq(after(read_row, rows))
        with m.If(~shown | self.o.ready):
            m.d.sync += shown.eq(fetch)
        return m


class OakenQuantEngine(Block):
    """One FP16 vector per request to scale words, dense codes and sparse bytes.

    Each beat is decomposed, scanned by both quantizers and stored in the buffer. Once the scale
    words are known, the vector leaves the buffer for the lanes, whose codes are merged by OR.
    Roundings are those of the decomposer and the quantizers.

    ``header`` is one word per vector, offered before its data. Its status is the first that
    applies:

        THRESHOLDS     not finite or not in order
        VECTOR_LENGTH  ``last`` not on beat blocks * block / lanes, or blocks 0 or beyond
                       elements_max: the vector ends at ``last``
        NONFINITE
        OK

    Scale words are 0 unless it is OK, and then neither dense nor sparse words follow.

    Take header, dense and sparse without waiting for one another: beyond some words each way, one
    that is not taken stops the others.
    Throughput 1 beat per cycle for vectors of any length and any share of outliers: D / lanes
    cycles per vector, if the sinks are ready. Buffer: the longest vector and 20 beats.
    Source: Oaken, section 5.2 and Fig. 9. Golden: golden.oaken.quantize.encode, sparse_records.
    """

    golden = "golden.oaken.quantize:encode"
    reference = "tests/oaken/test_golden.py: test_equals_the_oracle_in_every_bit"
    default = OakenQuantEngineConfig()
    configs: ClassVar = {
        "lanes_8": OakenQuantEngineConfig(lanes=8),
        "lanes_32": OakenQuantEngineConfig(lanes=32),
        "lanes_64": OakenQuantEngineConfig(lanes=64),
        "small": OakenQuantEngineConfig(lanes=8, block=16, elements_max=80),
    }

    def __init__(self, config: OakenQuantEngineConfig):
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout), "length and thresholds of a vector"
                ),
                "i": In(stream.Signature(config.i_layout), "elements of the vectors in order"),
                "header": Out(
                    stream.Signature(config.header_layout),
                    "status and scale words, one word per vector",
                ),
                "dense": Out(
                    stream.Signature(config.dense_layout),
                    "codes of the elements of vectors that are OK",
                ),
                "sparse": Out(
                    stream.Signature(config.sparse_layout),
                    "count byte and entries of each of their blocks",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.quant_engine(self.config.lanes, OakenInlierQuantizer.SCALE_STAGES)

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        shifted = shifted_layout(config.lanes)
        decomposer = add(
            m, "decomposer", OakenDecomposer(OakenDecomposerConfig(lanes=config.lanes))
        )
        inlier = add(
            m,
            "inlier",
            OakenInlierQuantizer(
                OakenInlierQuantizerConfig(lanes=config.lanes, vectors=config.vectors)
            ),
        )
        outlier = add(
            m,
            "outlier",
            OakenOutlierQuantizer(
                OakenOutlierQuantizerConfig(lanes=config.lanes, vectors=config.vectors)
            ),
        )
        held = add(
            m,
            "held",
            VectorBuffer(VectorBufferConfig(width=shifted.size, rows=config.buffer_rows)),
        )
        info = self._elaborate_request(m, decomposer)
        statuses = queue(m, "statuses", 4, _STATUS_DEPTH)
        self._elaborate_scan(m, decomposer.o, info, (inlier.scan, outlier.scan), held.i, statuses)
        self._elaborate_header(m, statuses.o, inlier.scale, outlier.scale)

        # The second pass: both quantizers take each beat in the same cycle.
        again = data.View(shifted, held.o.p.data)
        for here, there in ((inlier.i, outlier.i), (outlier.i, inlier.i)):
            m.d.comb += [
                here.valid.eq(held.o.valid & there.ready),
                here.payload.eq(again),
            ]
        m.d.comb += held.o.ready.eq(inlier.i.ready & outlier.i.ready)
        self._elaborate_codes(m, inlier.o, outlier.o)
        return m

    @property
    def _info_layout(self) -> data.StructLayout:
        """The facts by which the end of a vector is judged."""
        return Payload(
            end=(range(max(self.config.beats_max, 2)), "last beat of the vector"),
            blocks_ok=(1, "the number of blocks is in range"),
            thresholds_ok=(1, "the thresholds are in order"),
        )

    def _elaborate_request(self, m: Module, decomposer):
        """A request goes to the decomposer and, checked, to the end of it; returns that queue."""
        config = self.config
        info = queue(m, "info", self._info_layout, _INFO_DEPTH)
        checked = info.i.p
        request = self.request.p
        # the queue has, or gets, the request now on its port
        told = Signal()
        telling = Signal()
        m.d.comb += [
            telling.eq(told | info.i.ready),
            info.i.valid.eq(self.request.valid & ~told),
            checked.end.eq((request.blocks << (config.block_beats - 1).bit_length()) - 1),
            checked.blocks_ok.eq(
                (request.blocks != 0) & (request.blocks <= config.elements_max // config.block)
            ),
            checked.thresholds_ok.eq(thresholds_valid(m, request.thresholds)),
            decomposer.thresholds.valid.eq(self.request.valid & telling),
            decomposer.thresholds.payload.eq(request.thresholds),
            self.request.ready.eq(decomposer.thresholds.ready & telling),
            decomposer.i.valid.eq(self.i.valid),
            decomposer.i.payload.eq(self.i.payload),
            self.i.ready.eq(decomposer.i.ready),
        ]
        m.d.sync += told.eq(self.request.valid & telling & ~self.request.ready)
        return info.o

    def _elaborate_scan(self, m: Module, beat, info, scans, held, statuses) -> None:
        """Each decomposed beat to both statistics and the buffer; at its last, the status."""
        known = info.p
        count = Signal(range(max(self.config.beats_max, 2)))
        over = Signal()  # the beats that the request needs are all here
        spoiled = Signal()  # by NaN or infinity in an earlier beat
        at_end = Signal()
        status = Signal(4)
        drop = let(m, "drop", status != Status.OK)
        m.d.comb += at_end.eq(known.blocks_ok & ~over & (count == known.end))
        with m.If(~known.thresholds_ok):
            m.d.comb += status.eq(Status.THRESHOLDS)
        with m.Elif(~at_end):
            m.d.comb += status.eq(Status.VECTOR_LENGTH)
        with m.Elif(spoiled | beat.p.nonfinite):
            m.d.comb += status.eq(Status.NONFINITE)
        with m.Else():
            m.d.comb += status.eq(Status.OK)

        # All four take a beat together. No one's ready depends on its valid.
        sinks = [*scans, held, statuses.i]
        valid = let(m, "beat_valid", beat.valid & info.valid)
        for sink in sinks:
            others = Cat(*(other.ready for other in sinks if other is not sink)).all()
            wanted = beat.p.last if sink is statuses.i else Const(1, 1)
            m.d.comb += sink.valid.eq(valid & others & wanted)
        all_ready = let(m, "all_ready", Cat(*(sink.ready for sink in sinks)).all())
        m.d.comb += [
            beat.ready.eq(info.valid & all_ready),
            info.ready.eq(beat.valid & beat.p.last & all_ready),
            statuses.i.p.eq(status),
            held.p.data.eq(Cat(beat.p.y, beat.p.group, beat.p.last)),
            held.p.write.eq(known.blocks_ok & ~over),
            held.p.last.eq(beat.p.last),
            held.p.drop.eq(drop),
        ]
        for scan in scans:
            m.d.comb += [
                scan.p.y.eq(beat.p.y),
                scan.p.group.eq(beat.p.group),
                scan.p.last.eq(beat.p.last),
                scan.p.drop.eq(drop),
            ]
        with m.If(valid & all_ready):
            with m.If(beat.p.last):
                m.d.sync += [count.eq(0), over.eq(0), spoiled.eq(0)]
            with m.Else():
                m.d.sync += [
                    count.eq(count + 1),
                    over.eq(over | at_end),
                    spoiled.eq(spoiled | beat.p.nonfinite),
                ]

    def _elaborate_header(self, m: Module, statuses, inlier, outlier) -> None:
        ok = let(m, "status_ok", statuses.p == Status.OK)
        scales = let(m, "scales_here", inlier.valid & outlier.valid)
        words = {
            ScaleWord.MIDDLE_MIN: inlier.p.middle_min,
            ScaleWord.MIDDLE_STEP: inlier.p.middle_step,
            ScaleWord.OUTER_LOW_STEP: outlier.p.outer_low_step,
            ScaleWord.OUTER_HIGH_STEP: outlier.p.outer_high_step,
            ScaleWord.INNER_MIN: outlier.p.inner_min,
            ScaleWord.INNER_STEP: outlier.p.inner_step,
        }
        taken = let(m, "header_taken", self.header.valid & self.header.ready)
        m.d.comb += [
            self.header.valid.eq(statuses.valid & (~ok | scales)),
            self.header.p.status.eq(statuses.p),
            self.header.p.scale.as_value().eq(
                Mux(ok, Cat(*(words[word] for word in ScaleWord)), 0)
            ),
            statuses.ready.eq(taken),
            inlier.ready.eq(taken & ok),
            outlier.ready.eq(taken & ok),
        ]

    def _elaborate_codes(self, m: Module, inlier, outlier) -> None:
        """Codes merged by OR; each beat once to ``dense`` and once to the zero-remove shifter."""
        config = self.config
        remove = add(
            m,
            "remove",
            OakenZeroRemove(OakenZeroRemoveConfig(lanes=config.lanes, block=config.block)),
        )
        beats = config.block_beats
        position = Signal(range(max(beats, 2)))  # of the beat in its block
        block_end = let(m, "block_end", position == beats - 1)
        # Bits of a lane's index below the beat's and above.
        low = (config.lanes - 1).bit_length()
        entries = []
        for lane in range(config.lanes):
            index = Cat(Const(lane, low), position if beats > 1 else Const(0, 0))
            entries += [
                index,
                Const(0, INDEX_BITS - len(index)),
                outlier.p.outer[lane],
                outlier.p.fifth[lane],
            ]
        both = let(m, "both", inlier.valid & outlier.valid)
        sinks = {"dense": self.dense, "remove": remove.i}
        served = []
        for name, sink in sinks.items():
            done = Signal(name=f"{name}_done")  # has taken the beat now here
            now = let(m, f"{name}_served", done | sink.ready)
            m.d.comb += sink.valid.eq(both & ~done)
            served.append((done, now))
        take = let(m, "take", Cat(*(now for _, now in served)).all())
        for done, now in served:
            m.d.sync += done.eq(both & now & ~take)
        m.d.comb += [
            inlier.ready.eq(take & outlier.valid),
            outlier.ready.eq(take & inlier.valid),
            self.dense.p.code.as_value().eq(Value.cast(inlier.p.code) | Value.cast(outlier.p.code)),
            self.dense.p.last.eq(inlier.p.last),
            remove.i.p.byte.as_value().eq(Cat(*entries)),
            remove.i.p.keep.eq(outlier.p.keep),
            remove.i.p.last.eq(block_end),
            remove.i.p.vector_last.eq(inlier.p.last),
            self.sparse.valid.eq(remove.o.valid),
            remove.o.ready.eq(self.sparse.ready),
            self.sparse.payload.eq(remove.o.payload),
        ]
        with m.If(both & take):
            m.d.sync += position.eq(Mux(block_end, 0, position + 1))
