"""Softmax weights of exact and past keys, several queries at a time
(docs/blocks/attention_weights.md).
"""

import dataclasses
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream

from golden.attention.timing import weights
from golden.config import Config, bounded, choice
from golden.fp16.format import FP16
from golden.timing import Timing
from hdl.attention.parts import LOWEST_KEY, WEIGHT_BITS, fixed_point, inside, largest
from hdl.bits import let
from hdl.block import Block
from hdl.children import add
from hdl.fp16.add import FpAdd, FpAddConfig
from hdl.fp16.exp import FpExp, FpExpConfig
from hdl.kinds import fixed, mask_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload
from hdl.stream.payload import LAST
from hdl.stream.queue import Queue, queue
from hdl.stream.skid import skid

_NEGATIVE_INFINITY = FP16.sign_bit | FP16.infinity
_ADD_STAGES = 2
_EXP_STAGES = 4
QUERIES_MAX = 32
_ROWS = 2  # rows that the block holds; also totals that wait


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionWeightsConfig(Config):
    """Length of a row, and what a beat carries."""

    keys: int = choice(1, (1, 2, 4), "P: past keys per beat")
    queries: int = bounded(4, 1, QUERIES_MAX, "L: queries side by side")
    past: int = bounded(32768, 1, 65536, "most past keys of a row")
    window: int = bounded(36, 1, 320, "most exact keys of a row")

    @property
    def beats(self) -> int:
        """Most beats of past keys of a row."""
        return -(-self.past // self.keys)

    @property
    def past_memory(self) -> MemoryConfig:
        """Scores of past keys of two rows: a word per beat."""
        width = FP16.bits * self.queries * self.keys
        return MemoryConfig(depth=_ROWS * self.beats, width=width)

    @property
    def window_memory(self) -> MemoryConfig:
        """Scores of exact keys of two rows: a word per key."""
        return MemoryConfig(depth=_ROWS * self.window, width=FP16.bits * self.queries)

    @property
    def sum_bits(self) -> int:
        """Bits of the sum of the weights of a query."""
        return (self.past + self.window << WEIGHT_BITS - 1).bit_length()

    @property
    def row_layout(self) -> data.StructLayout:
        return Payload(
            past=(range(self.past + 1), "past keys of the row"),
            window=(range(self.window + 1), "exact keys of the row; at least one key in all"),
        )

    @property
    def window_layout(self) -> data.StructLayout:
        words = data.ArrayLayout(FP16.bits, self.queries)
        return Payload(word=(words, "FP16 words of one key, one per query", FP16), last=LAST)

    @property
    def past_layout(self) -> data.StructLayout:
        words = data.ArrayLayout(data.ArrayLayout(FP16.bits, self.queries), self.keys)
        text = "FP16 words, key by key, one per query"
        return Payload(word=(words, text, FP16), last=LAST)

    @property
    def total_layout(self) -> data.StructLayout:
        sums = data.ArrayLayout(unsigned(self.sum_bits), self.queries)
        return Payload(
            sum=(sums, "sums of the weights in units of 2**-24", fixed(-24)),
            bad=(self.queries, "queries without a result", mask_of("queries")),
        )

    @property
    def judged_layout(self) -> data.StructLayout:
        """A row whose maxima are known."""
        return Payload(
            **self.row_layout.parts,
            origin=data.ArrayLayout(FP16.bits, self.queries),  # -m; any finite word of a bad query
            bad=self.queries,
        )


class AttentionWeights(Block):
    """Weights and their exact sum of one row after another, for ``queries`` queries side by side.

        m = max s over window and past;  w = exp(rne16(s - m));  S = sum w on the grid 2**-24

    ``row`` begins a row of ``window`` exact keys and ``past`` past keys. Both kinds of scores may
    come at the same time: one beat per cycle of each. ``window_weight`` carries the weights of
    the exact keys first, ``past_weight`` then those of the past keys. Slots of the last beat
    beyond ``past`` are ignored, and their weight is +0. A row without keys of a kind has no beat
    of it. ``last`` of the scores is not read.

    ``bad``: a score of the query is NaN or +infinity, or all are -infinity. All weights of such a
    query are +0, its sum is 0. Other queries are unaffected. The order of words finds the
    maximum, with -0 below +0. A score of -infinity gives +0.

    The RAMs hold two rows: one is collected while the other is given. Two totals may wait. A third
    row is not given before the first total is taken. Contract of the parent: 1 <= window + past.
    Throughput: one beat per cycle of each stream. No combinational path leads from an input to
    an output. Rounding points: the difference and the exponential.
    Source: MILLION, section IV. Golden: golden.attention.softmax.row_weights.
    """

    golden = "golden.attention.softmax:row_weights"
    reference = "tests/attention/test_softmax.py: test_row_weights_share_one_maximum"
    default = AttentionWeightsConfig()
    configs: ClassVar = {
        "smollm2": AttentionWeightsConfig(queries=3),
        "small": AttentionWeightsConfig(keys=2, queries=2, past=256, window=8),
    }

    def __init__(self, config: AttentionWeightsConfig):
        window = stream.Signature(config.window_layout)
        past = stream.Signature(config.past_layout)
        super().__init__(
            config,
            {
                "row": In(stream.Signature(config.row_layout), "Begins a row."),
                "past_score": In(past, "Scores of the past keys of the row."),
                "window_score": In(window, "Scores of the exact keys of the row."),
                "window_weight": Out(window, "Weights of the exact keys."),
                "past_weight": Out(past, "Weights of the past keys, after those of the exact."),
                "total": Out(
                    stream.Signature(config.total_layout),
                    "Sums of all weights of a row, after its last weight.",
                ),
            },
        )

    @property
    def timing(self) -> Timing:
        return weights()

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        memories = {  # of each kind of keys, with the words of one row
            "window": (add(m, "window_scores", Memory1R1W(config.window_memory)), config.window),
            "past": (add(m, "past_scores", Memory1R1W(config.past_memory)), config.beats),
        }
        rows = queue(m, "rows", config.judged_layout, _ROWS)
        released = self._give(m, memories, rows)
        self._collect(m, memories, rows, released)
        return m

    def _collect(self, m: Module, memories: dict, rows: Queue, released) -> None:
        """Scores into the RAMs, and the largest of each query."""
        config = self.config
        row = Signal(config.row_layout, reset_less=True)
        half = Signal()  # of the RAMs, that this row takes
        held = Signal(range(_ROWS + 1))  # rows begun and not yet given
        is_open = Signal()
        takes, counts, complete = {}, {}, {}
        beats = {"window": row.window, "past": _beats(m, "row_beats", row.past, config.keys)}
        for name, (memory, size) in memories.items():
            port = getattr(self, f"{name}_score")
            takes[name] = take = Signal(name=f"take_{name}")
            counts[name] = count = Signal(beats[name].shape(), name=f"count_{name}")
            complete[name] = let(m, f"complete_{name}", count == beats[name])
            m.d.comb += [
                port.ready.eq(is_open & ~complete[name]),
                take.eq(port.valid & port.ready),
                memory.write_en.eq(take),
                memory.write_addr.eq(Mux(half, size, 0) + count),
                memory.write_data.eq(port.p.word),
            ]
            with m.If(take):
                m.d.sync += count.eq(count + 1)

        moving = Signal()  # scores of the cycle before
        m.d.sync += moving.eq(takes["window"] | takes["past"])
        places = inside(counts["past"], row.past, config.keys)
        begin = Signal()
        for query in range(config.queries):
            words = [key[query] for key in self.past_score.p.word]
            found = {
                "past": largest(m, words, places, f"past_{query}"),
                "window": largest(m, [self.window_score.p.word[query]], [Const(1, 1)]),
            }
            top = Signal(FP16.bits, name=f"top_{query}")
            wrong = Signal(name=f"wrong_{query}")
            best, is_wrong = top, wrong
            for name, (key, special) in found.items():
                key_seen = Signal(FP16.bits, name=f"{name}_key_{query}", reset_less=True)
                special_seen = Signal(name=f"{name}_special_{query}", reset_less=True)
                m.d.sync += [
                    key_seen.eq(Mux(takes[name], key, 0)),
                    special_seen.eq(takes[name] & special),
                ]
                best = let(m, f"{name}_best_{query}", Mux(best < key_seen, key_seen, best))
                is_wrong = is_wrong | special_seen
            m.d.sync += [top.eq(Mux(begin, 0, best)), wrong.eq(~begin & is_wrong)]
            bad = let(m, f"bad_{query}", wrong | (top <= LOWEST_KEY))
            negated = Mux(top[15], top, ~top ^ FP16.sign_bit)
            m.d.comb += [
                rows.i.p.bad[query].eq(bad),
                rows.i.p.origin[query].eq(Mux(bad, 0, negated)),
            ]
        m.d.comb += [
            self.row.ready.eq(~is_open & (held != _ROWS)),
            begin.eq(self.row.valid & self.row.ready),
            rows.i.valid.eq(is_open & complete["window"] & complete["past"] & ~moving),
            rows.i.p.past.eq(row.past),
            rows.i.p.window.eq(row.window),
        ]
        m.d.sync += held.eq(held + begin - released)
        with m.If(begin):
            m.d.sync += [is_open.eq(1), row.eq(self.row.payload)]
            m.d.sync += [count.eq(0) for count in counts.values()]
        with m.If(rows.i.valid):  # the queue has room for every row held
            m.d.sync += [is_open.eq(0), half.eq(~half)]

    def _give(self, m: Module, memories: dict, rows: Queue) -> Signal:
        """Weights of the scores in the RAMs, their sums; the result: a row left the RAMs."""
        config = self.config
        row = rows.o.p
        half = Signal()
        bads = queue(m, "bads", config.queries, _ROWS)
        beats = _beats(m, "given_beats", row.past, config.keys)
        index = Signal(range(max(config.beats, config.window) + 1))
        # of this row: a beat; its exact keys
        has_begun = Signal()
        was_window = Signal()
        shown = Signal()
        flags = Signal(_FLAGS, reset_less=True)
        places = Signal(config.keys, reset_less=True)
        origin = Signal(config.judged_layout["origin"].shape, reset_less=True)
        bad = Signal(config.queries, reset_less=True)
        advance = Signal()
        fetch = Signal()
        final = Signal(_FLAGS)
        is_past = let(m, "is_past", was_window | (row.window == 0))
        m.d.comb += [
            final.is_past.eq(is_past),
            final.last.eq(index == Mux(is_past, beats, row.window) - 1),
            final.row.eq(final.last & (is_past | (row.past == 0))),
            bads.i.valid.eq(rows.o.valid & advance & ~has_begun),
            bads.i.p.eq(row.bad),
            fetch.eq(rows.o.valid & advance & (has_begun | bads.i.ready)),
            rows.o.ready.eq(fetch & final.row),
        ]
        for name, (memory, size) in memories.items():
            m.d.comb += [
                memory.read_en.eq(fetch & (is_past if name == "past" else ~is_past)),
                memory.read_addr.eq(Mux(half, size, 0) + index),
            ]
        with m.If(fetch):
            inner = inside(index, row.past, config.keys)
            m.d.sync += [
                index.eq(Mux(final.last, 0, index + 1)),
                has_begun.eq(~final.row),
                was_window.eq(is_past | final.last),
                flags.eq(final),
                places.eq(Mux(is_past, Cat(inner), 1)),
                origin.eq(row.origin),
                bad.eq(row.bad),
            ]
            with m.If(final.row):
                m.d.sync += [was_window.eq(0), half.eq(~half)]

        # The RAM's output is the register that the adders read.
        (window_scores, _), (past_scores, _) = memories["window"], memories["past"]
        past_words = data.View(config.past_layout["word"].shape, past_scores.read_data)
        window_words = data.View(config.window_layout["word"].shape, window_scores.read_data)
        scores = [
            [
                Mux(
                    places[key] & ~bad[query],
                    Mux(flags.is_past, past_words[key][query], window_words[query]),
                    _NEGATIVE_INFINITY,
                )
                for query in range(config.queries)
            ]
            for key in range(config.keys)
        ]
        weighed = _weigh(m, shown, advance, flags, scores, origin, config)
        with m.If(advance):
            m.d.sync += shown.eq(fetch)
        self._send(m, weighed, bads)
        return rows.o.ready

    def _send(self, m: Module, weighed, bads: Queue) -> None:
        """Weights to their streams, and their sums."""
        config = self.config
        flags = weighed.o.p.flags
        window, past, word = self.window_weight, self.past_weight, weighed.o.p.word
        m.d.comb += [
            window.valid.eq(weighed.o.valid & ~flags.is_past),
            window.p.word.eq(word[0]),
            past.valid.eq(weighed.o.valid & flags.is_past),
            past.p.word.eq(word),
            weighed.o.ready.eq(Mux(flags.is_past, past.ready, window.ready)),
        ]
        m.d.comb += [port.p.last.eq(flags.last) for port in (window, past)]

        sums = queue(m, "sums", config.total_layout["sum"].shape, _ROWS)
        partial_valid = Signal()
        partial_row = Signal(reset_less=True)
        m.d.sync += [
            partial_valid.eq(weighed.i.valid & weighed.i.ready),
            partial_row.eq(weighed.i.p.flags.row),
        ]
        for query in range(config.queries):
            words = [key[query] for key in weighed.i.p.word]
            addends = [fixed_point(m, f"addend_{n}_{query}", word) for n, word in enumerate(words)]
            bits = WEIGHT_BITS + (config.keys - 1).bit_length()
            partial = Signal(bits, name=f"partial_{query}", reset_less=True)
            total = Signal(config.sum_bits, name=f"total_{query}")
            added = let(m, f"added_{query}", (total + partial)[: config.sum_bits])
            m.d.sync += partial.eq(sum(addends[1:], addends[0]))
            with m.If(partial_valid):
                m.d.sync += total.eq(Mux(partial_row, 0, added))
            m.d.comb += sums.i.p[query].eq(added)
        m.d.comb += [
            sums.i.valid.eq(partial_valid & partial_row),  # there is room: ``bads`` has an entry
            self.total.valid.eq(sums.o.valid),
            self.total.p.sum.eq(sums.o.p),
            self.total.p.bad.eq(bads.o.p),
            sums.o.ready.eq(self.total.ready),
            bads.o.ready.eq(self.total.ready & sums.o.valid),
        ]


_FLAGS = data.StructLayout({"is_past": 1, "last": 1, "row": 1})  # row: the row's last beat


def _beats(m: Module, name: str, keys, per_beat: int) -> Signal:
    """Beats of ``keys`` past keys."""
    return let(m, name, (keys + (per_beat - 1)) >> (per_beat - 1).bit_length())


def _weigh(m: Module, shown, advance, flags, scores, origin, config: AttentionWeightsConfig):
    """Difference and exponential of each score; the result is a skid buffer of the weights."""
    layout = data.StructLayout({"word": config.past_layout["word"].shape, "flags": _FLAGS})
    weighed = skid(m, "weighed", layout)
    for key, words in enumerate(scores):
        for query, word in enumerate(words):
            tag = _FLAGS.size if (key, query) == (0, 0) else 0  # all lanes move together
            less = FpAdd(FpAddConfig(stages=_ADD_STAGES, tag_bits=tag))
            less = add(m, f"difference_{key}_{query}", less)
            power = FpExp(FpExpConfig(stages=_EXP_STAGES, tag_bits=tag))
            power = add(m, f"exponential_{key}_{query}", power)
            m.d.comb += [
                less.i.valid.eq(shown),
                less.i.p.a.eq(word),
                less.i.p.b.eq(origin[query]),
                power.i.valid.eq(less.o.valid),
                less.o.ready.eq(power.i.ready),
                power.i.p.a.eq(less.o.p.y),
                power.o.ready.eq(weighed.i.ready),
                weighed.i.p.word[key][query].eq(power.o.p.y),
            ]
            if tag:
                m.d.comb += [
                    less.i.p.tag.eq(flags),
                    power.i.p.tag.eq(less.o.p.tag),
                    weighed.i.valid.eq(power.o.valid),
                    weighed.i.p.flags.eq(power.o.p.tag),
                    advance.eq(~shown | less.i.ready),
                ]
    return weighed
