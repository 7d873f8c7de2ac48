"""Scores of the exact keys: part of million_window."""

import itertools

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream

from golden.attention.format import PRODUCT_BITS
from golden.fp16.format import FP16
from golden.index.timing import tree_levels
from golden.million.format import PRODUCT_GRID
from hdl.attention.products import complements, delayed, product_registers
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.from_fixed import FixedToFloat, FixedToFloatConfig
from hdl.fp16.unpack import unpack
from hdl.index.sums import add_tree
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.layouts import beat_layout
from hdl.million.window_config import ExactKeys, MillionWindowConfig, regroup
from hdl.million.window_rows import row_ports
from hdl.ports import In, Out
from hdl.stream.queue import queue
from hdl.walk import Walk

_ROUND_STAGES = 4
_FLAGS = data.StructLayout({"last": 1, "query_last": 1, "key_last": 1})


class MillionWindowScores(Block):
    """``score`` = rne16(sum_i q_i * k_i + slope * distance) of each exact key and query of a job.

    One product of ``window_macs`` elements per cycle, for the queries of one word of a key in turn,
    so that a word is read once. ``score`` comes key by key, with all queries. Two jobs' queries are
    held. A job without keys takes its queries and gives nothing.
    """

    def __init__(self, config: MillionWindowConfig):
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Keys and slopes."),
                "q": In(stream.Signature(beat_layout(config.rate.lanes)), "Queries of each job."),
                **row_ports(config, "k", Out),
                "score": Out(stream.Signature(config.heads_layout), "Scores."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        queries, steps = config.rate.queries, config.steps
        job = Signal(config.job_layout, reset_less=True)
        is_open = Signal()
        begin = Signal()
        go = Signal()
        release = Signal()
        count = let(m, "count", job.sinks + job.recent)
        walk = Walk(m, "walk", keys=count, steps=steps, queries=queries)
        keys = ExactKeys(m, config, self.job.p, job)
        query_data, has_queries = self._queries(m, walk, go, release)

        # A key begins when there is room for its scores.
        levels = tree_levels(config.rate.window_macs + 1)
        stages = 5 + levels + _ROUND_STAGES  # from the read of a key's last word to its last score
        room = -(-stages // (queries * steps)) + 2
        scores = queue(m, "scores", config.heads_layout, room)
        begun = Signal(range(room + 1))  # keys begun and not yet taken
        is_first = let(m, "is_first", (walk.at.steps == 0) & (walk.at.queries == 0))
        taken = let(m, "taken", scores.o.valid & scores.o.ready)
        starts = let(m, "starts", go & is_first)
        m.d.sync += begun.eq(begun + starts - taken)
        m.d.comb += [
            self.job.ready.eq(~is_open),
            begin.eq(self.job.valid & self.job.ready),
            keys.restart.eq(begin),
            go.eq(is_open & has_queries & (count != 0) & (~is_first | (begun != room))),
            walk.step.eq(go),
            walk.start.eq(begin),
            keys.advance.eq(go & walk.wraps.steps),
            release.eq(is_open & has_queries & ((count == 0) | (go & walk.is_last))),
            self.k_en.eq(go & (walk.at.queries == 0)),
            self.k_row.eq(keys.row),
            self.k_step.eq(walk.at.steps),
        ]
        with m.If(begin):
            m.d.sync += [is_open.eq(1), job.eq(self.job.p)]
        with m.If(release):
            m.d.sync += is_open.eq(0)

        flags = Signal(_FLAGS)
        m.d.comb += [
            flags.last.eq(walk.last.steps),
            flags.query_last.eq(walk.last.queries),
            flags.key_last.eq(walk.last.keys),
        ]
        partial = self._products(m, query_data, self._bias(m, job, walk, keys))
        adds, at = delayed(m, go, flags, 4 + levels)

        # Sums of the queries take turns.
        # They are 0 before a key: the flag selects after the sum, so its fan-out delays nothing.
        ring = [Signal(signed(config.score_bits), name=f"ring_{n}") for n in range(queries)]
        score = Signal(signed(config.score_bits), reset_less=True)
        total = let(m, "total", (ring[-1] + partial)[: config.score_bits])
        with m.If(adds):
            m.d.sync += [score.eq(total), ring[0].eq(Mux(at.last, 0, total))]
            m.d.sync += [b.eq(a) for a, b in itertools.pairwise(ring)]
        complete = Signal()
        final = Signal(_FLAGS, reset_less=True)
        m.d.sync += [complete.eq(adds & at.last), final.eq(at)]
        shape = FixedToFloatConfig(
            width=config.score_bits, grid_exponents=(PRODUCT_GRID,), o=FP16,
            stages=_ROUND_STAGES, tag_bits=2,
        )  # fmt: skip
        rounder = add(m, "rounder", FixedToFloat(shape))
        m.d.comb += [
            rounder.i.valid.eq(complete),
            rounder.i.p.value.eq(score),
            rounder.i.p.tag.eq(Cat(final.query_last, final.key_last)),
            rounder.o.ready.eq(1),
        ]
        words = [rounder.o.p.y]
        for n in range(queries - 1):
            word = Signal(FP16.bits, name=f"word_{n}", reset_less=True)
            with m.If(rounder.o.valid):
                m.d.sync += word.eq(words[0])
            words.insert(0, word)
        m.d.comb += [
            scores.i.valid.eq(rounder.o.valid & rounder.o.p.tag[0]),
            scores.i.p.word.eq(Cat(words)),
            scores.i.p.last.eq(rounder.o.p.tag[1]),
            self.score.valid.eq(scores.o.valid),
            self.score.p.eq(scores.o.p),
            scores.o.ready.eq(self.score.ready),
        ]
        return m

    def _queries(self, m: Module, walk: Walk, go, release):
        """(word of the query a cycle after go, whether a whole job's queries are there)."""
        config = self.config
        steps, lanes, macs = config.steps, config.rate.lanes, config.rate.window_macs
        size = config.rate.queries * steps
        shape = MemoryConfig(depth=2 * size, width=FP16.bits * macs)
        memory = add(m, "queries", Memory1R1W(shape))
        words = regroup(m, "query_words", lanes, macs)
        place = Signal(range(max(2, size)))
        full = Signal(range(3))
        fill_half = Signal()
        half = Signal()
        take = Signal()
        fills = Signal()
        m.d.comb += [
            words.i.valid.eq(self.q.valid),
            words.i.p.data.eq(self.q.p.word),
            words.i.p.last.eq(self.q.p.last),
            self.q.ready.eq(words.i.ready),
            words.o.ready.eq(full != 2),
            take.eq(words.o.valid & words.o.ready),
            fills.eq(take & (place == size - 1)),
            memory.write_en.eq(take),
            memory.write_addr.eq(Mux(fill_half, size, 0) + place),
            memory.write_data.eq(words.o.p.data),
            memory.read_en.eq(go),
            memory.read_addr.eq(Mux(half, size, 0) + walk.at.queries * steps + walk.at.steps),
        ]
        with m.If(take):
            m.d.sync += place.eq(Mux(fills, 0, place + 1))
        m.d.sync += [
            full.eq(full + fills - release),
            fill_half.eq(fill_half ^ fills),
            half.eq(half ^ release),
        ]
        return memory.read_data, full != 0

    def _bias(self, m: Module, job, walk: Walk, keys: ExactKeys) -> tuple:
        """(sign, magnitude) of slope * distance three cycles after the walk's position."""
        slope = Signal(FP16.bits, reset_less=True)
        away = Signal.like(keys.away, reset_less=True)
        counts = Signal(reset_less=True)  # in the first step of a key only
        m.d.sync += [
            slope.eq(job.slope[walk.at.queries if self.config.rate.queries > 1 else 0]),
            away.eq(keys.away),
            counts.eq(walk.at.steps == 0),
        ]
        raw = unpack(m, slope, FP16, "slope")
        first = Signal(len(raw.significand) + len(away), name="bias_first", reset_less=True)
        product = Signal(len(first), name="bias_product", reset_less=True)
        shift = [Signal(FP16.exp_bits, name=f"bias_shift_{n}", reset_less=True) for n in range(2)]
        sign = [Signal(name=f"bias_sign_{n}", reset_less=True) for n in range(2)]
        m.d.sync += [
            first.eq(Mux(counts, raw.significand * away, 0)),
            shift[0].eq(raw.exponent - 1),
            sign[0].eq(raw.sign),
            product.eq(first),
            shift[1].eq(shift[0]),
            sign[1].eq(sign[0]),
        ]
        # Slopes have the grid 2**-24, and the sum that of their square.
        shifted = Cat(Const(0, -FP16.grid_exponent), product) << shift[1]
        return sign[1], let(m, "bias", shifted[: PRODUCT_BITS + 1])

    def _products(self, m: Module, query_word, bias: tuple) -> Signal:
        """Sum of the products of a key's word and a query's: terms four cycles after go, levels."""
        macs = self.config.rate.window_macs
        fresh = Signal()
        key = Signal(self.config.memory.width, reset_less=True)
        query = Signal(self.config.memory.width, reset_less=True)
        m.d.sync += [fresh.eq(self.k_en), query.eq(query_word)]
        with m.If(fresh):
            m.d.sync += key.eq(self.k_data)
        terms = [bias]
        for n in range(macs):
            pair = [
                unpack(m, word.word_select(n, FP16.bits), FP16, f"{name}_{n}")
                for name, word in (("key", key), ("query", query))
            ]
            sign, product, shift = product_registers(m, f"{n}", *pair)
            terms.append((sign, let(m, f"shifted_{n}", (product << shift)[:PRODUCT_BITS])))
        values = complements(m, "term", terms)
        (partial,) = add_tree(
            m, "products", values, [sign for sign, _ in terms], tree_levels(len(terms))
        )
        return partial
