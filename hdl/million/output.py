"""Outputs of queries from their exact sums (docs/blocks/million_output.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.config import flag
from golden.fp16.format import FP16
from golden.million import timing
from golden.million.format import EXPONENT_MAX, EXPONENT_MIN, PRODUCT_GRID
from golden.timing import Timing
from hdl.attention.quotients import Quotients, reciprocals
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.layouts import beat_layout
from hdl.million.shapes import SMALL_CACHE, SMALL_RATE, SMOLLM2_CACHE, SMOLLM2_RATE, LayerConfig
from hdl.million.value_finish import VALUE_SUM_BITS, value_sum_layout
from hdl.million.verdict import MillionVerdictConfig
from hdl.million.window_config import MillionWindowConfig
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.stream.widen import StreamWiden, StreamWidenConfig
from hdl.walk import Walk

_SHIFTS = EXPONENT_MAX - EXPONENT_MIN  # places between the smallest and the largest scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class MillionOutputConfig(LayerConfig):
    """The cache that is attended, and the rates of the output."""

    exact: bool = flag(True, "exact keys have sums too; false: there are none")

    @property
    def window(self) -> MillionWindowConfig:
        return MillionWindowConfig(cache=self.cache, rate=self.rate)

    @property
    def elements(self) -> int:
        """Elements per cycle: all queries in half the cycles of one word's pass over a codebook.

        The sums of the next group come after such a pass, so outputs never delay them.
        """
        wanted = -(-2 * self.cache.pq.head_dim // self.cache.pq.entries)
        wanted = 1 << (wanted - 1).bit_length()  # a divisor of the powers of two below
        return min(wanted, self.rate.macs, self.rate.window_macs, self.rate.lanes)

    @property
    def parts(self) -> int:
        """Transfers of ``past`` for each query."""
        return self.rate.parts(self.cache.pq)

    @property
    def memory(self) -> MemoryConfig:
        """The sums of past values of one group."""
        depth = self.rate.queries * self.parts
        return MemoryConfig(depth=depth, width=VALUE_SUM_BITS * self.rate.macs)

    @property
    def merged_bits(self) -> int:
        """Bits of ``2**e * N + W`` on the grid of the smallest scale, signed."""
        exact = self.window.value_bits - EXPONENT_MIN if self.exact else 0
        return max(VALUE_SUM_BITS + _SHIFTS, exact) + 1

    @property
    def past_layout(self) -> Payload:
        return value_sum_layout(self.rate.macs)

    @property
    def total_layout(self) -> Payload:
        return MillionVerdictConfig(cache=self.cache, rate=self.rate).result_layout

    @property
    def o_layout(self) -> data.StructLayout:
        return beat_layout(self.rate.lanes)


class MillionOutput(Block):
    """``o = rne16(rne32(2**e * N + W) * rne32(1 / rne32(S)))`` of a group of queries.

    ``past`` has N: for each part of ``macs`` elements, for each query. ``window`` has W: for each
    query, for each word of ``window_macs`` elements. ``total`` has S, the queries that count, those
    that are ``bad``, and e. ``o`` has ``head_dim`` words of each query that counts, query 0 first.
    A bad query's words are NaN (0x7E00). ``last`` of the sums is not read. Without ``exact``, W
    is 0 and ``window`` is no port.

    N of a group, and as many words of W, wait in RAMs until all is there. ``2**e * N + W`` is exact
    on the grid 2**-56. Rounding points: this sum, S, its reciprocal, the product.

    ``elements`` elements per cycle. This many never limit the value engine with full codebooks:
    2 * head_dim / entries, at least 1. No combinational path leads from an input to an output.
    Source: MILLION, section IV. Golden: golden.million.output.outputs.
    """

    golden = "golden.million.output:outputs"
    reference = "tests/million/test_output.py: test_outputs_follow_their_definition"
    default = MillionOutputConfig()
    configs: ClassVar = {
        "smollm2": MillionOutputConfig(cache=SMOLLM2_CACHE, rate=SMOLLM2_RATE),
        "small": MillionOutputConfig(cache=SMALL_CACHE, rate=SMALL_RATE),
    }

    def __init__(self, config: MillionOutputConfig):
        window = In(stream.Signature(config.window.sum_layout), "Sums of exact values.")
        super().__init__(
            config,
            {
                "past": In(stream.Signature(config.past_layout), "Sums of past values."),
                **({"window": window} if config.exact else {}),
                "total": In(stream.Signature(config.total_layout), "One per group."),
                "o": Out(
                    stream.Signature(config.o_layout),
                    "Outputs; last ends those of a group.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        config = self.config
        return timing.output(
            config.rate.queries, config.cache.pq.head_dim, config.rate.lanes, config.elements
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        queries, size, elements = config.rate.queries, config.rate.macs, config.elements
        words = config.rate.window_macs // elements  # cycles of a transfer of ``window``
        walk = Walk(m, "walk", queries=queries, parts=config.parts, cells=size // elements)
        job = Signal(config.total_layout, reset_less=True)
        drains = Signal()
        fetch = Signal()
        release = Signal()
        memory, is_full = self._past(m, release)
        inverses, invert, inverted = reciprocals(m, job.sum.as_value(), queries)
        if config.exact:
            depth = queries * config.cache.pq.head_dim // config.rate.window_macs + 2
            window = queue(m, "window_sums", config.window.sum_layout, depth, storage="memory")
            link(m, self.window, window.i)

        # The RAM's output is the register that the elements are selected from.
        shown = Signal()
        move = Signal()
        takes = Signal()
        place = Signal(_place_layout(config), reset_less=True)
        m.d.comb += [
            fetch.eq(drains & ~walk.done & (~shown | move)),
            walk.step.eq(fetch),
            release.eq(fetch & walk.is_last),
            memory.read_en.eq(fetch & (walk.at.cells == 0)),
            memory.read_addr.eq(walk.at.queries * config.parts + walk.at.parts),
        ]
        with m.If(~shown | move):
            m.d.sync += shown.eq(fetch)
        with m.If(fetch):
            m.d.sync += [
                place.cell.eq(walk.at.cells),
                place.query.eq(walk.at.queries),
                place.counts.eq(walk.at.queries < job.queries),
                place.last.eq(walk.wraps.parts & (walk.at.queries == job.queries - 1)),
            ]
        past = memory.read_data.word_select(place.cell, VALUE_SUM_BITS * elements)
        has_window = window.o.valid if config.exact else Const(1, 1)
        m.d.comb += move.eq(shown & has_window & (takes | ~place.counts))
        exact = Const(0, elements)
        if config.exact:
            word = Signal(range(max(2, words)))  # place in the transfer of ``window``
            m.d.comb += window.o.ready.eq(move & (word == words - 1))
            with m.If(move):
                m.d.sync += word.eq(Mux(word == words - 1, 0, word + 1))
            exact_bits = config.window.value_bits
            exact = Cat(*window.o.p.value).word_select(word, exact_bits * elements)
        side = {
            "inverse": let(m, "inverse", Array([*inverses, inverses[0]])[place.query]),
            "bad": let(m, "bad", Cat(job.bad, 0).bit_select(place.query, 1)),
            "last": place.last,
        }
        valid = let(m, "offers", shown & has_window & place.counts)
        self._divide(m, job, (past, exact, side), valid, takes)

        with m.FSM():
            with m.State("TOTAL"):
                m.d.comb += self.total.ready.eq(1)
                m.d.sync += job.eq(self.total.p)
                with m.If(self.total.valid):
                    m.next = "INVERT"
            with m.State("INVERT"):
                m.d.comb += invert.eq(1)
                with m.If(inverted):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.comb += walk.start.eq(is_full)
                with m.If(is_full):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += drains.eq(1)
                with m.If(walk.done & ~shown):
                    m.next = "TOTAL"
        return m

    def _past(self, m: Module, release):
        """(RAM of a group's sums of past values, whether all are there)."""
        config = self.config
        memory = add(m, "past_sums", Memory1R1W(config.memory))
        queries = config.rate.queries
        query = Signal(range(max(2, queries)))
        part = Signal(range(max(2, config.parts)))
        is_full = Signal()
        take = Signal()
        fills = Signal()
        is_last = let(m, "past_is_last", query == queries - 1)
        m.d.comb += [
            self.past.ready.eq(~is_full),
            take.eq(self.past.valid & ~is_full),
            fills.eq(take & is_last & (part == config.parts - 1)),
            memory.write_en.eq(take),
            memory.write_addr.eq(query * config.parts + part),
            memory.write_data.eq(self.past.p.value),
        ]
        with m.If(take):
            m.d.sync += query.eq(Mux(is_last, 0, query + 1))
            with m.If(is_last):
                m.d.sync += part.eq(Mux(fills, 0, part + 1))
        with m.If(fills | release):
            m.d.sync += is_full.eq(fills)
        return memory, is_full

    def _divide(self, m: Module, job, selected: tuple, valid, takes) -> None:
        """Turns selected elements of both sums into beats of outputs; drives ``takes``."""
        config = self.config
        past, exact, side = selected
        ratio = config.rate.lanes // config.elements
        beats = StreamWidenConfig(width=FP16.bits * config.elements, ratio=ratio)
        beats = add(m, "beats", StreamWiden(beats))
        held = Signal()
        kept = {name: Signal.like(value, name=f"held_{name}", reset_less=True)
                for name, value in {"past": past, "exact": exact, **side}.items()}  # fmt: skip
        exponent = Signal.like(job.exponent, reset_less=True)
        with m.If(takes):
            m.d.sync += [held.eq(valid), exponent.eq(job.exponent)]
            m.d.sync += [kept["past"].eq(past), kept["exact"].eq(exact)]
            m.d.sync += [kept[name].eq(value) for name, value in side.items()]
        places = let(m, "places", (exponent - EXPONENT_MIN)[: _SHIFTS.bit_length()])
        exact_bits = len(exact) // config.elements
        grid = PRODUCT_GRID + EXPONENT_MIN
        divided = Quotients(m, config.merged_bits, grid, held, kept, takes, beats)
        for n in range(config.elements):
            value = kept["past"].word_select(n, VALUE_SUM_BITS).as_signed()
            scaled = let(m, f"scaled_{n}", (value << places)[: config.merged_bits].as_signed())
            other = kept["exact"].word_select(n, exact_bits).as_signed()
            merged = let(m, f"merged_{n}", scaled + (other << -EXPONENT_MIN))
            divided.element(n, merged)
        m.d.comb += [
            self.o.valid.eq(beats.o.valid),
            self.o.p.word.eq(beats.o.p.data),
            self.o.p.last.eq(beats.o.p.last),
            beats.o.ready.eq(self.o.ready),
        ]


def _place_layout(config: MillionOutputConfig) -> data.StructLayout:
    """An element's place."""
    cells = config.rate.macs // config.elements
    return data.StructLayout(
        {
            "cell": range(max(2, cells)),
            "query": range(max(2, config.rate.queries)),
            "counts": 1,
            "last": 1,
        }
    )
