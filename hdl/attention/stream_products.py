"""The products of rows with queries and with weights: part of attention_stream."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.attention.format import PRODUCT_BITS
from golden.fp16.format import FP16
from hdl.attention.products import complements, delayed, product_registers
from hdl.attention.stream_config import FLAGS, AttentionStreamConfig, term_ports
from hdl.attention.stream_queries import query_ports
from hdl.bits import any_of, let
from hdl.block import Block
from hdl.fp16.unpack import unpack
from hdl.ports import In, Out
from hdl.walk import Walk

_STAGES = 4  # from the transfer of a row to its terms


class AttentionStreamProducts(Block):
    """Rows times queries, or times weights: ``macs`` products per cycle, by the same multipliers.

    ``phase`` says what the next rows are. Those of K begin once the job's queries are there and the
    softmax has taken ``row``. Those of V begin once the sums have ``room``, and each row waits for
    its weights. A refused job's rows are discarded. ``key_end`` and ``value_end`` say, once
    per phase, whether its words were finite.
    """

    def __init__(self, config: AttentionStreamConfig):
        weights, fault = config.weights, stream.Signature(config.fault_layout)
        super().__init__(
            config,
            {
                "phase": In(stream.Signature(config.phase_layout), "Stretches of rows."),
                "rows": In(stream.Signature(config.rows_layout), "Rows of K and V."),
                "weight": In(stream.Signature(weights.past_layout), "Weights of the rows."),
                "row": Out(stream.Signature(weights.row_layout), "Begins a softmax."),
                "key_end": Out(fault, "Faults of K and of the queries."),
                "value_end": Out(fault, "Faults of V."),
                "claim": Out(1, "Rows of V begin, and take the sums."),
                "room": In(1, "Sums of V may begin."),
                **query_ports(config, Out),
                **term_ports(config, Out),
            },
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        phase = Signal(config.phase_layout, reset_less=True)
        go = Signal()
        ends = Signal()  # a phase, with its last product or because it has no rows
        loops = {"heads": config.heads, "steps": config.steps, "turns": config.turns}
        walk = Walk(m, "walk", rows=phase.rows, **loops)
        self._phases(m, phase, walk, go, ends)

        # The row and its weights, a cycle later; the RAM has the queries then.
        flags = Signal(FLAGS)
        counts = let(m, "counts", go & ~phase.is_refused)
        m.d.comb += [
            flags.is_key.eq(counts & ~phase.is_value),
            flags.is_value.eq(counts & phase.is_value),
            flags.last.eq(walk.last.steps),
            flags.row_last.eq(walk.last.heads & walk.last.turns),
            flags.phase_last.eq(walk.is_last),
        ]
        row = Signal(config.rows_layout, reset_less=True)
        weight = Signal(data.ArrayLayout(FP16.bits, config.engines), reset_less=True)
        words = self.weight.p.word[0].as_value()
        at = walk.at.heads * config.turns + walk.at.turns
        group = words.word_select(at, FP16.bits * config.engines)
        m.d.sync += [row.eq(self.rows.p), weight.eq(group)]
        is_value = Signal(reset_less=True)
        m.d.sync += is_value.eq(phase.is_value)
        self._faults(m, phase, row, go, ends)

        x = Signal.like(row.x, name="x", reset_less=True)
        factor = Signal(data.ArrayLayout(FP16.bits, config.macs), reset_less=True)
        queries = data.View(factor.shape(), self.q_data)
        m.d.sync += x.eq(row.x)
        for n in range(config.macs):
            m.d.sync += factor[n].eq(Mux(is_value, weight[n // config.lanes], queries[n]))

        elements = [unpack(m, word, FP16, f"x_{n}") for n, word in enumerate(x)]
        terms = []
        for n in range(config.macs):
            raw = unpack(m, factor[n], FP16, f"factor_{n}")
            found = product_registers(m, f"{n}", raw, elements[n % config.lanes])
            sign, product, shift = found
            terms.append((sign, let(m, f"shifted_{n}", (product << shift)[:PRODUCT_BITS])))
        m.d.comb += [
            self.term.as_value().eq(Cat(complements(m, "term", terms))),
            self.sign.eq(Cat(sign for sign, _ in terms)),
        ]
        is_shown, shown = delayed(m, go, flags, _STAGES)
        m.d.comb += [
            self.flags[name].eq(
                shown[name] & is_shown if name in ("is_key", "is_value") else shown[name]
            )
            for name in FLAGS.members
        ]
        return m

    def _phases(self, m: Module, phase, walk: Walk, go, ends) -> None:
        """Begins phases, and moves the rows of the one that is open."""
        config, following = self.config, self.phase.p
        is_open = Signal()
        begin = Signal()
        finish = let(m, "finish", go & walk.is_last)
        is_empty = let(m, "is_empty", following.rows == 0)
        # Rows follow without a gap, but those of K not others of K: the queries take turns.
        follows = finish & (phase.is_value | following.is_value) & ~is_empty
        may_begin = let(m, "may_begin", self.phase.valid & (~is_open | follows))
        is_key = let(m, "is_key", may_begin & ~following.is_value & self.q_full)
        needs_row = let(m, "needs_row", is_key & ~following.is_refused)
        is_value = may_begin & following.is_value & (self.room | following.is_refused)
        has_weight = ~phase.is_value | phase.is_refused | self.weight.valid
        takes = let(m, "takes", is_open & has_weight)
        m.d.comb += [
            self.row.valid.eq(needs_row),
            self.row.p.past.eq(following.rows),
            *([self.row.p.window.eq(1)] if config.sinks else []),
            begin.eq(is_value | (is_key & (following.is_refused | self.row.ready))),
            self.phase.ready.eq(begin),
            self.claim.eq(begin & following.is_value & ~following.is_refused),
            go.eq(takes & self.rows.valid),
            self.rows.ready.eq(takes & walk.last.turns),
            self.weight.ready.eq(
                is_open & phase.is_value & ~phase.is_refused & self.rows.valid & walk.wraps.heads
            ),
            walk.start.eq(begin),
            walk.step.eq(go),
            ends.eq(finish | (begin & is_empty)),
            self.q_en.eq(go & ~phase.is_value),
            self.q_word.eq(
                (walk.at.heads * config.steps + walk.at.steps) * config.turns + walk.at.turns
            ),
            self.q_release.eq(
                (finish & ~phase.is_value) | (begin & is_empty & ~following.is_value)
            ),
        ]
        with m.If(finish):
            m.d.sync += is_open.eq(0)
        with m.If(begin):
            m.d.sync += [is_open.eq(~is_empty), phase.eq(following)]

    def _faults(self, m: Module, phase, row, go, ends) -> None:
        """Whether the words of a phase were finite, once per phase; both streams have room."""
        moved = Signal()
        ended = Signal()
        of_value = Signal(reset_less=True)
        bad = Signal(self.config.results, reset_less=True)
        nonfinite = Signal()
        error = Signal()
        wrong = any_of(word[FP16.frac_bits : FP16.bits - 1].all() for word in row.x)
        nonfinite_now = let(m, "nonfinite_now", nonfinite | (moved & wrong))
        error_now = let(m, "error_now", error | (moved & row.error))
        begins = ends & ~go  # a phase without rows
        m.d.sync += [
            moved.eq(go),
            ended.eq(ends),
            bad.eq(self.q_bad),
            of_value.eq(Mux(begins, self.phase.p.is_value, phase.is_value)),
            nonfinite.eq(~ended & nonfinite_now),
            error.eq(~ended & error_now),
        ]
        for port, counts in ((self.key_end, ~of_value), (self.value_end, of_value)):
            m.d.comb += [
                port.valid.eq(ended & counts),
                port.p.nonfinite.eq(nonfinite_now),
                port.p.error.eq(error_now),
                port.p.bad.eq(bad),
            ]
