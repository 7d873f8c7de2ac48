"""Queries of two jobs: part of attention_stream."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.attention.format import NO_SINK
from golden.fp16.format import FP16
from hdl.attention.stream_config import AttentionStreamConfig
from hdl.bits import after, any_of, let
from hdl.block import Block
from hdl.children import add
from hdl.kinds import index_of, mask_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out
from hdl.stream.widen import StreamWiden, StreamWidenConfig


def query_ports(config: AttentionStreamConfig, flip=In) -> dict:
    """The queries of the oldest job, as the RAM has them (In) or as their reader does (Out)."""
    other = Out if flip is In else In
    return {
        "q_full": other(1, "All queries of a job are there."),
        "q_bad": other(config.results, "Queries with a NaN or an infinity.", mask_of("queries")),
        "q_en": flip(1, "Read; the data comes in the next cycle."),
        "q_word": flip(range(max(2, config.words)), "Beat, and turn.", index_of("words")),
        "q_data": other(FP16.bits * config.macs, "Elements of the queries of a turn.", FP16),
        "q_release": flip(1, "The job needs them no more."),
    }


class AttentionStreamQueries(Block):
    """Words ``q`` of two jobs in a RAM: for each beat of a row, for each query, ``lanes`` words.

    The queries of a beat are those of its head. With ``sinks`` a job begins with the sinks of its
    queries, ``sink_beats`` beats of them; what such a beat has beyond them is ignored.

    A read word has the elements of ``engines`` queries. ``q_release`` goes on to the next job.
    """

    def __init__(self, config: AttentionStreamConfig):
        super().__init__(
            config,
            {
                "q": In(stream.Signature(config.q_layout), "Queries of each job."),
                **query_ports(config),
                **(
                    {"sink": Out(FP16.bits * config.results, "Sinks of the oldest job.", FP16)}
                    if config.sinks
                    else {}
                ),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        size = config.words
        shape = MemoryConfig(depth=2 * size, width=FP16.bits * config.macs)
        memory = add(m, "queries", Memory1R1W(shape))
        ratio = config.macs // config.width
        shape = StreamWidenConfig(width=FP16.bits * config.width, ratio=ratio)
        words = add(m, "words", StreamWiden(shape))
        place = Signal(range(max(2, size)))
        turn = Signal(range(max(2, config.turns)))
        step = Signal(range(max(2, config.steps)))
        head = Signal(range(max(2, config.heads)))
        full = Signal(range(3))
        fill_half = Signal()
        half = Signal()
        take = Signal()
        fills = Signal()
        m.d.comb += [
            words.i.p.data.eq(self.q.p.word),
            words.o.ready.eq(full != 2),
            take.eq(words.o.valid & words.o.ready),
            fills.eq(take & (place == size - 1)),
            memory.write_en.eq(take),
            memory.write_addr.eq(Mux(fill_half, size, 0) + place),
            memory.write_data.eq(words.o.p.data),
            memory.read_en.eq(self.q_en),
            memory.read_addr.eq(Mux(half, size, 0) + self.q_word),
            self.q_data.eq(memory.read_data),
            self.q_full.eq(full != 0),
        ]
        sink_bad = self._sinks(m, words.i, half)
        with m.If(take):
            m.d.sync += [place.eq(after(place, size)), turn.eq(after(turn, config.turns))]
            with m.If(turn == config.turns - 1):
                m.d.sync += step.eq(after(step, config.steps))
                with m.If(step == config.steps - 1):
                    m.d.sync += head.eq(after(head, config.heads))
        m.d.sync += [
            full.eq(full + fills - self.q_release),
            fill_half.eq(fill_half ^ fills),
            half.eq(half ^ self.q_release),
        ]

        # A query is bad from its first word that is not finite on; ``first`` drops the job before.
        exponents = [
            words.o.p.data.word_select(n, FP16.bits)[FP16.frac_bits : FP16.bits - 1].all()
            for n in range(config.macs)
        ]
        first = let(m, "first", step == 0)
        bads = [Signal(config.results, name=f"bad_{n}", reset_less=True) for n in range(2)]
        wrong = [
            let(m, f"wrong_{n}", any_of(exponents[n * config.lanes : (n + 1) * config.lanes]))
            for n in range(config.engines)
        ]
        for n, bad in enumerate(bads):
            for query in range(config.results):
                group, engine = divmod(query, config.engines)
                now = (head == group // config.turns) & (turn == group % config.turns)
                with m.If(take & (fill_half == n) & now):
                    m.d.sync += bad[query].eq(wrong[engine] | (bad[query] & ~first))
        bad = Mux(half, bads[1], bads[0])
        m.d.comb += self.q_bad.eq(bad | sink_bad if config.sinks else bad)
        return m

    def _sinks(self, m: Module, words, half) -> Value:
        """Passes the beats of queries to ``words``, and keeps those of sinks.

        The result has the queries of the oldest job whose sink is NaN or +infinity.
        """
        config, q = self.config, self.q
        if not config.sinks:
            m.d.comb += [words.valid.eq(q.valid), q.ready.eq(words.ready)]
            return Const(0, 1)
        beats, outputs = config.sink_beats, config.shape.outputs
        at = Signal(range(beats + outputs), name="sink_at")
        held = Signal(range(3), name="sinks_held")  # jobs whose sinks are there
        fill_half = Signal(name="sink_fill_half")
        is_sink = let(m, "is_sink", at < beats)
        takes = let(m, "takes_sink", q.valid & is_sink & (held != 2))
        fills = let(m, "fills_sinks", takes & (at == beats - 1))
        m.d.comb += [
            words.valid.eq(q.valid & ~is_sink),
            q.ready.eq(Mux(is_sink, held != 2, words.ready)),
        ]
        with m.If(q.valid & q.ready):
            m.d.sync += at.eq(after(at, beats + outputs))
        m.d.sync += [
            held.eq(held + fills - self.q_release),
            fill_half.eq(fill_half ^ fills),
        ]
        sinks = [Signal(self.sink.shape(), name=f"sinks_{n}", reset_less=True) for n in range(2)]
        for n, kept in enumerate(sinks):
            for beat in range(beats):
                some = kept[beat * FP16.bits * config.width :][: FP16.bits * config.width]
                with m.If(takes & (fill_half == n) & (at == beat)):
                    m.d.sync += some.eq(q.p.word.as_value())
        m.d.comb += self.sink.eq(Mux(half, sinks[1], sinks[0]))
        found = [self.sink.word_select(n, FP16.bits) for n in range(config.results)]
        return Cat(
            word[FP16.frac_bits : FP16.bits - 1].all() & (word != NO_SINK) for word in found
        )
