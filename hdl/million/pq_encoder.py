"""Codes of vectors: the nearest entries (docs/blocks/million_pq_encoder.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Module, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.million import timing
from golden.million.config import NAMED
from golden.million.format import EXPONENTS
from golden.paging.format import Kv
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.index.stages import delay
from hdl.kinds import index_of
from hdl.million.codebook_walk import CodebookReaderConfig, Walk, waiting_jobs
from hdl.million.layouts import beat_layout
from hdl.million.nearest_lane import MillionNearestLane, MillionNearestLaneConfig
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_RATE
from hdl.million.vector_buffer import MillionVectorBuffer, MillionVectorBufferConfig
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_CODES = 2  # vectors between their first read and their codes


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionPqEncoderConfig(CodebookReaderConfig):
    """Codebooks and products per cycle."""

    @property
    def buffer(self) -> MillionVectorBufferConfig:
        return MillionVectorBufferConfig(pq=self.pq, rate=self.rate, vectors=1)

    @property
    def job_layout(self) -> Payload:
        return Payload(kv=(1, "0: K, 1: V", Kv), **self.book_parts)

    @property
    def code_layout(self) -> Payload:
        codes = data.ArrayLayout(self.pq.bits, self.pq.subspaces)
        return Payload(
            code=(codes, "code of each subspace", index_of("entries of the codebook")),
            bad=(1, "the vector has a NaN or an infinity; its codes are unspecified"),
        )

    @property
    def flags_layout(self) -> data.StructLayout:
        """The flags that go with a codebook word through the pipeline."""
        return data.StructLayout(
            {
                "place": self.buffer.address_bits,
                "row": range(self.pq.entries),
                "part": range(max(2, self.parts)),
                "grid": range(len(EXPONENTS)),
                "first_row": 1,
                "last_row": 1,
                "last": 1,
                "bad": 1,
            }
        )


class MillionPqEncoder(Block):
    """``code_m = argmin_j of sum_i (x_i - 2**exponent * C[m][j][i])**2``, exact.

    Of equal distances the lowest j wins. The block takes a vector from ``x`` per job and gives one
    word of ``code``. It counts the words of x: it does not look at ``x.last``. ``bad``: an element
    of the vector is NaN or infinite. Its codes are unspecified, but below ``entries``.

    The block reads word (row, part) of the codebook at (book * 2**bits + row) * parts + part, for
    each part, for each row. ``read_en``, ``read_kv`` and ``read_addr`` come from registers and stay
    until ``read_grant``. ``read_data`` is looked at in the cycle after the grant alone: the parent
    chooses the store by the ``read_kv`` of the cycle of the grant.

    Contract: 1 <= entries; |C| <= 1; the codebook stays as it is from the job to its code.

    A vector takes entries * parts granted reads, without a pause between vectors: the next x is
    taken meanwhile. Two vectors may be under way or wait at ``code``; with more the block pauses.
    Latency: golden.million.timing.pq_encoder. The only inputs with a combinational path are
    ``read_grant``, ``read_data``: none to an output. Source: MILLION, section IV.
    Golden: golden.index.pq.exact_codes.
    """

    golden = "golden.index.pq:exact_codes"
    reference = "tests/index/test_pq.py: test_exact_on_any_words"
    default = MillionPqEncoderConfig()
    configs: ClassVar = {
        "smollm2": MillionPqEncoderConfig(pq=NAMED["4b_64"], rate=SMOLLM2_RATE),
        "small": MillionPqEncoderConfig(pq=SMALL, rate=SMALL_RATE, books=2),
    }

    def __init__(self, config: MillionPqEncoderConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Begins a vector."),
                "x": In(stream.Signature(beat_layout(config.rate.lanes)), "Vectors."),
                "read_en": Out(1, "Read word read_addr of the codebooks."),
                "read_kv": Out(1, "Of the codebooks of V, not of K."),
                "read_addr": Out(config.address, "Its address.", index_of("words")),
                "read_grant": In(1, "The word is read: with read_en."),
                "read_data": In(
                    FP16.bits * config.rate.macs, "The word, in the cycle after the grant.", FP16
                ),
                "code": Out(stream.Signature(config.code_layout), "Codes, one word per vector."),
            },
        )

    @property
    def timing(self) -> Timing:
        config = self.config
        return timing.pq_encoder(config.pq.entries, config.parts, config.pq.sub)

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        depth = timing.encoder_depth(config.pq.sub)
        jobs = waiting_jobs(m, config, self.job, {"kv": 1})
        buffer = add(m, "buffer", MillionVectorBuffer(config.buffer))
        link(m, self.x, buffer.x)

        # The word that is requested next; a request stays until it is granted.
        moves = Signal()
        begins = Signal()
        room = Signal()
        under_way = Signal()
        walk = Walk(m, config, jobs.p, begins)
        now = Signal(config.flags_layout)
        asked = Signal(config.flags_layout, reset_less=True)
        m.d.comb += [
            moves.eq(~self.read_en | self.read_grant),
            begins.eq(moves & jobs.valid & buffer.full & (under_way | room)),
            now.place.eq(Cat(walk.part[: (config.parts - 1).bit_length()], buffer.buffer)),
            now.row.eq(walk.row),
            now.part.eq(walk.part),
            now.grid.eq(jobs.p.grid),
            now.first_row.eq(walk.first_row),
            now.last_row.eq(walk.last_row),
            now.last.eq(walk.last),
            now.bad.eq(buffer.bad),
            jobs.ready.eq(begins & walk.last),
            buffer.take.eq(begins & walk.last),
        ]
        with m.If(moves):
            m.d.sync += [
                self.read_en.eq(begins),
                self.read_kv.eq(jobs.p.kv),
                self.read_addr.eq(walk.address),
                asked.eq(now),
            ]
        with m.If(begins):
            m.d.sync += under_way.eq(~walk.last)
        held = Signal(range(_CODES + 1))  # vectors that have begun and whose codes have not left
        m.d.comb += room.eq(held != _CODES)
        gone = self.code.valid & self.code.ready
        m.d.sync += held.eq(held + (begins & ~under_way) - gone)

        # stages[k]: k + 1 cycles after the grant. Word and x are there in the second cycle.
        stages = delay(m, self.read_en & self.read_grant, asked, depth)
        words = Signal(FP16.bits * config.rate.macs, reset_less=True)
        read, out = stages[0], stages[-1]
        m.d.sync += words.eq(self.read_data)
        m.d.comb += [
            buffer.read_en.eq(read.valid & read.flags.first_row),
            buffer.read_addr.eq(read.flags.place),
            buffer.give_back.eq(read.valid & read.flags.last),
        ]
        codes = []
        bits = FP16.bits * config.pq.sub
        lane_config = MillionNearestLaneConfig(sub=config.pq.sub, bits=config.pq.bits)
        for k in range(config.group):
            lane = add(m, f"lane_{k}", MillionNearestLane(lane_config))
            m.d.comb += [
                Value.cast(lane.x).eq(buffer.read_data.word_select(k, bits)),
                Value.cast(lane.c).eq(words.word_select(k, bits)),
                lane.scale.eq(stages[-4].flags.grid),
                lane.compare.eq(stages[-2].valid),
                lane.first.eq(stages[-2].flags.first_row),
                lane.index.eq(stages[-2].flags.row),
            ]
            codes.append(lane.code)

        # The codes of a part stay until those of the last part are there.
        shape = config.code_layout
        done = queue(m, "codes", shape, _CODES)
        found = Signal(config.group * config.pq.bits)
        m.d.comb += found.eq(Cat(codes))
        kept = []
        for part in range(config.parts - 1):
            some = Signal.like(found, name=f"part_{part}", reset_less=True)
            with m.If(out.valid & out.flags.last_row & (out.flags.part == part)):
                m.d.sync += some.eq(found)
            kept.append(some)
        m.d.comb += [
            done.i.valid.eq(out.valid & out.flags.last),
            Value.cast(done.i.p.code).eq(Cat(*kept, found)),
            done.i.p.bad.eq(out.flags.bad),
        ]
        link(m, done.o, self.code)
        return m
