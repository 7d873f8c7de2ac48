"""Passes of attention: look-ups, exact scores across passes, weights, sums of values."""

from types import SimpleNamespace

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.million.format import Status
from hdl.attention.weights import AttentionWeights
from hdl.block import Block
from hdl.children import add
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.million.decode_lookup import MillionDecodeLookup
from hdl.million.decode_values import weighted_sums
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.attend.code_beats import VqCodeBeats
from hdl.vqllm.attend.config import VqAttentionConfig
from hdl.vqllm.cache.loader import wrong_entry
from hdl.vqllm.row.finish import VqRowFinish
from hdl.vqllm.row.sums import VqRowSums

_BEATS = 3  # of elements between the look-up and the products


class VqAttendCore(Block):
    """A request has ``passes`` passes of K, then as many of V, each with codebooks of its own.

    The codebooks of the next pass are loaded during a pass. A pass of K adds to the sums of all
    tokens, and the last one gives the scores. Passes of V begin with the first weights: each
    gives the sums of its channels, for each memory word of elements, for each query.
    """

    def __init__(self, config: VqAttentionConfig):
        super().__init__(
            config,
            {
                "work": In(stream.Signature(config.work_layout), "Requests, judged."),
                "x": In(stream.Signature(config.sums.x_layout), "Their queries."),
                "book": In(stream.Signature(config.word_layout), "Codebooks, a packet per pass."),
                "code": In(stream.Signature(config.word_layout), "Codes, a packet per pass."),
                "sum": Out(stream.Signature(config.values.sum_layout), "Sums of values."),
                "total": Out(stream.Signature(config.weights.total_layout), "Sums of weights."),
                "end": Out(stream.Signature(config.end_layout), "The request has no more beats."),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        shape = config.shape
        lookup = add(m, "lookup", MillionDecodeLookup(config.values.lookup))
        work = self.work.p
        passes = shape.passes
        is_refused = Signal()
        given = Signal(range(2 * passes + 1))
        begun = Signal(range(2 * passes + 1))
        is_v = Signal()
        token = Signal(range(shape.max_tokens))
        shown_v = Signal()
        shown_last = Signal()
        final = Signal()
        ends = Signal()
        m.d.comb += [
            is_refused.eq(work.status != Status.OK),
            lookup.job.valid.eq(self.work.valid & ~is_refused & (given != 2 * passes)),
            lookup.job.p.keys.eq(work.tokens),
            lookup.job.p.entries.eq(work.entries),
            lookup.job.p.switch.eq(1),
            final.eq(token == work.tokens - 1),
            ends.eq(lookup.shown & lookup.last & shown_last),
            # The last pass begins when ``end`` is ready, and it stays so.
            lookup.can_begin.eq((begun != 2 * passes - 1) | self.end.ready),
            lookup.can_end.eq(1),
            self.end.valid.eq(ends | (self.work.valid & is_refused)),
            *(self.end.p[name].eq(work[name]) for name in config.kept_parts),
            self.work.ready.eq(self.end.valid & self.end.ready),
        ]
        m.d.sync += [shown_v.eq(is_v), shown_last.eq(begun == 2 * passes)]
        with m.If(lookup.job.valid & lookup.job.ready):
            m.d.sync += given.eq(given + 1)
        with m.If(lookup.begins):
            m.d.sync += [begun.eq(begun + 1), is_v.eq(begun >= passes), token.eq(0)]
        with m.Elif(lookup.take):
            m.d.sync += token.eq(token + 1)
        with m.If(ends):
            m.d.sync += [given.eq(0), begun.eq(0)]

        beats = add(m, "beats", VqCodeBeats(config))
        link(m, self.code, beats.word)
        m.d.comb += [
            beats.ends.eq(final),
            lookup.code.valid.eq(beats.beat.valid),
            lookup.code.p.code[0].eq(beats.beat.p.code),
            beats.beat.ready.eq(lookup.code.ready),
        ]
        self._faults(m, lookup, beats.beat, ends)
        room, scores = self._scores(m, lookup, is_v, shown_v)
        is_there, busy = self._values(m, lookup, shown_v, token, scores, ends)
        m.d.comb += lookup.can_take.eq(Mux(is_v, is_there & ~busy, room))
        return m

    def _faults(self, m: Module, lookup, beat, ends) -> None:
        """Codebooks to the look-up; what was wrong with them, and with codes, of the request."""
        config, book = self.config, self.book
        parts = {"resp": 2, "large": 1, "nonfinite": 1}
        faults = data.StructLayout(parts)
        judged = queue(m, "judged", faults, 2)
        seen = Signal(faults)
        now = Signal(faults)
        words = [book.p.data.word_select(n, 16) for n in range(config.shape.data_bits // 16)]
        large, nonfinite = wrong_entry(words)
        is_sound = ~book.p.resp[1]
        takes = book.valid & book.ready
        m.d.comb += [
            now.resp.eq(seen.resp | Mux(is_sound, 0, book.p.resp)),
            now.large.eq(seen.large | (large & is_sound)),
            now.nonfinite.eq(seen.nonfinite | (nonfinite & is_sound)),
            lookup.codebook.valid.eq(book.valid & judged.i.ready),
            lookup.codebook.p.word.as_value().eq(book.p.data),
            lookup.codebook.p.last.eq(book.p.last),
            book.ready.eq(lookup.codebook.ready & judged.i.ready),
            judged.i.valid.eq(takes & book.p.last),
            judged.i.p.eq(now),
            judged.o.ready.eq(lookup.begins),
        ]
        with m.If(takes):
            m.d.sync += seen.as_value().eq(Mux(book.p.last, 0, now.as_value()))

        sums = Signal(config.fault_layout)
        found = self.end.p
        m.d.comb += [
            *(found[name].eq(sums[name]) for name in parts),
            found.beyond.eq(sums.beyond | (lookup.shown & lookup.last & lookup.bad_code)),
        ]
        taken = Mux(lookup.take, beat.p.resp, 0)
        begun = lookup.begins.replicate(faults.size) & judged.o.p.as_value()
        begun = faults(begun)
        with m.If(ends):
            m.d.sync += sums.eq(0)
        with m.Else():
            m.d.sync += [
                sums.resp.eq(sums.resp | taken | begun["resp"]),
                sums.large.eq(sums.large | begun["large"]),
                sums.nonfinite.eq(sums.nonfinite | begun["nonfinite"]),
                sums.beyond.eq(found.beyond),
            ]

    def _scores(self, m: Module, lookup, is_v, shown_v) -> tuple:
        """(whether a beat of K may be taken, the block of weights)."""
        config, shape, work = self.config, self.config.shape, self.work.p
        sums = add(m, "sums", VqRowSums(config.sums))
        finish = add(m, "finish", VqRowFinish(config.finish))
        weights = add(m, "weights", AttentionWeights(config.weights))
        link(m, self.x, sums.x)
        words = queue(m, "words", config.sums.w_layout, _BEATS)
        link(m, words.o, sums.w)
        held = Signal(range(_BEATS + 1))
        is_k = Signal()
        m.d.comb += [
            is_k.eq(lookup.shown & ~shown_v),
            words.i.valid.eq(is_k),
            Value.cast(words.i.p.word).eq(Value.cast(lookup.word[0])),
            words.i.p.wrong.eq(Value.cast(lookup.beyond).any()),
            words.i.p.last.eq(lookup.last),
        ]
        m.d.sync += held.eq(held + (lookup.take & ~is_v) - (words.o.valid & words.o.ready))
        given = Signal(range(shape.passes + 1))
        is_given = Signal()
        is_open = self.work.valid & (work.status == Status.OK)
        m.d.comb += [
            sums.job.valid.eq(is_open & (given != shape.passes)),
            sums.job.p.offset.eq(given),
            sums.job.p.beats.eq(1),
            sums.job.p.rows.eq(work.tokens),
            sums.job.p.first.eq(given == 0),
            sums.job.p.final.eq(given == shape.passes - 1),
            sums.job.p.next_x.eq(given == 0),
            weights.row.valid.eq(is_open & ~is_given),
            weights.row.p.past.eq(work.tokens),
            weights.row.p.window.eq(0),
            finish.exponent.eq(work.exponent_k),
        ]
        link(m, sums.sum, finish.sum)
        with m.If(sums.job.valid & sums.job.ready):
            m.d.sync += given.eq(given + 1)
        with m.If(weights.row.valid & weights.row.ready):
            m.d.sync += is_given.eq(1)
        with m.If(self.work.ready):
            m.d.sync += [given.eq(0), is_given.eq(0)]
        m.d.comb += [
            weights.past_score.valid.eq(finish.y.valid),
            weights.past_score.p.word[0].eq(finish.y.p.word),
            weights.past_score.p.last.eq(finish.y.p.last),
            finish.y.ready.eq(weights.past_score.ready),
            weights.window_score.valid.eq(0),
            weights.window_weight.ready.eq(1),
        ]
        link(m, weights.total, self.total)
        return held != _BEATS, weights

    def _values(self, m: Module, lookup, shown_v, token, weights, ends) -> tuple:
        """(whether the weight of the token is there, whether sums of values are about to leave)."""
        config, shape = self.config, self.config.shape
        width = 16 * shape.queries
        size = MemoryConfig(depth=max(2, shape.max_tokens), width=width)
        memory = add(m, "kept", Memory1R1W(size))
        written = Signal(range(shape.max_tokens + 1))
        m.d.comb += [
            weights.past_weight.ready.eq(1),
            memory.write_en.eq(weights.past_weight.valid),
            memory.write_addr.eq(written),
            memory.write_data.eq(Value.cast(weights.past_weight.p.word)),
            memory.read_en.eq(lookup.take),
            memory.read_addr.eq(token),
        ]
        with m.If(weights.past_weight.valid):
            m.d.sync += written.eq(written + 1)
        with m.If(ends):
            m.d.sync += written.eq(0)
        elements = SimpleNamespace(
            shown=lookup.shown & shown_v, first=lookup.first, last=lookup.last,
            dead=lookup.dead, beyond=lookup.beyond, word=lookup.word,
        )  # fmt: skip
        weight = data.View(weights.past_weight.p.word.shape(), memory.read_data)
        _, busy = weighted_sums(m, config.values, elements, weight, self.sum)
        return token < written, busy
