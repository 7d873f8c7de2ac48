"""Sums of weighted values by histograms."""

import dataclasses
from fractions import Fraction
from typing import ClassVar

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream

from golden.config import bounded
from golden.million.config import NAMED
from golden.million.timing import value_finish, value_interval
from golden.timing import Timing
from hdl.attention.parts import fixed_point
from hdl.block import Block, Tier
from hdl.children import add
from hdl.index.histogram_ram import IndexHistogramRam
from hdl.kinds import index_of
from hdl.million.beats import is_dead
from hdl.million.layouts import code_layout, score_layout
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_RATE, VectorConfig
from hdl.million.value_finish import (
    MillionValueFinish,
    MillionValueFinishConfig,
    value_sum_layout,
)
from hdl.ports import In, Out, Payload
from hdl.stream.link import link, link_members
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionValueEngineConfig(VectorConfig):
    """Codes, keys per cycle, queries side by side, and products per cycle."""

    max_keys: int = bounded(32768, 1, 32768, "keys of a job")
    books: int = bounded(1, 1, 128, "codebooks in the store of V")

    @property
    def finish(self) -> MillionValueFinishConfig:
        return MillionValueFinishConfig(
            pq=self.pq, rate=self.rate, books=self.books, max_keys=self.max_keys
        )

    @property
    def job_layout(self) -> Payload:
        return Payload(
            keys=(range(self.max_keys + 1), "keys whose values are added; with 0 the sums are 0"),
            entries=(range(self.pq.entries + 1), "entries of the codebook, 1.."),
            book=(range(max(2, self.books)), "codebook of the store", index_of("codebooks")),
        )

    @property
    def kept_layout(self) -> data.StructLayout:
        """A job that waits for its beats."""
        return data.StructLayout({"none": 1, "last_key": range(self.max_keys)})


class MillionValueEngine(Block):
    """``N = sum over keys of w * C[m][code_m]`` of each element and query, exact.

    First the weights are counted: ``bin[m][j] += w`` for each key, in the RAMs of
    index_histogram_ram. Then one pass over the codebook gives ``N = sum_j bin[m][j] * C[m][j]`` in
    units of 2**-48. Nothing is rounded. A job takes ceil(keys / P) beats of ``weight`` and as many
    of ``code``, together. The block ignores the slots beyond ``keys`` of the last beat, and counts
    the beats: it does not look at ``last``. A code beyond the job's entries adds nothing in its
    subspace; then ``bad_code`` of ``end`` is set. ``end`` comes when the job's bins are complete,
    before its first sum, whether or not sums are taken.

    ``sum``: for each part of ``macs`` elements, for each query, a transfer.

    Contract: weights are FP16 words of 0..1; 1 <= entries; the store does not swap its buffers
    while a job is in the block. The block reads the store from a job's first bins on until its last
    sum, a word per ``queries`` cycles.

    Finishing a job takes entries * parts * queries + 1 cycles and overlaps the counting of the next
    ones, one beat per cycle. A job follows another after value_interval cycles
    (golden.million.timing). After reset the block clears the bins for 2**bits cycles.

    ``weight.ready`` depends on ``code.valid``, and the other way round; ``read_en`` on
    ``sum.ready``. Source: MILLION, section IV. Golden: golden.million.value.value_sums.

    A sum has 65 bits, because |N| reaches 2**63 at 32,768 keys. From the last beat to ``end`` it
    takes 4 cycles, and to the first sum (entries - 1) * queries + 7. Jobs of the same size follow
    each other after max(beats, finish + 1, (beats + finish + 3) / 2) cycles.

        ===================================  ==================  ======  =========  ==============
        configuration                        beats at 1K keys    finish  bins, KiB  codebook words
        ===================================  ==================  ======  =========  ==============
        default: (64, 8), 4 queries          1,024               2,048   640        512
        smollm2: (32, 8) at 64, 3 queries    1,024               768     240        256
        3b: (32, 12), 4 queries              1,024               32,768  5,120      8,192
        ===================================  ==================  ======  =========  ==============

    All have 64 products, and words are those read per job. The block has two sets of bins, one for
    each job in flight, and ``queries`` bins side by side.
    """

    tier = Tier.PART
    golden = "golden.million.value:value_sums"
    default = MillionValueEngineConfig()
    configs: ClassVar = {
        "3b": MillionValueEngineConfig(pq=NAMED["3b"]),
        "smollm2": MillionValueEngineConfig(pq=NAMED["4b_64"], rate=SMOLLM2_RATE),
        "small": MillionValueEngineConfig(pq=SMALL, rate=SMALL_RATE, max_keys=64, books=2),
    }

    def __init__(self, config: MillionValueEngineConfig):
        pq, rate, finish = config.pq, config.rate, config.finish
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Begins a job."),
                "weight": In(stream.Signature(score_layout(rate)), "Weights of the job's keys."),
                "code": In(stream.Signature(code_layout(pq, rate)), "V codes of the job's keys."),
                **finish.read_ports(),
                "sum": Out(
                    stream.Signature(value_sum_layout(rate.macs)), "For each part, for each query."
                ),
                "end": Out(stream.Signature(finish.end_layout), "What was bad, one per job."),
            },
        )

    @property
    def timing(self) -> Timing:
        """Jobs have fewer beats than their finish has products."""
        config, queries = self.config, self.config.rate.queries
        finish = value_finish(config.pq.entries, config.finish.parts, queries)
        return Timing(
            latency=(config.pq.entries - 1) * queries + 7,
            interval=Fraction(value_interval(0, finish)),
            start="the last weight",
            end="sum",
            unit="job",
            delays=(("from the last weight to end", 4),),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        rate, keys = config.rate, config.rate.keys
        slot_bits = (keys - 1).bit_length()
        histogram = add(m, "histogram", IndexHistogramRam(config.finish.histogram))
        finish = add(m, "finish", MillionValueFinish(config.finish))
        link(m, histogram.o, finish.bins)
        link_members(m, finish, self, ("sum", "end"))
        m.d.comb += [
            self.read_en.eq(finish.read_en),
            self.read_addr.eq(finish.read_addr),
            finish.read_data.eq(self.read_data),
        ]

        # A job goes to the beats, to the bins and to the finish at the same time.
        jobs = queue(m, "jobs", config.kept_layout, 2)
        waiting = (jobs.i, histogram.packet, finish.job)
        m.d.comb += [
            self.job.ready.eq(Cat(each.ready for each in waiting).all()),
            *(each.valid.eq(self.job.valid & self.job.ready) for each in waiting),
            jobs.i.p.none.eq(self.job.p.keys == 0),
            jobs.i.p.last_key.eq(self.job.p.keys - 1),
            histogram.packet.p.rows.eq(self.job.p.entries),
            histogram.packet.p.empty.eq(self.job.p.keys == 0),
            finish.job.p.entries.eq(self.job.p.entries),
            finish.job.p.book.eq(self.job.p.book),
        ]

        # Beats of weights and codes, together.
        job = jobs.o.p
        beats = Signal(range(max(2, -(-config.max_keys // keys))))  # taken of this job
        open_ = Signal()
        final = Signal()
        take = Signal()
        m.d.comb += [
            open_.eq(jobs.o.valid & ~job.none & histogram.i.ready),
            final.eq(beats == job.last_key[slot_bits:]),
            self.weight.ready.eq(open_ & self.code.valid),
            self.code.ready.eq(open_ & self.weight.valid),
            take.eq(self.weight.valid & self.code.valid & open_),
            histogram.i.valid.eq(self.weight.valid & self.code.valid & jobs.o.valid & ~job.none),
            histogram.i.p.last.eq(final),
            histogram.i.p.inlier.eq(
                Cat(~is_dead(slot, final, job.last_key[:slot_bits]) for slot in range(keys))
            ),
            jobs.o.ready.eq(job.none | (take & final)),
        ]
        with m.If(take):
            m.d.sync += beats.eq(beats + 1)
            with m.If(final):
                m.d.sync += beats.eq(0)
        m.d.comb += histogram.i.p.index.eq(self.code.p.code)
        for slot in range(keys):
            for query in range(rate.queries):
                weight = fixed_point(m, f"amount_{slot}_{query}", self.weight.p.word[slot][query])
                m.d.comb += histogram.i.p.amount[slot][query].eq(weight)
        return m
