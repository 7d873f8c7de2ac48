"""Scores of past keys by decoding them (docs/blocks/million_decode_keys.md)."""

from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.fp16.format import FP16
from golden.million import timing
from golden.million.config import NAMED
from golden.million.format import DISTANCE_BITS
from golden.timing import Timing
from hdl.block import Block, Operations
from hdl.children import add
from hdl.fp16.compare import is_special
from hdl.index.stages import delay
from hdl.kinds import mask_of
from hdl.million.decode_lookup import MillionDecodeLookup, MillionDecodeLookupConfig
from hdl.million.decode_score import MillionDecodeScore, MillionDecodeScoreConfig
from hdl.million.layouts import EXPONENT_SHAPE, beat_layout, score_layout
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_RATE
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue


class MillionDecodeKeysConfig(MillionDecodeLookupConfig):
    """Codes, keys per cycle and queries side by side."""

    @property
    def lookup(self) -> MillionDecodeLookupConfig:
        return MillionDecodeLookupConfig(pq=self.pq, rate=self.rate, max_keys=self.max_keys)

    @property
    def query_beats(self) -> int:
        """Beats of one query."""
        return self.pq.head_dim // self.rate.lanes

    @property
    def q_layout(self) -> data.StructLayout:
        return beat_layout(self.rate.lanes)

    @property
    def score_layout(self) -> Payload:
        return score_layout(self.rate)

    @property
    def job_layout(self) -> Payload:
        slopes = data.ArrayLayout(FP16.bits, self.rate.queries)
        return Payload(
            **self.job_parts,
            exponent=(EXPONENT_SHAPE, "log2 of the scale of the codebook, -8..15"),
            distance=(range(1 << DISTANCE_BITS), "tokens from the first key to the query's token"),
            slope=(slopes, "FP16 words, one per query: score per token of distance", FP16),
        )

    @property
    def end_layout(self) -> Payload:
        return Payload(
            bad_code=(1, "a key has a code beyond the entries"),
            bad=(self.rate.queries, "queries without scores", mask_of("queries")),
        )


class MillionDecodeKeys(Block):
    """``s = rne16(2**e * sum_i q_i * c_i + slope * distance)`` of each key and query.

    c is the key that the codes name in the codebook. The sum is exact, on the grid 2**(e - 48), and
    is rounded once. The first key of a job has the job's distance, each further key one less.

    A job takes one packet of ``q``: ``queries`` vectors, query 0 first. With ``switch`` it takes
    one packet of ``codebook`` too, and the jobs after it use the same. It has ceil(keys / P) beats
    of ``code`` and as many of ``score``. Slots beyond ``keys`` of the last beat are ignored, and
    their scores are +0. The block counts the beats: it does not look at ``code.last``. One word of
    ``end`` per job may come before the job's last scores.

        case                                         effect
        a code beyond the job's entries              NaN for this key, all queries; end.bad_code
        NaN or infinity in a query or its slope      NaN for this query, all keys; end.bad
        a sum beyond FP16                            an infinity; not bad
        keys = 0                                     no code, no score; the query is used up

    Contract: the first job has ``switch``; 1 <= entries <= rows of the codebook; |c| <= 1;
    exponent -8..15; distance >= keys - 1 where keys > 0.

    Latency and delays: golden.million.timing.decode_keys. One beat per cycle, jobs without a pause.
    The next codebook and the next queries are taken meanwhile. No combinational path leads from an
    input to an output. The rival of million_table_builder with million_score_engine. Golden:
    golden.million.decode.decode_scores.
    """

    golden = "golden.million.decode:decode_scores"
    reference = "tests/million/test_decode.py: test_scores"
    default = MillionDecodeKeysConfig()
    configs: ClassVar = {
        "smollm2": MillionDecodeKeysConfig(pq=NAMED["4b_64"], rate=SMOLLM2_RATE),
        "small": MillionDecodeKeysConfig(pq=SMALL, rate=SMALL_RATE, max_keys=64),
    }
    checked = "small"

    def __init__(self, config: MillionDecodeKeysConfig):
        super().__init__(
            config,
            {
                "codebook": In(
                    stream.Signature(config.codebook_layout),
                    "Codebooks, row by row, each used from a job with switch on.",
                ),
                "q": In(stream.Signature(config.q_layout), "Queries, a packet per job."),
                "job": In(stream.Signature(config.job_layout), "Begins a job."),
                "code": In(stream.Signature(config.code_layout), "Codes of the job's keys."),
                "score": Out(stream.Signature(config.score_layout), "Scores of the job's keys."),
                "end": Out(stream.Signature(config.end_layout), "What was bad, one per job."),
            },
        )

    @property
    def timing(self) -> Timing:
        return timing.decode_keys(self.config.pq.head_dim)

    @property
    def operations(self) -> Operations:
        return Operations("score", self.config.rate.keys, "keys")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        rate, keys = config.rate, config.rate.keys
        lookup = add(m, "lookup", MillionDecodeLookup(config.lookup))
        link(m, self.codebook, lookup.codebook)
        link(m, self.code, lookup.code)
        more = {name: config.job_layout[name].shape for name in ("exponent", "distance", "slope")}
        waiting = queue(m, "waiting", data.StructLayout(more), 2)
        m.d.comb += [
            self.job.ready.eq(waiting.i.ready & lookup.job.ready),
            waiting.i.valid.eq(self.job.valid & self.job.ready),
            lookup.job.valid.eq(self.job.valid & self.job.ready),
            *(lookup.job.p[name].eq(self.job.p[name]) for name in config.job_parts),
            *(waiting.i.p[name].eq(self.job.p[name]) for name in more),
            waiting.o.ready.eq(lookup.begins),
        ]
        queries, nonfinite, query_is_there = self._queries(m, lookup.begins)
        m.d.comb += lookup.can_begin.eq(query_is_there)

        # Of the job whose beats are taken; and of the beat whose elements are shown
        exponent = Signal(EXPONENT_SHAPE, reset_less=True)
        distance = Signal(DISTANCE_BITS, reset_less=True)
        slope = Signal(more["slope"], reset_less=True)
        bad = Signal(rate.queries, reset_less=True)
        with m.If(lookup.begins):
            special = Cat(is_special(word) for word in waiting.o.p.slope)
            m.d.sync += [
                exponent.eq(waiting.o.p.exponent),
                distance.eq(waiting.o.p.distance),
                slope.eq(waiting.o.p.slope),
                bad.eq(nonfinite | special),
            ]
        with m.Elif(lookup.take):
            m.d.sync += distance.eq(distance - keys)
        shown_exponent, shown_slope, shown_bad = (
            Signal.like(each, name=f"shown_{name}", reset_less=True)
            for name, each in (("exponent", exponent), ("slope", slope), ("bad", bad))
        )
        m.d.sync += [shown_exponent.eq(exponent), shown_slope.eq(slope), shown_bad.eq(bad)]
        flags = data.StructLayout({"last": 1, "dead": keys, "beyond": keys, "bad": rate.queries})
        shown = Signal(flags)
        beyond = Cat(Value.cast(codes).any() for codes in lookup.beyond)
        m.d.comb += [
            shown.last.eq(lookup.last),
            shown.dead.eq(lookup.dead),
            shown.beyond.eq(beyond),
            shown.bad.eq(shown_bad),
        ]
        depth = self.timing.latency - 2
        has_keys = lookup.shown & ~lookup.dead.all()
        stage = delay(m, has_keys, shown, depth)[-1]

        words = []
        for p in range(keys):
            shown_distance = Signal(DISTANCE_BITS, name=f"distance_{p}", reset_less=True)
            m.d.sync += shown_distance.eq(distance - p)
            for n in range(rate.queries):
                shape = MillionDecodeScoreConfig(head_dim=config.pq.head_dim)
                lane = add(m, f"lane_{p}_{n}", MillionDecodeScore(shape))
                m.d.comb += [
                    lane.q.eq(queries[n]),
                    lane.c.eq(lookup.word[p]),
                    lane.exponent.eq(shown_exponent),
                    lane.slope.eq(shown_slope[n]),
                    lane.distance.eq(shown_distance),
                ]
                is_nan = stage.flags.beyond[p] | stage.flags.bad[n]
                word = Mux(is_nan, Const(FP16.canonical_nan, FP16.bits), lane.y)
                words.append(Mux(stage.flags.dead[p], 0, word))

        room = depth + 3
        scores = queue(m, "scores", config.score_layout, room)
        held = Signal(range(room + 1))  # beats between code and score
        m.d.comb += [
            scores.i.valid.eq(stage.valid),
            Value.cast(scores.i.p.word).eq(Cat(words)),
            scores.i.p.last.eq(stage.flags.last),
            lookup.can_take.eq(held != room),
        ]
        m.d.sync += held.eq(held + lookup.take - (self.score.valid & self.score.ready))
        link(m, scores.o, self.score)

        ends = queue(m, "ends", config.end_layout, 2)
        ended = Signal()
        m.d.comb += [
            ended.eq(lookup.shown & lookup.last),
            ends.i.valid.eq(ended),
            ends.i.p.bad_code.eq(lookup.bad_code),
            ends.i.p.bad.eq(shown_bad),
            lookup.can_end.eq(ends.i.ready & ~ended),
        ]
        link(m, ends.o, self.end)
        return m

    def _queries(self, m: Module, begin) -> tuple[list, Value, Value]:
        """(elements of each query in use, which have a NaN or an infinity, whether they are there).

        The last two are of the next job's queries. In use they are one cycle after ``begin``, when
        the elements of the last keys before have been multiplied.
        """
        config, count = self.config, self.config.rate.queries
        vectors = data.ArrayLayout(self.config.lookup.word_layout.elem_shape, count)
        beat_bits = FP16.bits * config.rate.lanes
        full = Signal()
        taken = Signal()
        copies = Signal()
        following = Signal(vectors.size, reset_less=True)
        current = Signal(vectors, reset_less=True)
        special = Signal(count * config.query_beats, reset_less=True)
        m.d.comb += [self.q.ready.eq(~full), taken.eq(self.q.valid & self.q.ready)]
        m.d.sync += [full.eq((full & ~begin) | (taken & self.q.p.last)), copies.eq(begin)]
        with m.If(taken):
            found = Cat(is_special(word) for word in self.q.p.word).any()
            m.d.sync += [
                following.eq(Cat(following[beat_bits:], Value.cast(self.q.p.word))),
                special.eq(Cat(special[1:], found)),
            ]
        with m.If(copies):
            m.d.sync += Value.cast(current).eq(following)
        beats = config.query_beats
        nonfinite = Cat(special[n * beats : (n + 1) * beats].any() for n in range(count))
        return [current[n] for n in range(count)], nonfinite, full
