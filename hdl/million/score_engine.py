"""Scores of past keys by table look-up (docs/blocks/million_score_engine.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import bounded
from golden.fp16.format import FP16
from golden.index.timing import adder_levels
from golden.million.config import NAMED
from golden.million.format import DISTANCE_BITS
from golden.million.timing import SCORE_ROUNDING
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.index.stages import Stage, delay
from hdl.kinds import mask_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.beats import any_beyond, is_dead
from hdl.million.layouts import code_layout, entry_layout, score_layout
from hdl.million.score_lane import MillionScoreLane, MillionScoreLaneConfig
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_RATE, VectorConfig
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionScoreEngineConfig(VectorConfig):
    """Codes, keys per cycle and queries side by side."""

    max_keys: int = bounded(32768, 1, 32768, "keys of a job")

    @property
    def table(self) -> MemoryConfig:
        """One bank: two buffers of a subspace's entries, those of all queries in one word."""
        return MemoryConfig(
            depth=2 * self.pq.entries,
            width=self.rate.queries * FP16.bits,
            granularity=FP16.bits,
        )

    @property
    def entry_layout(self) -> Payload:
        return entry_layout(self.pq, self.rate)

    @property
    def code_layout(self) -> Payload:
        return code_layout(self.pq, self.rate)

    @property
    def score_layout(self) -> Payload:
        return score_layout(self.rate)

    @property
    def job_layout(self) -> Payload:
        slopes = data.ArrayLayout(FP16.bits, self.rate.queries)
        return Payload(
            keys=(range(self.max_keys + 1), "keys to score; with 0 only the table is taken"),
            entries=(range(self.pq.entries + 1), "entries of each table"),
            distance=(range(1 << DISTANCE_BITS), "tokens from the first key to the query's token"),
            slope=(slopes, "FP16 words, one per query: score per token of distance", FP16),
        )

    @property
    def kept_layout(self) -> data.StructLayout:
        """A job that waits."""
        return data.StructLayout(
            {
                "none": 1,
                "last_key": range(self.max_keys),
                "entries": range(self.pq.entries + 1),
                "distance": DISTANCE_BITS,
                "slope": data.ArrayLayout(FP16.bits, self.rate.queries),
            }
        )

    @property
    def end_layout(self) -> Payload:
        return Payload(
            bad_code=(1, "a key has a code beyond the entries"),
            bad=(self.rate.queries, "queries without scores", mask_of("queries")),
        )


class MillionScoreEngine(Block):
    """``s = rne16(sum_m T[m][code_m] + slope * distance)`` of each key and query.

    The sum is exact, on the grid 2**-24, and is rounded once. The first key of a job has the job's
    distance, each further key one less.

    Tables come through ``entry`` into one of two buffers and are used by one job, in order. A job
    has ceil(keys / P) beats of ``code`` and as many of ``score``. The block ignores the slots
    beyond ``keys`` of the last beat, and their scores are +0. It counts the beats: it does not look
    at ``code.last``. One word of ``end`` per job may come before the job's last scores.

        case                                         effect
        a code beyond the job's entries              NaN for this key, all queries; end.bad_code
        bad of the table; slope NaN or infinite      NaN for this query, all keys; end.bad
        a sum beyond FP16                            an infinity; not bad
        keys = 0                                     no code, no score; the table is used up

    Contract: 1 <= entries of the job = those of its table; distance >= keys - 1 where keys > 0.

    Latency and delays: ``timing``. One beat per cycle, jobs without a
    pause; a job's last beat waits for a place in ``end``. Nothing stalls within: the block takes
    a beat when the queue of scores has a place for it. No combinational path leads from an input
    to an output. Source: MILLION, section IV. Golden: golden.million.scores.past_scores.
    """

    golden = "golden.million.scores:past_scores"
    reference = "tests/million/test_scores.py: test_scores_round_an_exact_sum_once"
    default = MillionScoreEngineConfig()
    configs: ClassVar = {
        "smollm2": MillionScoreEngineConfig(pq=NAMED["4b_64"], rate=SMOLLM2_RATE),
        "small": MillionScoreEngineConfig(pq=SMALL, rate=SMALL_RATE, max_keys=64),
    }

    def __init__(self, config: MillionScoreEngineConfig):
        super().__init__(
            config,
            {
                "entry": In(stream.Signature(config.entry_layout), "Tables, in order of jobs."),
                "job": In(stream.Signature(config.job_layout), "Begins a job."),
                "code": In(stream.Signature(config.code_layout), "Codes of the job's keys."),
                "score": Out(stream.Signature(config.score_layout), "Scores of the job's keys."),
                "end": Out(stream.Signature(config.end_layout), "What was bad, one per job."),
            },
        )

    @property
    def timing(self) -> Timing:
        """Look-up, terms, levels of the tree, the sum with the distance's term, rounding, queue."""
        latency = 1 + 1 + adder_levels(self.config.pq.subspaces) + 1 + SCORE_ROUNDING + 1
        return Timing(
            latency=latency,
            start="code",
            end="score",
            unit="beat",
            delays=(
                ("from the last entry to the first code", 2),
                ("from the last code to end", 2),
            ),
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        rate, keys = config.rate, config.rate.keys
        slot_bits = (keys - 1).bit_length()
        jobs = _jobs(m, config, self.job)
        job = jobs.p
        # a beat is taken; a job ends
        take = Signal()
        marker = Signal()
        tables = _Tables(m, config, self.entry, marker)

        # Which keys the beat has
        beats = Signal(range(max(2, -(-config.max_keys // keys))))  # taken of this job
        final = Signal()
        room = Signal()
        can_end = Signal()
        dead = Signal(keys)  # slots beyond the keys
        start = Signal()  # job and table are there
        m.d.comb += [
            final.eq(beats == job.last_key[slot_bits:]),
            dead.eq(Cat(is_dead(p, final, job.last_key[:slot_bits]) for p in range(keys))),
            start.eq(jobs.valid & tables.is_full),
            self.code.ready.eq(start & ~job.none & room & (~final | can_end)),
            take.eq(self.code.valid & self.code.ready),
            marker.eq(Mux(job.none, start & can_end, take & final)),
            jobs.ready.eq(marker),
        ]
        with m.If(marker):
            m.d.sync += beats.eq(0)
        with m.Elif(take):
            m.d.sync += beats.eq(beats + 1)

        # What goes with the beat: flags to the end, distance and slope for a cycle
        bad = Signal(rate.queries)
        beyond = Signal(keys)
        entry_bad = [any_beyond(self.code.p.code[p], job.entries) for p in range(keys)]
        m.d.comb += [
            bad.eq(tables.bad | Cat(is_special(word) for word in job.slope)),
            beyond.eq(Cat(entry_bad) & ~dead),
        ]
        flags = data.StructLayout({"last": 1, "dead": keys, "beyond": keys, "bad": rate.queries})
        shown = Signal(flags)
        m.d.comb += [
            shown.last.eq(final), shown.dead.eq(dead), shown.beyond.eq(beyond), shown.bad.eq(bad),
        ]  # fmt: skip
        depth = self.timing.latency - 1
        stages = delay(m, take, shown, depth)
        slope = Signal.like(job.slope, reset_less=True)
        m.d.sync += slope.eq(job.slope)

        # The look-up and the sums; a bank for each subspace and slot
        words = []
        for p in range(keys):
            distance = Signal(DISTANCE_BITS, name=f"distance_{p}", reset_less=True)
            m.d.sync += distance.eq(job.distance - Cat(Const(p, slot_bits), beats))
            looked_up = tables.banks(m, p, take, self.code.p.code[p])
            for query in range(rate.queries):
                lane_config = MillionScoreLaneConfig(subspaces=config.pq.subspaces)
                lane = add(m, f"lane_{p}_{query}", MillionScoreLane(lane_config))
                parts = [word.word_select(query, FP16.bits) for word in looked_up]
                m.d.comb += [
                    Value.cast(lane.word).eq(Cat(parts)),
                    lane.slope.eq(slope[query]),
                    lane.distance.eq(distance),
                ]
                is_nan = stages[-1].flags.beyond[p] | stages[-1].flags.bad[query]
                word = Mux(is_nan, FP16.canonical_nan, lane.y)
                words.append(Mux(stages[-1].flags.dead[p], 0, word))

        scores = queue(m, "scores", config.score_layout, depth + 2)
        given = Signal()
        held = Signal(range(depth + 3))  # beats between code and score
        m.d.comb += [
            scores.i.valid.eq(stages[-1].valid),
            Value.cast(scores.i.p.word).eq(Cat(words)),
            scores.i.p.last.eq(stages[-1].flags.last),
            given.eq(self.score.valid & self.score.ready),
            room.eq(held != depth + 2),
        ]
        m.d.sync += held.eq(held + take - given)
        link(m, scores.o, self.score)
        m.d.comb += can_end.eq(_ends(m, config, marker, stages[0], bad, self.end))
        return m


def _jobs(m: Module, config: MillionScoreEngineConfig, job):
    """The jobs, two of them waiting, with the number of their last key."""
    jobs = queue(m, "jobs", config.kept_layout, 2)
    m.d.comb += [
        jobs.i.valid.eq(job.valid),
        job.ready.eq(jobs.i.ready),
        jobs.i.p.none.eq(job.p.keys == 0),
        jobs.i.p.last_key.eq(job.p.keys - 1),
        jobs.i.p.entries.eq(job.p.entries),
        jobs.i.p.distance.eq(job.p.distance),
        jobs.i.p.slope.eq(job.p.slope),
    ]
    return jobs.o


def _ends(m: Module, config: MillionScoreEngineConfig, marker, stage: Stage, bad, end) -> Value:
    """One word of ``end`` per ``marker``; returns whether a job may end in this cycle."""
    ends = queue(m, "ends", config.end_layout, 2)
    ended = Signal()
    found = Signal()
    now = Signal()
    end_bad = Signal.like(bad, reset_less=True)
    m.d.comb += [
        now.eq(found | (stage.valid & stage.flags.beyond.any())),
        ends.i.valid.eq(ended),
        ends.i.p.bad_code.eq(now),
        ends.i.p.bad.eq(end_bad),
    ]
    m.d.sync += [ended.eq(marker), end_bad.eq(bad), found.eq(now & ~ended)]
    link(m, ends.o, end)
    return ends.i.ready & ~ended


class _Tables:
    """Both buffers of tables: filled by ``entry``, given back by ``release``.

    is_full: the buffer in use has its tables; bad: their flags.
    """

    def __init__(self, m: Module, config: MillionScoreEngineConfig, entry, release):
        self.config = config
        full = Signal(2)
        filling = Signal()
        self.using = Signal()
        bads = Array(
            Signal(config.rate.queries, name=f"bad_{n}", reset_less=True) for n in range(2)
        )
        self.is_full, self.bad = full.bit_select(self.using, 1), bads[self.using]

        # Where the entry goes; it is written one cycle after it was taken.
        query = Signal(range(max(2, config.rate.queries)))
        row = Signal(config.pq.bits)
        part = Signal(range(max(2, config.parts)))
        taken = Signal()
        last_query = Signal()
        m.d.comb += [
            entry.ready.eq(~full.bit_select(filling, 1)),
            taken.eq(entry.valid & entry.ready),
            last_query.eq(query == config.rate.queries - 1),
        ]
        self.writes = Signal()
        self.write_last = Signal(reset_less=True)
        self.write_buffer = Signal(reset_less=True)
        self.write_row, self.write_part = Signal.like(row), Signal.like(part)
        self.write_query, self.write_word = Signal.like(query), Signal.like(entry.p.word)
        m.d.sync += [
            self.writes.eq(taken), self.write_last.eq(entry.p.last),
            self.write_buffer.eq(filling), self.write_row.eq(row), self.write_part.eq(part),
            self.write_query.eq(query), self.write_word.eq(entry.p.word),
        ]  # fmt: skip
        with m.If(taken):
            m.d.sync += query.eq(Mux(last_query, 0, query + 1))
            with m.If(last_query):
                m.d.sync += row.eq(row + 1)
            with m.If(entry.p.end):
                m.d.sync += [row.eq(0), part.eq(part + 1)]
            with m.If(entry.p.last):
                m.d.sync += [part.eq(0), filling.eq(~filling), bads[filling].eq(entry.p.bad)]

        filled = Signal(2)
        freed = Signal(2)
        m.d.comb += [
            filled.eq((self.writes & self.write_last) << self.write_buffer),
            freed.eq(release << self.using),
        ]
        m.d.sync += [full.eq((full | filled) & ~freed), self.using.eq(self.using ^ release)]

    def banks(self, m: Module, slot: int, look_up, codes) -> list[Value]:
        """The banks of a slot; their words of ``codes``, one cycle after ``look_up``."""
        words, group = [], self.config.group
        lanes = Cat(self.write_query == query for query in range(self.config.rate.queries))
        for k, code in enumerate(codes):
            bank = add(m, f"bank_{slot}_{k}", Memory1R1W(self.config.table))
            is_here = self.writes & (self.write_part == k // group)
            m.d.comb += [
                bank.read_en.eq(look_up),
                bank.read_addr.eq(Cat(code, self.using)),
                bank.write_en.eq(lanes & is_here.replicate(len(lanes))),
                bank.write_addr.eq(Cat(self.write_row, self.write_buffer)),
                bank.write_data.eq(Value.cast(self.write_word[k % group]).replicate(len(lanes))),
            ]
            words.append(bank.read_data)
        return words
